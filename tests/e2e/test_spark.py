"""Spark reads the files of a running service, as a user would: by the format's name, without telling the service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyspark_topics
from tests.support.service import Service

pytestmark = pytest.mark.spark

SESSION = r"""
import json, sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
for line in sys.stdin:
    task = json.loads(line)
    frame = spark.read.format("topics").options(**task["options"]).load(task["path"])
    frame.createOrReplaceTempView("topics")
    print(json.dumps(["answer", [row.asDict() for row in spark.sql(task["query"]).collect()]]), flush=True)
spark.stop()
"""


class Spark:
    """A Spark session in a process of its own, so that its threads and warnings are not the tests'."""

    def __init__(self) -> None:
        # As for an installed package: Spark looks through sys.path for packages called pyspark_*.
        root = str(Path(pyspark_topics.__file__).parent.parent)
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-c", SESSION],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def query(self, path: Path, query: str, **options: str) -> list[Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        task = {"path": str(path), "query": query, "options": options}
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith('["answer"'):
                rows: list[Any] = json.loads(line)[1]
                return rows
        raise AssertionError("the Spark session ended without an answer; its errors are above")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    session = Spark()
    yield session
    session.close()


def write(service: Service, topic: str, *records: dict[str, Any]) -> None:
    status, answer = service.request("POST", f"/v0/topics/{topic}", {"records": records})
    assert status in (200, 201), answer


def test_a_running_service_is_read_row_by_row(service: Service, spark: Spark) -> None:
    write(service, "jobs", {"data": {"n": 1}, "tag": "a", "node": "x", "meta": {"k": "v"}}, {"data": "zwölf"})
    write(service, "jobs", {"data": None, "tag": "b"})
    rows = spark.query(
        service.data_dir,
        "select cast(key as string) key, cast(value as string) value, topic, partition, offset, timestampType, node, "
        "tag, cast(meta as string) meta, unix_millis(timestamp) ms from topics order by offset",
    )
    _, diff = service.request("POST", "/v0/topics/jobs/diff", {"include_tags": True})
    assert [row["offset"] for row in rows] == [1, 2, 3] == [record["$seq"] for record in diff["records"]]
    assert [row["ms"] for row in rows] == [record["$ts"] for record in diff["records"]]
    assert [json.loads(row["value"]) for row in rows] == [{"n": 1}, "zwölf", None]
    assert [row["key"] for row in rows] == [row["tag"] for row in rows] == ["a", None, "b"]
    assert [row["node"] for row in rows] == ["x", None, None]
    assert [row["meta"] and json.loads(row["meta"]) for row in rows] == [{"k": "v"}, None, None]
    assert {(row["topic"], row["timestampType"]) for row in rows} == {("jobs", 0)}


def test_each_query_sees_what_was_acknowledged_before_it(service: Service, spark: Spark) -> None:
    counts = "select topic, count(*) n, max(offset) last from topics group by topic order by topic"
    for n in range(20):
        write(service, f"t{n % 5}", *[{"data": {"n": i}} for i in range(100)])
    assert spark.query(service.data_dir, counts) == [{"topic": f"t{n}", "n": 400, "last": 400} for n in range(5)]
    write(service, "t0", {"data": 1})
    service.request("DELETE", "/v0/topics/t1")
    write(service, "t1", {"data": "a new topic of an old name"})
    expected = [{"topic": "t0", "n": 401, "last": 401}, {"topic": "t1", "n": 1, "last": 1}]
    assert spark.query(service.data_dir, counts, subscribe="t0, t1") == expected


def test_the_files_are_enough_after_a_crash(service: Service, spark: Spark) -> None:
    write(service, "jobs", *[{"data": n} for n in range(1000)])
    service.kill_group()
    query = "select count(*) n, sum(cast(cast(value as string) as int)) total from topics"
    assert spark.query(service.data_dir, query) == [{"n": 1000, "total": 499500}]


def test_checkpoints_and_the_cold_tier_hide_nothing(
    new_service: Callable[..., Service], spark: Spark, tmp_path: Path
) -> None:
    cold = tmp_path / "cold"
    service = new_service(
        TOPICS_COLD_DIR=str(cold),
        TOPICS_CHECKPOINT_INTERVAL_MS="100",
        TOPICS_WAL_SEGMENT_BYTES="4096",
        TOPICS_SEGMENT_MAX_EVENTS="100",
        TOPICS_HOT_RETAIN_SEGMENTS="1",
        TOPICS_CACHE_BYTES="0",
    ).start()
    status, answer = service.request("PUT", "/v0/topics/capped", {"cap_records": 150})
    assert status == 201, answer
    query = (
        "select topic, count(*) n, count(distinct offset) seqs, max(offset) last "
        "from topics group by topic order by topic"
    )
    written = 0
    while not list(cold.rglob("*.data")) or written < 600:
        assert written < 20_000, "the service makes no checkpoints"
        for topic in ("all", "capped"):
            write(service, topic, *[{"data": written + n} for n in range(100)])
        written += 100
        kept = min(written, 150)
        expected = [
            {"topic": "all", "n": written, "seqs": written, "last": written},
            {"topic": "capped", "n": kept, "seqs": kept, "last": written},
        ]
        assert spark.query(service.data_dir, query, coldPath=str(cold)) == expected
    assert service.stop() == 0
    assert spark.query(service.data_dir, query, coldPath=str(cold)) == expected

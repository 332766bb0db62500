"""Spark reads the files of a running service, as a user would: by the format's name, without telling the service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import Service
from tests.support.spark import Spark

pytestmark = pytest.mark.spark


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
        "tag, transform(headers, h -> concat(h.key, '=', cast(h.value as string))) headers, unix_millis(timestamp) ms "
        "from topics order by offset",
        includeHeaders="true",
    )
    _, diff = service.request("POST", "/v0/topics/jobs/diff", {"include_tags": True})
    assert [row["offset"] for row in rows] == [1, 2, 3] == [record["$seq"] for record in diff["records"]]
    assert [row["ms"] for row in rows] == [record["$ts"] for record in diff["records"]]
    assert [json.loads(row["value"]) for row in rows] == [{"n": 1}, "zwölf", None]
    assert [row["key"] for row in rows] == [row["tag"] for row in rows] == ["a", None, "b"]
    assert [row["node"] for row in rows] == ["x", None, None]
    assert [row["headers"] for row in rows] == [['k="v"'], None, None]
    assert {(row["topic"], row["timestampType"]) for row in rows} == {("jobs", 1)}


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

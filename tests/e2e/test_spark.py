"""Claims about Spark reading the files of a running service by the format's name, without a request to the service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import Service, until
from tests.support.spark import Spark, SparkError

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


STREAM = """
import os
def run(where, options, **trigger):
    frame = spark.readStream.format("topics").options(**options).load({path!r})
    query = (
        frame.selectExpr("topic", "offset", "cast(value as string) value")
        .writeStream.format("parquet").option("checkpointLocation", {work!r} + "/checkpoint")
        .trigger(**trigger).start({work!r} + "/sink")
    )
    return query
def sink():
    if not os.path.isdir({work!r} + "/sink"):
        return []
    rows = spark.read.parquet({work!r} + "/sink").orderBy("topic", "offset").collect()
    return [[row.topic, row.offset, row.value] for row in rows]
"""


def test_a_stream_of_all_that_is_available_stops_and_goes_on_from_its_checkpoint(
    service: Service, spark: Spark, tmp_path: Path
) -> None:
    code = STREAM.format(path=str(service.data_dir), work=str(tmp_path))
    options = {"subscribePattern": "s.*", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}

    def go() -> Any:
        return spark.run(
            code
            + f"query = run('', {options!r}, availableNow=True)\n"
            + "query.awaitTermination()\n"
            + "answer = [[p.numInputRows for p in query.recentProgress], sink()]\n"
        )

    write(service, "s1", *[{"data": n} for n in range(100)])
    write(service, "other", {"data": 0})
    sizes, rows = go()
    assert rows == [["s1", n + 1, str(n)] for n in range(100)]
    assert max(sizes) <= 40
    write(service, "s1", *[{"data": n} for n in range(100, 120)])
    write(service, "s2", *[{"data": n} for n in range(30)])
    _, rows = go()
    expected = [["s1", n + 1, str(n)] for n in range(120)] + [["s2", n + 1, str(n)] for n in range(30)]
    assert rows == expected
    # Records that a cap removed before they were read are named in an error, and skipped only with permission.
    status, answer = service.request("PUT", "/v0/topics/s2", {"cap_records": 10})
    assert status == 200, answer
    write(service, "s2", *[{"data": n} for n in range(30, 60)])
    with pytest.raises(SparkError, match=r'topic "s2": seq 31 to 50 \(cap\).*failOnDataLoss'):
        go()
    options["failOnDataLoss"] = "false"
    _, rows = go()
    assert rows == expected + [["s2", n + 1, str(n)] for n in range(50, 60)]


def test_a_stream_that_runs_sees_what_is_written_and_new_topics(service: Service, spark: Spark, tmp_path: Path) -> None:
    code = STREAM.format(path=str(service.data_dir), work=str(tmp_path))
    write(service, "a", {"data": "before"})
    spark.run(
        code + "query = run('', {'startingOffsets': 'latest'}, processingTime='50 milliseconds')\nspark.q = query\n"
    )
    try:
        until(lambda: spark.run("answer = spark.q.lastProgress is not None"), "the stream's first trigger", 60)
        write(service, "a", {"data": "after"})
        write(service, "b", {"data": "new"})
        expected = [["a", 2, '"after"'], ["b", 1, '"new"']]
        until(lambda: spark.run(code + "answer = sink()") == expected, "both records in the sink", 60)
    finally:
        spark.run("spark.q.stop()")


def test_filters_that_are_pushed_down_change_nothing_but_what_is_read(service: Service, spark: Spark) -> None:
    for n in range(20):
        write(service, f"f{n % 2}", *[{"data": n, "tag": f"tag{n}", "node": f"n{n % 3}"} for _ in range(5)])
    _, diff = service.request("POST", "/v0/topics/f0/diff", {"limit": 1000})
    middle = diff["records"][25]["$ts"]
    filters = [
        "topic = 'f1'",
        "topic like 'f1%' and offset > 10",
        "offset between 7 and 12",
        "tag like 'tag1%'",
        "key = cast('tag3' as binary)",
        "tag is null",
        "node = 'n1' and not (tag = 'tag1')",
        f"timestamp >= timestamp_millis({middle})",
        f"timestamp = timestamp_millis({middle})",
        "timestamp > timestamp'2000-01-01 00:00:00'",
    ]
    select = "select topic, offset, tag, node from topics where {} order by topic, offset"
    results = []
    for enabled in ("false", "true"):
        spark.run(f"spark.conf.set('spark.sql.python.filterPushdown.enabled', '{enabled}')")
        results.append([spark.query(service.data_dir, select.format(condition)) for condition in filters])
    spark.run("spark.conf.unset('spark.sql.python.filterPushdown.enabled')")
    assert results[0] == results[1]
    assert sum(map(bool, results[0])) >= len(filters) - 2


def test_columns_that_are_not_selected_are_not_brought(service: Service, spark: Spark) -> None:
    write(service, "c", {"data": {"n": 1}, "meta": {"k": [1.0]}}, {"data": 2})
    rows = spark.run(
        f"""
        answer = []
        for reading in (
            spark.read.format("topics").schema("offset long, meta binary"),
            spark.read.format("topics").option("columns", "offset, meta"),
        ):
            frame = reading.load({str(service.data_dir)!r})
            answer.append(frame.schema.simpleString())
            answer += [[row.offset, row.meta and row.meta.decode()] for row in frame.orderBy("offset").collect()]
        """
    )
    assert rows == 2 * ["struct<offset:bigint,meta:binary>", [1, '{"k": [1.0]}'], [2, None]]
    with pytest.raises(SparkError, match="column colour string: topics has key binary"):
        spark.run(
            f"""spark.read.format("topics").schema("colour string").load({str(service.data_dir)!r}).count()""",
        )

"""Claims about Spark writing through a running service: each row is one record, once, whatever is repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import Service
from tests.support.spark import Spark, SparkError

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    session = Spark(spark__master="local[2,2]")  # a task may fail once
    yield session
    session.close()


def records(service: Service, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    position, behind = 0, True
    while behind:
        asked = {"from_seq": position, "limit": 1000, "include_tags": True}
        status, answer = service.request("POST", f"/v0/topics/{topic}/diff", asked)
        assert status == 200, answer
        found += answer["records"]
        position, behind = answer["next_from_seq"], not answer["caught_up"]
    return found


def test_columns_become_records(shared: Service, spark: Spark) -> None:
    spark.run(f"""
rows = [("columns", '{{"n": 1.0}}', "tag \\"one\\"\\n\\u0001 \\\\", None, [("k", b'[1]'), ("l", b'"x"')]),
        ("columns", ' "zwölf" ', None, "node-ä", None), ("columns", None, "", "n", []),
        ("columns:b", "1e3", "t", None, None)]
frame = spark.createDataFrame(
    rows, "topic string, value string, tag string, node string, headers array<struct<key: string, value: binary>>")
frame.coalesce(1).write.format("topics").option("url", "{shared.url}").mode("append").save()
""")
    found = records(shared, "columns")
    assert [(r["data"], r.get("$tag"), r.get("$node"), r.get("meta")) for r in found] == [
        ({"n": 1.0}, 'tag "one"\n\x01 \\', None, {"k": [1], "l": "x"}),
        ("zwölf", None, "node-ä", None),
        (None, "", "n", {}),
    ]
    assert [(r["data"], r["$tag"]) for r in records(shared, "columns:b")] == [(1000.0, "t")]


def test_strings_are_written_as_such_only_when_asked_to(shared: Service, spark: Spark) -> None:
    write = f"""
frame = spark.createDataFrame([('no "json"\\t\\\\',), ('1}},{{"data":2',)], "value string").coalesce(1)
writing = frame.write.format("topics").option("url", "{shared.url}").option("topic", "strings").mode("append")
"""
    with pytest.raises(SparkError, match=r"column value: .* is not JSON: .*valueFormat=string"):
        spark.run(write + "writing.save()")
    assert shared.request("GET", "/v0/topics/strings")[0] == 404
    spark.run(write + 'writing.option("valueFormat", "string").save()')
    assert [r["data"] for r in records(shared, "strings")] == ['no "json"\t\\', '1},{"data":2']


@pytest.mark.parametrize("value", ['1},{"data":2', '1,"tag":"x"', "[1", "", "1,2", "NaN"])
def test_no_value_can_break_out_of_its_record(shared: Service, spark: Spark, value: str) -> None:
    with pytest.raises(SparkError, match="JSON"):
        spark.run(f"""
frame = spark.createDataFrame([("1",), ({value!r},), ("2]",)][: 3 if {value!r} == "[1" else 2], "value string")
frame.coalesce(1).write.format("topics").options(url="{shared.url}", topic="broken").mode("append").save()
""")
    assert shared.request("GET", "/v0/topics/broken")[0] == 404


def test_many_rows_go_in_requests_the_service_takes(shared: Service, spark: Spark) -> None:
    spark.run(f"""
frame = spark.range(0, 25000, 1, 3).selectExpr(
    "concat('many:', id % 3) topic", "to_json(struct(id, repeat('x', 50) pad)) value", "string(id) key")
frame.write.format("topics").options(url="{shared.url}", maxRecordsPerRequest=20000).mode("append").save()
""")
    # More than TOPICS_MAX_BATCH_RECORDS per request at first: they are halved.
    ids = {n: [r["data"]["id"] for r in records(shared, f"many:{n}")] for n in range(3)}
    assert {n: sorted(found) for n, found in ids.items()} == {n: list(range(n, 25000, 3)) for n in range(3)}
    # In the order of each partition.
    for found in ids.values():
        for part in ((0, 8333), (8333, 16666), (16666, 25000)):
            within = [i for i in found if part[0] <= i < part[1]]
            assert within == sorted(within)


def test_a_run_that_is_repeated_writes_once(shared: Service, spark: Spark) -> None:
    write = f"""
frame = spark.range(0, 3000, 1, 2).selectExpr("string(id) value").repartition(3)
options = dict(url="{shared.url}", topic="repeated", maxRecordsPerRequest=100, runId="tuesday")
"""
    spark.run(write + 'frame.limit(1000).coalesce(1).write.format("topics").options(**options).mode("append").save()')
    first = shared.request("GET", "/v0/topics/repeated")[1]["head_seq"]
    spark.run(write + 'frame.limit(1000).coalesce(1).write.format("topics").options(**options).mode("append").save()')
    assert shared.request("GET", "/v0/topics/repeated")[1]["head_seq"] == first == 1000


def test_a_task_that_fails_half_way_and_is_retried_writes_once(shared: Service, spark: Spark, tmp_path: Path) -> None:
    spark.run(f"""
from pyspark import TaskContext
def trip(rows):
    first = TaskContext.get().attemptNumber() == 0
    for number, row in enumerate(rows):
        if number == 4000 and first:
            import time, urllib.request, urllib.error
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                try:
                    open("{tmp_path}/state", "w").write(
                        urllib.request.urlopen("{shared.url}/v0/topics/retried").read().decode())
                    break
                except urllib.error.HTTPError:
                    time.sleep(0.01)
            raise RuntimeError("as planned")
        yield row
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
frame = spark.range(0, 10000, 1, 2).selectExpr("to_json(struct(id, repeat('x', 500) pad)) value")
frame = frame.rdd.mapPartitions(trip).toDF("value string")
frame.write.format("topics").options(url="{shared.url}", topic="retried", maxRecordsPerRequest=70).mode("append").save()
spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
""")
    assert json.loads((tmp_path / "state").read_text())["head_seq"] > 0  # a first attempt had got somewhere
    assert sorted(r["data"]["id"] for r in records(shared, "retried")) == list(range(10000))


def test_rows_in_another_order_are_not_lost(shared: Service, spark: Spark) -> None:
    for direction in ("id", "-id"):
        spark.run(f"""
from pyspark.sql.functions import expr
frame = spark.range(200).coalesce(1).sortWithinPartitions(expr("{direction}")).selectExpr("string(id) value")
options = dict(url="{shared.url}", topic="shuffled", runId="r", maxRecordsPerRequest=64)
frame.write.format("topics").options(**options).mode("append").save()
""")
    found = [r["data"] for r in records(shared, "shuffled")]
    assert set(found) == set(range(200))


def test_a_stream_restarted_from_its_checkpoint_writes_once(shared: Service, spark: Spark, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    for name in ("a", "b"):
        (source / name).write_text("\n".join(json.dumps({"from": name, "n": n}) for n in range(500)))
    stream = f"""
query = (spark.readStream.option("maxFilesPerTrigger", 1).text("{source}").writeStream.format("topics")
    .options(url="{shared.url}", topic="streamed", maxRecordsPerRequest=64, checkpointLocation="{checkpoint}")
    .trigger(availableNow=True).start())
query.awaitTermination()
answer = query.lastProgress["batchId"]
"""
    assert spark.run(stream) == 1
    assert len(records(shared, "streamed")) == 1000
    # As if the driver had died just before it recorded the last batch as done.
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    spark.run(stream)
    found = [(r["data"]["from"], r["data"]["n"]) for r in records(shared, "streamed")]
    assert sorted(found) == [(name, n) for name in ("a", "b") for n in range(500)]


def test_a_full_topic_fails_the_write_with_the_services_words(shared: Service, spark: Spark) -> None:
    shared.request("PUT", "/v0/topics/full", {"cap_records": 10, "discard": "reject"})
    with pytest.raises(SparkError, match=r"POST http.*/v0/topics/full: 4\d\d "):
        spark.run(f"""
frame = spark.range(100).selectExpr("string(id) value")
frame.write.format("topics").options(url="{shared.url}", topic="full").mode("append").save()
""")


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ("id", {"topic": "t"}, "column id: topics takes topic, value"),
        ("'1' value", {}, "no topic: name it by"),
        ("'t' topic", {}, "no column value"),
        ("id value", {"topic": "t"}, "column value is bigint, but must be string or binary"),
        ("'1' value, array(1) headers", {"topic": "t"}, "column headers must be array<struct"),
        ("'1' value", {"topic": "t", "valueFormat": "xml"}, "valueFormat 'xml': say json"),
        ("'1' value", {"topic": "t", "maxBytesPerRequest": "0"}, "maxBytesPerRequest '0': say a whole number"),
        ("'1' value", {"topic": "t", "path": "/x"}, "topics are written through the service"),
        ("'1' value, cast(null as string) topic", {}, "a row has no topic"),
    ],
)
def test_what_cannot_be_written_is_said_in_a_sentence(
    shared: Service, spark: Spark, columns: str, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(SparkError, match=sentence.replace("<", "[<]")):
        spark.run(f"""
frame = spark.range(2).selectExpr({", ".join(map(repr, columns.split(", ")))})
frame.write.format("topics").options(url="{shared.url}", **{options!r}).mode("append").save()
""")


STARTS = {
    "read": "answer = spark.read.format('topics').options(url=url, subscribe='t').load().count()",
    "write": "answer = spark.range(2).selectExpr('\"1\" value').write.format('topics').options(url=url, topic='t')"
    ".mode('append').save()",
    **{
        f"stream, {trigger}": f"run(spark.readStream.format('topics').options(url=url, subscribe='t',"
        f" startingOffsets='earliest').load().writeStream.format('noop').trigger({trigger}))"
        for trigger in ("processingTime='1 second'", "availableNow=True")
    },
    "stream into topics": "run(spark.readStream.format('rate').load().selectExpr('\"1\" value')"
    ".writeStream.format('topics').options(url=url, topic='t'))",
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_what_starts_without_a_service_fails_within_seconds(spark: Spark, start: str, tmp_path: Path) -> None:
    """The time is of the client's own words: that of Spark around it depends on the machine."""
    program = f"""
url = "http://127.0.0.1:9"
def run(stream):
    stream.option("checkpointLocation", {str(tmp_path)!r}).start().awaitTermination()
{start}
"""
    with pytest.raises(SparkError, match=r"127\.0\.0\.1:9/v0/health: given up after \d+ attempts in 6 s"):
        spark.run(program)


def test_written_records_are_read_back_and_written_elsewhere(shared: Service, spark: Spark) -> None:
    rows = [{"data": {"n": n}, "tag": f"t{n % 3}", "node": "x", "meta": {"m": n}} for n in range(10)]
    shared.request("POST", "/v0/topics/original", {"records": rows})
    spark.run(f"""
frame = spark.read.format("topics").option("subscribe", "original").load("{shared.data_dir}").orderBy("offset")
frame.coalesce(1).write.format("topics").options(url="{shared.url}", topic="copy").mode("append").save()
""")
    found = [{name.removeprefix("$"): r[name] for name in ("data", "$tag", "$node")} for r in records(shared, "copy")]
    assert found == [{name: row[name] for name in ("data", "tag", "node")} for row in rows]


# Streaming from the service


def stream(service: Service, tmp_path: Path, *, sink: str, **options: str) -> str:
    """Return a snippet that streams all present records of the service into one of its topics. Its result is the number
    of rows of each batch."""
    return f"""
reading = spark.readStream.format("topics").options(url="{service.url}", **{options!r}).load()
query = (reading.selectExpr("value", "concat(topic, '/', offset) tag").writeStream.format("topics")
    .options(url="{service.url}", topic="{sink}", checkpointLocation="{tmp_path}/{sink}")
    .trigger(availableNow=True).start())
query.awaitTermination()
answer = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
"""


def test_a_stream_goes_on_where_it_stopped_in_batches_of_the_size_asked_for(
    shared: Service, spark: Spark, tmp_path: Path
) -> None:
    options = {"subscribePattern": "feed:.*", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "400"}
    options |= {"consumerGroup": "pipeline"}
    for topic in ("feed:a", "feed:b"):
        shared.request("POST", f"/v0/topics/{topic}", {"records": [{"data": n} for n in range(500)]})
    first = spark.run(stream(shared, tmp_path, sink="fed", **options))
    assert sum(first) == 1000
    assert max(first) <= 400
    for topic in ("feed:a", "feed:c"):
        shared.request("POST", f"/v0/topics/{topic}", {"records": [{"data": n} for n in range(100)]})
    assert sum(spark.run(stream(shared, tmp_path, sink="fed", **options))) == 200
    expected = {f"feed:{t}/{n}" for t, count in (("a", 600), ("b", 500), ("c", 100)) for n in range(1, count + 1)}
    assert sorted(r["$tag"] for r in records(shared, "fed")) == sorted(expected)
    # Spark reports a finished batch when it makes the next one, so the last batch may not have been reported.
    lags = {topic: shared.request("GET", f"/v0/topics/{topic}/cursors/pipeline")[1]["lag"] for topic in ("feed:b",)}
    assert lags == {"feed:b": 0}


def test_a_stream_that_lost_records_fails_with_their_range_until_told_to_go_on(
    shared: Service, spark: Spark, tmp_path: Path
) -> None:
    shared.request("PUT", "/v0/topics/lossy", {"cap_records": 100})
    options = {"subscribe": "lossy", "startingOffsets": "earliest"}
    shared.request("POST", "/v0/topics/lossy", {"records": [{"data": n} for n in range(50)]})
    assert sum(spark.run(stream(shared, tmp_path, sink="unlossy", **options))) == 50
    shared.request("POST", "/v0/topics/lossy", {"records": [{"data": n} for n in range(250)]})
    with pytest.raises(SparkError, match=r'topic "lossy": seq 51 to 200 \(cap\)'):
        spark.run(stream(shared, tmp_path, sink="unlossy", **options))
    assert sum(spark.run(stream(shared, tmp_path, sink="unlossy", failOnDataLoss="false", **options))) == 100
    assert len(records(shared, "unlossy")) == 150


def test_a_batch_read_of_the_service_gives_the_range_that_is_asked_for(shared: Service, spark: Spark) -> None:
    shared.request("POST", "/v0/topics/ranged", {"records": [{"data": n, "meta": {"n": n}} for n in range(100)]})
    options = {"url": shared.url, "subscribe": "ranged", "includeHeaders": "true"}
    options |= {"startingOffsets": json.dumps({"ranged": 11}), "endingOffsets": json.dumps({"ranged": {"0": 21}})}
    found = spark.run(f"""
frame = spark.read.format("topics").options(**{options!r})
answer = [[r["offset"], r["value"].decode(), r["headers"][0]["value"].decode()] for r in frame.load().collect()]
""")
    assert found == [[seq, str(seq - 1), str(seq - 1)] for seq in range(11, 21)]
    with pytest.raises(SparkError, match="its last seq is 100, so it is 101 at most"):
        spark.run(f"""
options = dict(url="{shared.url}", subscribe="ranged", endingOffsets='{{"ranged": 500}}')
spark.read.format("topics").options(**options).load().count()
""")

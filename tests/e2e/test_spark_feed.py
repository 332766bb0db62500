"""Claims about a running service as a source of streams, without Spark: reads return the stored records, or a gap."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_topics import offsets, sources
from pyspark_topics.client import Endpoint, Unavailable
from pyspark_topics.feed import Feed
from pyspark_topics.offsets import DataLoss, Position
from pyspark_topics.options import parse
from tests.support.service import Service

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("node", pa.string()),
        ("tag", pa.string()),
        ("meta", pa.binary()),
        ("gap_to", pa.int64()),
        ("gap_reason", pa.string()),
    ]
)


def feed(service: Service, *names: str, **more: str) -> Feed:
    given = {"url": service.url, "retryTimeoutMs": "5000", **({"subscribe": ",".join(names)} if names else {}), **more}
    return Feed(Endpoint.of(given), parse(given, streaming=True), SCHEMA)


def write(service: Service, topic: str, *values: Any, **more: Any) -> None:
    status, answer = service.request("POST", f"/v0/topics/{topic}", {"records": [{"data": v} for v in values], **more})
    assert status in (200, 201), answer


def everything(source: Feed, start: offsets.Offsets | None = None) -> list[dict[str, Any]]:
    parts = source.partitions(source.earliest() if start is None else start, source.latest())
    # As Spark does it: source and partitions are sent to executors.
    sent, parts = pickle.loads(pickle.dumps((source, parts)))
    return [row for part in parts for batch in sent.read(part) for row in batch.to_pylist()]


def test_records_come_with_all_they_have(shared: Service) -> None:
    more = [{"data": {"n": 1.0}, "tag": "a", "node": "x", "meta": {"k": 1}}, {"data": None}]
    shared.request("POST", "/v0/topics/all", {"records": more})
    _, diff = shared.request("POST", "/v0/topics/all/diff", {})
    first, second = everything(feed(shared, "all"))
    time = first.pop("timestamp")
    assert round(time.timestamp() * 1000) == diff["records"][0]["$ts"]
    assert first == {
        "key": b"a",
        "value": b'{"n": 1.0}',
        "topic": "all",
        "partition": None,
        "offset": 1,
        "timestampType": 1,
        "node": "x",
        "tag": "a",
        "meta": b'{"k": 1}',
        "gap_to": None,
        "gap_reason": None,
    }
    assert (second["value"], second["tag"], second["meta"]) == (b"null", None, None)


def test_a_range_is_read_to_its_end_and_no_further(shared: Service) -> None:
    for _ in range(3):
        write(shared, "long", *range(1500))
    shared.request("POST", "/v0/topics/long", {"records": [{"data": n, "tag": "gone"} for n in range(500)]})
    shared.request("POST", "/v0/topics/long/delete", {"match": "gone"})
    shared.request("POST", "/v0/topics/long/delete", {"before_seq": 11})
    source = feed(shared, "long")
    whole = source.latest()
    assert whole["long"].seq == 5001
    write(shared, "long", *range(10))
    for start, stop in ((1, 5001), (1, 2), (1, 12), (999, 1001), (1000, 3000), (4400, 4800), (4700, 5003)):
        old, new = ({"long": whole["long"]._replace(seq=seq)} for seq in (start, stop))
        parts = source.partitions(old, new)
        rows = [row["offset"] for part in parts for batch in source.read(part) for row in batch.to_pylist()]
        assert rows == [seq for seq in range(start, stop) if 11 <= seq <= 4500 or seq > 5000]


def test_topics_come_by_name_or_by_pattern_and_new_ones_are_read_from_their_first(shared: Service) -> None:
    write(shared, "by:1", 1)
    source = feed(shared, subscribePattern="by:[0-9]")
    start = source.latest()
    assert set(start) == {"by:1"}
    write(shared, "by:2", 5, 6)
    write(shared, "by", 7)
    assert [(row["topic"], row["offset"]) for row in everything(source, start)] == [("by:2", 1), ("by:2", 2)]
    assert feed(shared, "by:none").latest() == {}
    many = feed(shared, *[f"by:{n}" for n in range(100)])
    assert set(many.latest()) == {"by:1", "by:2"}


def test_what_a_cap_took_is_a_gap_with_its_exact_range(shared: Service) -> None:
    write(shared, "capped", 1, config={"cap_records": 10})
    source = feed(shared, "capped")
    start = source.latest()
    for n in range(3):
        write(shared, "capped", *range(10 * n, 10 * n + 10))
    with pytest.raises(DataLoss, match=r'topic "capped": seq 2 to 21 \(cap\)'):
        source.partitions(start, source.latest())
    lenient = feed(shared, "capped", failOnDataLoss="false")
    assert [row["offset"] for row in everything(lenient, start)] == list(range(22, 32))
    telling = feed(shared, "capped", failOnDataLoss="false", includeTombstones="true")
    gap, *rest = everything(telling, start)
    assert (gap["offset"], gap["gap_to"], gap["gap_reason"], gap["value"]) == (2, 21, "cap", None)
    assert [row["offset"] for row in rest] == list(range(22, 32))


def test_what_is_lost_between_planning_and_reading_is_a_gap_too(shared: Service) -> None:
    write(shared, "late", *range(10), config={"cap_records": 10})
    source = feed(shared, "late")
    (part,) = source.partitions({}, source.latest())
    write(shared, "late", *range(4))
    with pytest.raises(DataLoss, match=r"seq 1 to 4 \(cap\)"):
        list(source.read(part))
    write(shared, "late", *range(10))
    with pytest.raises(DataLoss, match=r"seq 1 to 10 \(cap\)"):
        list(source.read(part))
    assert list(feed(shared, "late", failOnDataLoss="false").read(part)) == []


@pytest.mark.parametrize("again", [0, 2, 5, 20])
def test_a_topic_made_anew_is_never_taken_for_the_old_one(shared: Service, again: int) -> None:
    topic = f"anew{again}"
    write(shared, topic, *range(5))
    source = feed(shared, topic)
    start = {topic: source.latest()[topic]._replace(seq=3)}
    (part,) = source.partitions(start, source.latest())
    end = source.latest()
    shared.request("DELETE", f"/v0/topics/{topic}")
    if again:
        write(shared, topic, *range(again))
    for reading in (lambda: list(source.read(part)), lambda: source.partitions(start, end)):
        with pytest.raises(DataLoss, match=rf'topic "{topic}": seq 3 .*\((recreated|deleted)\)'):
            reading()
    if again:
        with pytest.raises(DataLoss, match="recreated"):
            source.partitions(start, source.latest())
        rows = everything(feed(shared, topic, failOnDataLoss="false"), start)
        assert [row["offset"] for row in rows] == list(range(1, again + 1))


def test_progress_is_a_cursor_with_lag(shared: Service, caplog: pytest.LogCaptureFixture) -> None:
    write(shared, "progress", *range(10))
    source = feed(shared, "progress", consumerGroup="nightly")
    source.committed({"progress": Position(8, source.latest()["progress"].epoch), "gone": Position(3)})
    _, answer = shared.request("GET", "/v0/topics/progress/cursors/nightly")
    assert (answer["seq"], answer["lag"]) == (7, 3)
    assert "the cursor nightly was not moved" in caplog.text
    source.committed({"progress": Position(11)})
    assert shared.request("GET", "/v0/topics/progress/cursors/nightly")[1]["lag"] == 0


def test_the_first_seq_of_a_time_is_found(shared: Service) -> None:
    for _ in range(5):
        write(shared, "times", *range(7))
    _, diff = shared.request("POST", "/v0/topics/times/diff", {"limit": 100})
    source = feed(shared, "times")
    times = [record["$ts"] for record in diff["records"]]
    for time in {times[0] - 1, *times, times[-1] + 1}:
        assert source.since({"times": time})["times"].seq == 1 + sum(ts < time for ts in times)
    shared.request("POST", "/v0/topics/times/delete", {"before_seq": 20})
    assert source.since({"times": 0})["times"].seq == 20
    assert source.since({"nothing": 0}) == {}


def test_weights_are_what_the_service_holds(shared: Service) -> None:
    write(shared, "weight", *["x" * 100] * 50)
    source = feed(shared, "weight")
    assert source.weigh(source.earliest(), source.latest()) == {"weight": [(1, 51, 50 * (102 + 16))]}
    assert source.weigh(source.latest(), source.latest()) == {}


def test_shares_cover_what_is_unread_and_small_topics_go_together() -> None:
    unread = {"b": (5, 6), "a": (1, 101), "c": (1, 1)}
    assert offsets.shares(unread, 1000, 0) == [[("a", 1, 101), ("b", 5, 6)]]
    assert offsets.shares(unread, 60, 0) == [[("a", 1, 61)], [("a", 61, 101), ("b", 5, 6)]]
    many = offsets.shares(unread, 1000, 5)
    assert len(many) >= 5
    assert [(topic, seq) for task in many for topic, first, stop in task for seq in range(first, stop)] == [
        *(("a", seq) for seq in range(1, 101)),
        ("b", 5),
    ]
    assert len(offsets.shares(unread, 1000, 1000)) == 101
    assert offsets.shares({}, 1000, 3) == []


@pytest.mark.parametrize("way", ["url", "path"])
def test_a_batch_that_is_repeated_has_the_same_rows_in_the_same_tasks(
    new_service: Callable[..., Service], way: str
) -> None:
    """This holds whatever the service does with its files meanwhile. The writer's keys depend on it."""
    settings = {"TOPICS_CHECKPOINT_INTERVAL_MS": "3600000", "TOPICS_SEGMENT_MAX_EVENTS": "70"}
    service = new_service(**settings).start()
    for n in range(6):
        for topic in ("a", "b", "c"):
            write(service, topic, *range(20 + n))
    given = {"minPartitions": "4"} | ({"url": service.url} if way == "url" else {"path": str(service.data_dir)})

    def tasks(start: offsets.Offsets, end: offsets.Offsets) -> list[list[tuple[str, int, bytes]]]:
        source = sources.source(given, parse(given, streaming=True), SCHEMA)
        names = ("topic", "offset", "value")
        return [
            [tuple(row[name] for name in names) for batch in source.read(part) for row in batch.to_pylist()]
            for part in source.partitions(start, end)
        ]

    end = sources.positions(given).latest()
    start = {"a": end["a"]._replace(seq=31)}
    before = tasks(start, end)
    assert len(before) >= 4
    assert sum(map(len, before)) == 3 * 135 - 30
    for topic in ("a", "c", "d"):
        write(service, topic, *range(50))
    service.restart()  # this makes a checkpoint, which moves records from the log to segments
    assert list(service.data_dir.rglob("*.data"))
    assert tasks(start, end) == before


def test_a_service_that_restarts_is_waited_for(new_service: Callable[..., Service], tmp_path: Path) -> None:
    service = new_service().start()
    write(service, "t", *range(10))
    source = feed(service, "t")
    parts = source.partitions({}, source.latest())
    service.kill_group()
    with pytest.raises(Unavailable, match="See that the service runs"):
        feed(service, "t", retryTimeoutMs="200").latest()
    service.start(wait=False)
    source.endpoint = Endpoint(service.url, patience_s=60)
    assert [row["offset"] for part in parts for batch in source.read(part) for row in batch.to_pylist()] == list(
        range(1, 11)
    )

"""Rows become the same requests whatever batches they come in, and requests contain only the rows' own JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

from pyspark_topics import writer
from pyspark_topics.client import ServiceError
from pyspark_topics.writer import CannotWrite, Chunks, Plan, Written


def chunks_of(records: list[str], sizes: list[int], max_records: int, max_bytes: int) -> list[tuple[str, list[str]]]:
    """Names and records of all chunks when the records come in batches of these sizes."""
    waiting = Chunks("k", max_records, max_bytes)
    found: list[tuple[str, Any]] = []
    start = 0
    for size in [*sizes, len(records)]:
        if part := records[start : start + size]:
            waiting.add(pa.array(part, pa.string()))
            found += waiting.full()
        start += size
    found += waiting.rest()
    return [(name, chunk.to_pylist()) for name, chunk in found]


@given(
    st.lists(st.integers(1, 40).map("x".__mul__), max_size=60),
    st.lists(st.integers(1, 20), max_size=10),
    st.integers(1, 12),
    st.integers(1, 100),
)
def test_chunks_depend_on_the_rows_alone(
    records: list[str], sizes: list[int], max_records: int, max_bytes: int
) -> None:
    chunks = chunks_of(records, sizes, max_records, max_bytes)
    assert (
        chunks == chunks_of(records, [], max_records, max_bytes) == chunks_of(records, [1] * 60, max_records, max_bytes)
    )
    assert [record for _, chunk in chunks for record in chunk] == records
    assert [name for name, _ in chunks] == [f"k/{n}" for n in range(1, len(chunks) + 1)]
    for _, chunk in chunks:
        assert len(chunk) <= max_records
        assert len(chunk) == 1 or sum(map(len, chunk)) <= max_bytes


@given(st.lists(st.integers(1, 40).map("x".__mul__), min_size=1, max_size=60), st.data(), st.integers(1, 12))
def test_a_task_that_ends_early_has_sent_what_every_attempt_sends(records: list[str], data: Any, most: int) -> None:
    """A task whose rows end early has sent a prefix of its chunks."""
    cut = data.draw(st.integers(0, len(records)))
    early = Chunks("k", most, 100)
    sent: list[Any] = []
    if cut:
        early.add(pa.array(records[:cut], pa.string()))
        sent = [(name, chunk.to_pylist()) for name, chunk in early.full()]
    assert sent == chunks_of(records, [], most, 100)[: len(sent)]


class Service:
    """Accepts appends as the service does: a key stands for one write; more than `most` records are too large."""

    def __init__(self, most: int = 10_000) -> None:
        self.most = most
        self.records: dict[str, list[Any]] = {}
        self.keys: dict[tuple[str, str], int] = {}

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def append(self, topic: str, body: bytes) -> tuple[int, bool]:
        write = json.loads(body)
        known = self.keys.get((topic, write["idempotency_key"]))
        if known is not None:
            return known, True
        if len(write["records"]) > self.most:
            raise ServiceError("too many", 400, "batch_too_large")
        log = self.records.setdefault(topic, [])
        log += write["records"]
        self.keys[topic, write["idempotency_key"]] = len(write["records"])
        return len(write["records"]), False


SCHEMA = StructType([StructField(name, StringType()) for name in ("topic", "value", "tag", "node", "meta")])
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def plan(monkeypatch: pytest.MonkeyPatch, service: Service, **options: str) -> Plan:
    made = Plan.of({"url": "http://127.0.0.1:9", **options}, SCHEMA)
    monkeypatch.setattr(writer.Endpoint, "client", lambda _: service)
    return made


def batch(rows: list[tuple[Any, ...]]) -> Any:
    columns = [pa.array([row[place] for row in rows], pa.string()) for place in range(5)]
    return pa.RecordBatch.from_arrays(columns, names=SCHEMA.fieldNames())


ROWS = [(f"t{n % 3}", json.dumps({"n": n}), f"tag{n}", None, '{"m":1}') for n in range(100)]


def test_a_task_cut_off_and_repeated_writes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(most=7)
    writing = plan(monkeypatch, service, maxRecordsPerRequest="10")

    def failing() -> Iterator[Any]:
        yield batch(ROWS[:60])

    lost = writing.write(failing(), "run/0")  # the message never reaches the driver
    assert lost.records
    again = writing.write(iter([batch(ROWS[:45]), batch(ROWS[45:])]), "run/0")
    assert again.repeated == lost.records
    for _ in range(2):  # a driver that dies in its commit, and does it again
        writing.finish([again, None])
    for topic in range(3):
        assert service.records[f"t{topic}"] == [
            {"tag": tag, "meta": {"m": 1}, "data": json.loads(value)}
            for name, value, tag, _, _ in ROWS
            if name == f"t{topic}"
        ]


def test_other_runs_and_partitions_are_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    writing = plan(monkeypatch, service, topic="one")
    for run in ("a/0", "a/1", "b/0"):
        writing.finish([writing.write(iter([batch(ROWS)]), run)])
    assert len(service.records["one"]) == 300


def test_many_topics_do_not_pile_up_on_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    writing = plan(monkeypatch, service)
    monkeypatch.setattr(writer, "PENDING_BYTES", 5000)
    rows = [(f"t{n % 50}", json.dumps("x" * 100), None, None, None) for n in range(1000)]
    done = writing.write((batch(rows[start : start + 100]) for start in range(0, 1000, 100)), "run/0")
    assert sum(len(part) for _, _, part in done.rest) < 5000 + 100 * 120 + 50 * 500  # the last batch, and headers
    writing.finish([done])
    assert sum(map(len, service.records.values())) == 1000


def test_a_killed_task_with_many_topics_has_sent_nothing_that_its_retry_sends_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark ends the rows of a killed task amid an Arrow batch, as if there were no more."""
    service = Service()
    writing = plan(monkeypatch, service)
    monkeypatch.setattr(writer, "PENDING_BYTES", 5000)
    rows = [(f"t{n % 50}", json.dumps(f"{n} " + "x" * 100), None, None, None) for n in range(1000)]
    whole = [batch(rows[start : start + 100]) for start in range(0, 1000, 100)]
    killed = writing.write(iter([*whole[:4], batch(rows[400:470])]), "run/0")
    assert killed.records
    again = writing.write(iter(whole), "run/0")
    assert again.repeated == killed.records
    writing.finish([again])
    for topic in range(50):
        found = [record["data"] for record in service.records[f"t{topic}"]]
        assert found == [json.loads(row[1]) for row in rows[topic::50]]


@given(st.lists(st.tuples(st.text(), st.none() | st.text()), min_size=1, max_size=5))
def test_any_text_is_written_as_the_string_it_is(rows: list[tuple[str, str | None]]) -> None:
    made = Plan.of({"url": "http://h", "valueFormat": "string", "topic": "t"}, SCHEMA)
    records = made.records(batch([("t", value, tag, tag, None) for value, tag in rows])).to_pylist()
    expected = [{"data": value} if tag is None else {"tag": tag, "node": tag, "data": value} for value, tag in rows]
    assert [json.loads(record) for record in records] == expected


VALUES = st.sampled_from(
    ["1", '"a"', "[1]", '{"a":1}', "null", "1,2", "1]", "[1", '1,"tag":"x"', '1},{"data":2', "", '"', "\\"]
)


@given(st.lists(VALUES, min_size=1, max_size=4))
def test_what_is_written_is_one_record_a_row_or_nothing(values: list[str]) -> None:
    """The service refuses a body that is not JSON; with this check, each row becomes exactly one record."""
    made = Plan.of({"url": "http://h", "topic": "t"}, SCHEMA)
    try:
        records = made.records(batch([("t", value, None, None, None) for value in values])).to_pylist()
        sent = json.loads("[" + ",".join(records) + "]")
    except (CannotWrite, ValueError):
        return
    assert sent == [{"data": json.loads(value)} for value in values]


def test_rows_of_spark_4_0_become_batches() -> None:
    columns = {"value": StringType(), "key": BinaryType(), "headers": HEADERS}
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    rows = [Row(value=str(n), key=b"k", headers=[Row(key="a", value=b"1")]) for n in range(2500)]
    batches = list(writer._as_batches(iter(rows), schema))
    assert [len(part) for part in batches] == [1000, 1000, 500]
    made = Plan.of({"url": "http://h", "topic": "t"}, schema)
    assert made.records(batches[2]).to_pylist()[-1] == '{"tag":"k","meta":{"a":1},"data":2499}'


def test_headers_of_a_slice_are_its_own() -> None:
    schema = StructType([StructField("value", StringType()), StructField("headers", HEADERS)])
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    cells = [[("a", b"1")], None, [], [("b", b"2"), ("c", None)], [("d", b"[]")]]
    rows = pa.RecordBatch.from_arrays(
        [pa.array(["0", "1", "2", "3", "4"]), pa.array(cells, kind)], ["value", "headers"]
    )
    made = Plan.of({"url": "http://h", "topic": "t"}, schema)
    for start, stop in ((0, 5), (1, 4), (3, 5)):
        found = [json.loads(record).get("meta") for record in made.records(rows.slice(start, stop - start)).to_pylist()]
        assert found == [{"a": 1}, None, {}, {"b": 2, "c": None}, {"d": []}][start:stop]


def test_a_count_that_is_not_what_was_sent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    service.append = lambda topic, body: (1, True)  # type: ignore[method-assign]
    writing = plan(monkeypatch, service, topic="t")
    with pytest.raises(ServiceError, match=r"100 records were sent under key spark/run/0/1/[0-9a-f]{32}, 1 are there"):
        writing.finish([writing.write(iter([batch(ROWS)]), "run/0")])


def test_messages_are_small_where_rows_filled_their_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    done = plan(monkeypatch, Service(), topic="t", maxRecordsPerRequest="10").write(iter([batch(ROWS)]), "run/0")
    assert (done.records, list(accumulate(len(part) for *_, part in done.rest))[-1] < 2000) == (90, True)
    assert isinstance(done, Written)


class Task:
    """A task of a stream, as Spark describes it."""

    def __init__(self, batch: int, partition: int) -> None:
        self.properties = {"streaming.sql.batchId": str(batch), "sql.streaming.queryId": "q"}
        self.partition = partition

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)

    def partitionId(self) -> int:
        return self.partition


def test_a_new_write_asks_once_whether_the_service_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(writer.Endpoint, "reach", lambda endpoint: asked.append(endpoint.url))
    options = {"url": "http://127.0.0.1:9"}
    writer.Writer(options, SCHEMA, False)
    assert asked == ["http://127.0.0.1:9"]
    monkeypatch.setattr(writer.Endpoint, "client", lambda _: Service())
    sink = writer.StreamWriter(options, SCHEMA)
    del asked[:]
    for number in range(2):
        for partition in range(3):
            task = Task(number, partition)
            monkeypatch.setattr(writer, "_task", partial(lambda task: task, task))
            sink.write(iter([]))
        sink.commit([Written()], number)
    # One task of the first batch; work in progress waits for a service that is down.
    assert asked == ["http://127.0.0.1:9"]

"""A batch read through a service, whose answers are those of a shard in this process."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from proto.model.errors import TopicsError
from pyspark_topics.client import Diff, Endpoint, ServiceError, parse_diff
from pyspark_topics.columns import spark_schema
from pyspark_topics.datasource import ServiceReader
from pyspark_topics.offsets import DataLoss
from pyspark_topics.options import parse
from tests.support.harness import Harness

Row = tuple[int, int | None, str | None]


class Near:
    """Client of a shard in this process, and how many records its diffs asked for."""

    def __init__(self, shard: Harness) -> None:
        self.shard = shard
        self.asked: list[int] = []

    def __enter__(self) -> Near:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def diff(self, topic: str, from_seq: int, limit: int, max_bytes: int = 8 << 20, *, meta: bool = True) -> Diff:
        self.asked.append(limit)
        try:
            answer = self.shard.diff(topic, from_seq, limit=limit, include_tags=True)
            return parse_diff(topic, json.dumps(answer).encode())
        except TopicsError as error:
            raise ServiceError(str(error), code=error.code) from error

    def topic(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self.shard.call("state", name)
            return found
        except TopicsError:
            return None

    def topics(self) -> Iterator[dict[str, Any]]:
        return (self.shard.call("state", name) for name in sorted(self.shard.shard.directory.visible))


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> Near:
    made = Near(Harness())
    monkeypatch.setattr(Endpoint, "reach", lambda self: None)
    monkeypatch.setattr(Endpoint, "client", lambda self: made)
    return made


def reader(**options: str) -> ServiceReader:
    given = {"url": "http://127.0.0.1:9", **options}
    return ServiceReader(given, spark_schema(parse(given)))


def read(meanwhile: Callable[[], object] = lambda: None, **options: str) -> list[Row]:
    """Offset, end and reason of each row of a batch read. `meanwhile` is called between planning and tasks."""
    made, parts = pickle.loads(pickle.dumps(((one := reader(**options)), one.partitions())))
    meanwhile()
    rows = [row for part in parts for batch in made.read(part) for row in batch.to_pylist()]
    return [(row["offset"], row.get("gap_to"), row.get("gap_reason")) for row in rows]


def records(first: int, last: int) -> list[Row]:
    return [(seq, None, None) for seq in range(first, last + 1)]


def test_a_read_with_losses_has_them_from_the_first_seq_on_and_does_not_fail(near: Near) -> None:
    near.shard.append("t", *range(50), config={"cap_records": 10})
    assert read() == records(41, 50)
    lost: Row = (1, 40, "cap")
    for starting in ("", "earliest", '{"t": -2}'):
        assert read(includeTombstones="true", startingOffsets=starting) == [lost, *records(41, 50)]
    named = {"startingOffsets": '{"t": 31}'}
    with pytest.raises(DataLoss, match=r'topic "t": seq 31 to 40 \(cap\)'):
        read(**named)
    assert read(includeTombstones="true", **named) == [(31, 40, "cap"), *records(41, 50)]
    assert read(includeTombstones="true", startingOffsets='{"t": -1}') == []
    assert read(includeTombstones="true", endingOffsets='{"t": 11}') == [(1, 10, "cap")]
    assert read(includeTombstones="true", endingOffsets='{"t": 43}') == [lost, *records(41, 42)]
    assert read(includeTombstones="true", startingOffsets='{"t": 5}', endingOffsets='{"t": 5}') == []


def test_what_is_lost_before_a_task_reads_it_is_a_row_too(near: Near) -> None:
    near.shard.append("t", *range(50), config={"cap_records": 10})
    lost: list[Row] = [(1, 40, "cap"), (41, 44, "cap")]

    def more() -> None:
        near.shard.append("t", *range(4))

    assert read(more, includeTombstones="true") == [*lost, *records(45, 50)]
    with pytest.raises(DataLoss, match="seq 45 to 48"):
        read(more)


def test_records_before_the_first_one_cost_no_task(near: Near) -> None:
    for _ in range(10):
        near.shard.append("t", *range(100), config={"cap_records": 10})
        near.shard.append("u", *range(100))
    near.shard.call("delete_records", "u", {"before_seq": 991})
    tasks = reader(includeTombstones="true", minPartitions="10").partitions()
    assert len(tasks) == 11, "one with all losses, and those of twenty records"
    near.asked.clear()
    assert len(list(reader(includeTombstones="true").partitions())) == 2
    assert near.asked == [1, 1], "a loss is asked for without its topic's records"


def test_a_topic_that_is_deleted_while_it_is_read_is_an_error_also_where_losses_are_rows(near: Near) -> None:
    near.shard.append("t", *range(5))
    with pytest.raises(DataLoss, match=r'topic "t": seq 1 to 5 \(deleted\)'):
        read(lambda: near.shard.call("delete_topic", "t"), includeTombstones="true")
    near.shard.append("t", *range(5))
    assert read(lambda: near.shard.call("delete_topic", "t"), includeTombstones="true", failOnDataLoss="false") == []

"""A read skips what its filters exclude; measured by the files and batches that are read, not by time."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from pyspark_topics import directory, files, plan
from pyspark_topics import rows as reading
from pyspark_topics.columns import EVERYTHING, arrow_schema
from pyspark_topics.datasource import Reader
from pyspark_topics.files import FilePartition
from pyspark_topics.frames import Records
from pyspark_topics.offsets import DataLoss
from pyspark_topics.where import ALL, MAX_I64, Where, conditions
from tests.support.scene import Scene

Row = dict[str, Any]
ARROW = arrow_schema(EVERYTHING)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Two topics of 500 records, in segments of 100 in batches of 20, a second between batches, and some in the log."""
    scene = Scene(tmp_path_factory.mktemp("grown"), segment_max_events=100, cold_dir="")
    for n in range(0, 500, 20):
        for topic in ("a", "b"):
            records = [{"data": n + i, "tag": f"t{n // 100}.{i % 3}", "node": f"n{i % 2}"} for i in range(20)]
            scene.shard.call("append", topic, {"records": records})
        scene.shard.clock.advance(1000)
        if n % 100 == 80 and n < 480:
            scene.checkpoint()
    return scene


def read(scene: Scene, *filters: Filter, **options: str) -> tuple[list[Row], int, int]:
    """The rows, and the numbers of files and of batches that the tasks read."""
    reader = Reader({"path": str(scene.path), **options}, EVERYTHING)
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark looks at the rows once more"
    parts = reader.partitions()
    with mock.patch.object(reading, "Records", wraps=Records) as batches:
        rows = [row for part in parts for batch in files.read(part, ARROW) for row in batch.to_pylist()]
    return rows, sum(len(part.value) for part in parts if isinstance(part, FilePartition)), batches.call_count


def seqs(rows: list[Row]) -> list[tuple[str, int]]:
    return sorted((row["topic"], row["offset"]) for row in rows)


def test_without_filters_everything_is_read(grown: Scene) -> None:
    rows, pieces, batches = read(grown)
    assert len(rows) == 1000
    assert (pieces, batches) == (9, 18)


def test_a_range_of_seqs_skips_files_and_batches(grown: Scene) -> None:
    rows, pieces, batches = read(grown, GreaterThan(("offset",), 130), LessThanOrEqual(("offset",), 140))
    assert {seq for _, seq in seqs(rows)} <= set(range(130, 141))
    assert {seq for _, seq in seqs(rows)} >= set(range(131, 141))
    assert pieces == 2, "not the other segments of each topic, and not the log"
    assert batches == 2
    again, _, batches = read(grown, startingOffsets='{"a": 131, "b": 131}', endingOffsets='{"a": 141, "b": 141}')
    assert seqs(again) == [(topic, seq) for topic in "ab" for seq in range(131, 141)]
    assert batches == 2


def key(row: Row) -> tuple[str, int]:
    return row["topic"], row["offset"]


@pytest.fixture
def capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A topic that lost 1 to 40 of its 50 records to a cap, with tags on the records up to 45."""
    scene = Scene(tmp_path, cold_dir="")
    monkeypatch.setattr(plan, "clock_ms", lambda: scene.shard.clock.ms)
    for n in range(0, 50, 5):
        records = [{"data": n + i, **({} if n >= 45 else {"tag": "x"})} for i in range(5)]
        scene.shard.call("append", "t", {"records": records, "config": {"cap_records": 10}})
    return scene


def losses(rows: list[Row]) -> list[tuple[int, int, str]]:
    return [(row["offset"], row["gap_to"], row["gap_reason"]) for row in rows if row["gap_to"] is not None]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_filter_does_not_change_what_is_reported_as_lost(capped: Scene, checkpoint: bool) -> None:
    if checkpoint:
        capped.checkpoint()
    for filters in (
        [],
        [LessThan(("offset",), 40)],
        [GreaterThan(("offset",), 45)],
        [IsNull(("tag",))],
        [GreaterThan(("timestamp",), datetime(2099, 1, 1, tzinfo=UTC))],
    ):
        rows, _, _ = read(capped, *filters, includeTombstones="true")
        assert losses(rows) == [(1, 40, "cap")], filters


def test_a_range_of_no_seqs_has_lost_nothing(capped: Scene) -> None:
    for seq in (5, 41, 45, 51):
        bounds = {name: json.dumps({"t": seq}) for name in ("startingOffsets", "endingOffsets")}
        for more in ({}, {"includeTombstones": "true"}):
            rows, _, _ = read(capped, **bounds, **more)
            assert rows == []
    with pytest.raises(DataLoss, match=r"seq 5 to 5 \(cap\)"):
        read(capped, startingOffsets='{"t": 5}', endingOffsets='{"t": 6}')


def test_shards_that_a_filter_leaves_out_are_not_opened(grown: Scene, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 1, "shards": 3}))
    (tmp_path / "shard-00").symlink_to(grown.path)
    reader = Reader({"path": str(tmp_path)}, EVERYTHING)
    reader.pushFilters([EqualTo(("partition",), 2)])
    with mock.patch.object(directory.Shard, "snapshot", autospec=True, side_effect=directory.Shard.snapshot) as opened:
        assert reader.partitions() == []
    assert [shard.number for (shard, _), _ in opened.call_args_list] == [2]


def test_filters_that_are_not_understood_change_nothing() -> None:
    for one in (
        StringContains(("topic",), "b"),
        Not(EqualTo(("topic",), "b")),
        EqualTo(("offset",), "x"),
        EqualTo(("value",), b"1"),
        EqualTo(("headers", "key"), "k"),
        GreaterThan(("tag",), "t"),
    ):
        assert conditions([one]) == ALL


def test_conditions_hold_together_and_times_without_a_zone_leave_room() -> None:
    both = conditions([EqualTo(("offset",), 5), GreaterThan(("offset",), 3), LessThan(("offset",), 9)])
    assert (both.low, both.high) == (5, 5)
    aware = datetime(2026, 1, 1, tzinfo=UTC)
    ms = int(aware.timestamp() * 1000)
    exact = conditions([GreaterThan(("timestamp",), aware)])
    assert ms - 2 <= exact.since_ms <= ms
    loose = conditions([GreaterThan(("timestamp",), aware.replace(tzinfo=None))])
    assert loose.since_ms <= ms - 14 * 3_600_000
    assert loose.until_ms == MAX_I64
    assert conditions([In(("partition",), (1, 2)), EqualTo(("partition",), 2)]).shards == {2}
    assert not conditions([EqualTo(("topic",), "a"), EqualTo(("topic",), "b")]).topic.allows("a")
    assert Where() == ALL


def test_without_the_setting_spark_takes_the_reader_for_one_that_pushes_nothing(grown: Scene) -> None:
    from pyspark.sql.datasource import DataSourceReader

    reader = Reader({"path": str(grown.path)}, EVERYTHING)
    # The same check as in Spark's code.
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters


def test_only_the_columns_that_are_wanted_are_made(grown: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    column = Records.column
    monkeypatch.setattr(Records, "column", lambda self, place: made.append(place) or column(self, place))
    everything = Reader({"path": str(grown.path)}, EVERYTHING)
    tagged = Reader({"path": str(grown.path)}, EVERYTHING)
    tagged.pushFilters([IsNotNull(("tag",))])
    for reader, names, places in (
        (everything, ["offset", "timestamp", "topic", "partition"], set()),
        (everything, ["value", "key"], {0, 1}),
        (everything, ["meta"], {3}),
        (tagged, ["offset"], {1}),
    ):
        made.clear()
        schema = pa.schema([ARROW.field(name) for name in names])
        assert sum(batch.num_rows for part in reader.partitions() for batch in files.read(part, schema)) == 1000
        assert {*made} == places


def test_a_value_that_all_records_of_a_batch_have_is_in_each_row(tmp_path: Path) -> None:
    """Whatever the batches are that one Arrow batch joins: one value, none, several, some null, a single record."""
    scene = Scene(tmp_path, cold_dir="")
    rng = random.Random(7)
    expected = []
    for n in range(60):
        tags = rng.choice([["x"], [None], ["x", "y"], ["y", None], ["long " * 9]])
        batch = [
            {"data": [n], "tag": rng.choice(tags), "node": "n" * (n % 3) or None} for _ in range(rng.choice([1, 2, 9]))
        ]
        scene.shard.call("append", "t", {"records": [{k: v for k, v in r.items() if v is not None} for r in batch]})
        expected += [(json.dumps([n]), record["tag"], record["node"]) for record in batch]
        if n % 7 == 0:
            scene.checkpoint()
    rows, _, _ = read(scene)
    rows.sort(key=lambda row: row["offset"])
    assert [(row["value"].decode(), row["tag"], row["node"]) for row in rows] == expected
    few, _, _ = read(scene, EqualTo(("tag",), "x"))
    assert sorted(row["offset"] for row in few) == [n for n, (_, tag, _) in enumerate(expected, 1) if tag == "x"]

"""A read skips what its filters exclude; measured by counters, not by time."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from pyspark_topics import files, plan
from pyspark_topics.columns import EVERYTHING, arrow_schema
from pyspark_topics.datasource import Reader
from pyspark_topics.directory import Shard
from pyspark_topics.frames import Records
from pyspark_topics.rows import Counters
from pyspark_topics.storage import LocalFile
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


def read(scene: Scene, *filters: Filter, **options: str) -> tuple[list[Row], Counters, Reader]:
    """The rows, the counters of the tasks, and the reader, which has the counters of planning."""
    reader = Reader({"path": str(scene.path), **options}, EVERYTHING)
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark looks at the rows once more"
    tasks = Counters()
    rows = [
        row for part in reader.partitions() for batch in files.read(part, ARROW, tasks) for row in batch.to_pylist()
    ]
    return rows, tasks, reader


def seqs(rows: list[Row]) -> list[tuple[str, int]]:
    return sorted((row["topic"], row["offset"]) for row in rows)


def test_without_filters_everything_is_read(grown: Scene) -> None:
    rows, tasks, reader = read(grown)
    assert len(rows) == 1000
    assert (tasks.batches_skipped, tasks.records_withheld, reader.counters.files_skipped) == (0, 0, 0)
    assert tasks.batches_read >= 10


def test_a_range_of_seqs_skips_files_and_batches(grown: Scene) -> None:
    rows, tasks, reader = read(grown, GreaterThan(("offset",), 130), LessThanOrEqual(("offset",), 140))
    assert {seq for _, seq in seqs(rows)} <= set(range(130, 141))
    assert {seq for _, seq in seqs(rows)} >= set(range(131, 141))
    assert reader.counters.files_skipped >= 7, "all segments but one of each topic, and the log"
    assert tasks.batches_read == 2
    again, tasks, _ = read(grown, startingOffsets='{"a": 131, "b": 131}', endingOffsets='{"a": 141, "b": 141}')
    assert seqs(again) == [(topic, seq) for topic in "ab" for seq in range(131, 141)]
    assert tasks.batches_read == 2


def test_a_range_of_times_skips_batches_by_the_index(grown: Scene) -> None:
    everything, all_tasks, _ = read(grown)
    times = sorted({row["timestamp"] for row in everything})
    first, last = times[7], times[9]
    rows, tasks, _ = read(grown, GreaterThanOrEqual(("timestamp",), first), LessThan(("timestamp",), last))
    wanted = {key(row) for row in everything if first <= row["timestamp"] < last}
    got = {key(row) for row in rows}
    assert wanted <= got <= {key(row) for row in everything if first <= row["timestamp"] <= last}
    assert tasks.batches_read <= 6 < all_tasks.batches_read
    assert tasks.batches_skipped
    ms = [int(time.timestamp() * 1000) for time in (first, last)]
    rows, tasks, _ = read(grown, startingTimestamp=str(ms[0]), endingTimestamp=str(ms[1]))
    assert {key(row) for row in rows} == wanted
    assert tasks.batches_read <= 4


def key(row: Row) -> tuple[str, int]:
    return row["topic"], row["offset"]


def test_topics_that_a_filter_leaves_out_are_not_even_planned(grown: Scene) -> None:
    for condition in (EqualTo(("topic",), "b"), In(("topic",), ("b", "x")), StringStartsWith(("topic",), "b")):
        reader = Reader({"path": str(grown.path)}, EVERYTHING)
        reader.pushFilters([condition])
        pieces = [piece for part in reader.partitions() for piece in part.pieces]  # type: ignore[attr-defined]
        named = {wanted.name for piece in pieces for wanted in piece.rows.values()}
        assert named == {"b"}


def test_shards_that_a_filter_leaves_out_are_not_opened(grown: Scene, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 1, "shards": 3}))
    (tmp_path / "shard-00").symlink_to(grown.path)
    reader = Reader({"path": str(tmp_path)}, EVERYTHING)
    reader.pushFilters([EqualTo(("partition",), 2)])
    assert reader.partitions() == []
    assert reader.counters.shards_skipped == 2


def test_records_whose_tag_or_node_does_not_fit_are_not_given_to_spark(grown: Scene) -> None:
    everything, _, _ = read(grown)
    for filters, fits in (
        ([StringStartsWith(("tag",), "t3.")], lambda row: row["tag"].startswith("t3.")),
        ([EqualTo(("key",), b"t3.1")], lambda row: row["tag"] == "t3.1"),
        (
            [EqualTo(("node",), "n1"), In(("tag",), ("t0.0", "t1.0"))],
            lambda r: r["node"] == "n1" and r["tag"][1:] in ("0.0", "1.0"),
        ),
        ([IsNull(("tag",))], lambda row: False),
        ([Not(IsNull(("tag",))), IsNotNull(("node",))], lambda row: True),
    ):
        rows, tasks, _ = read(grown, *filters)
        assert seqs(rows) == seqs([row for row in everything if fits(row)])
        assert tasks.records_withheld == len(everything) - len(rows)


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


def test_columns_that_are_not_wanted_are_left_in_the_file(grown: Scene) -> None:
    reader = Reader({"path": str(grown.path)}, EVERYTHING)
    narrow = pa.schema([ARROW.field("offset")])
    sizes = {
        schema: sum(batch.nbytes for part in reader.partitions() for batch in files.read(part, schema))
        for schema in (narrow, ARROW)
    }
    assert sizes[narrow] == 8 * 1000
    assert sizes[ARROW] > 5 * sizes[narrow]


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


@pytest.mark.parametrize("least", [1, 7, 40])
def test_files_are_cut_until_there_are_enough_tasks(grown: Scene, least: int) -> None:
    reader = Reader({"path": str(grown.path), "minPartitions": str(least)}, EVERYTHING)
    parts = reader.partitions()
    assert len(parts) >= least
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert seqs(rows) == [(topic, seq) for topic in "ab" for seq in range(1, 501)]


def test_tasks_are_few_and_of_about_the_same_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files stay in order, whole, in one task each, and with their shard."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    mib = 1 << 20
    shards = [Shard(number, Path(f"shard-{number:02}")) for number in range(2)]
    sizes = [[2 * mib] * 270, [2 * mib, 60 * mib, 3 * mib, 64 * mib, 1]]
    pieces = [
        plan.Piece(shard, LocalFile(f"{shard.path}/{n}"), size, {}, 0)
        for shard, own in zip(shards, sizes, strict=True)
        for n, size in enumerate(own)
    ]
    found = plan.tasks(pieces)
    assert [piece for part in found for piece in part] == pieces
    assert all(len({piece.shard for piece in part}) == 1 for part in found)
    even = [sum(piece.end for piece in part) for part in found if part[0].shard == shards[0]]
    assert max(even) <= plan.TASK_BYTES
    assert max(even) - min(even) <= 2 * mib
    assert len(found) <= len(even) + 3
    # Few bytes are read by one task, not by one per file.
    assert len(plan.tasks(pieces[:3])) == 1


def test_an_index_that_is_missing_or_damaged_is_done_without(tmp_path: Path) -> None:
    scene = Scene(tmp_path, segment_max_events=100, cold_dir="")
    for _ in range(10):
        scene.shard.append("a", *range(10))
        scene.shard.clock.advance(1000)
    scene.checkpoint()
    expected = scene.read()
    (index,) = scene.path.rglob("*.idx")
    raw = index.read_bytes()
    for damage in (None, b"", raw[:-1], raw[:5] + bytes([raw[5] ^ 1]) + raw[6:], raw[64:], bytes(len(raw))):
        index.unlink(missing_ok=True)
        if damage is not None:
            index.write_bytes(damage)
        assert scene.read() == expected
        rows, _, _ = read(scene, GreaterThan(("offset",), 95))
        assert [seq for _, seq in seqs(rows)][-5:] == [96, 97, 98, 99, 100]

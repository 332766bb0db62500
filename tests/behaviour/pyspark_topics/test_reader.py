"""The Spark reader against files made with the server's own encoder: same records, no copies, no silent losses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from proto.format import frame as wire
from proto.format.columns import Columns, constant, optional, plain
from proto.format.frame import Kind, encode_batch, encode_map
from pyspark_topics import plan as planning
from pyspark_topics.columns import EVERYTHING as SCHEMA
from pyspark_topics.columns import arrow_schema
from pyspark_topics.datasource import Reader
from pyspark_topics.errors import CorruptFile, NotADataDirectory, UnknownFormat
from pyspark_topics.files import FilePartition
from pyspark_topics.options import BadOption, parse
from pyspark_topics.plan import plan
from pyspark_topics.rows import BATCH_ROWS


class Shard:
    """Writes a shard's log as the server does: frames end to end, numbered without gaps."""

    def __init__(self, root: Path, number: int = 0, shards: int = 1) -> None:
        root.mkdir(exist_ok=True)
        (root / "manifest.json").write_text(json.dumps({"format": 1, "shards": shards, "created_ms": 0}))
        self.root = root
        self.wal = root / f"shard-{number:02d}" / "wal"
        self.wal.mkdir(parents=True)
        self.next_no = 1
        self.rotate()

    def rotate(self, first_no: int | None = None) -> Path:
        self.next_no = first_no or self.next_no
        self.file = self.wal / f"wal-{self.next_no:020d}.log"
        self.file.touch()
        return self.file

    def add(self, frame: wire.Frame) -> bytes:
        with self.file.open("ab") as file:
            file.write(frame.head + frame.tail)
        self.next_no += 1
        return frame.head + frame.tail

    def create(self, topic_id: int, name: str) -> None:
        fields = {"name": name, "epoch": 1, "config": {"ttl_ms": 0, "priority": None, "durable": True}}
        self.add(encode_map(Kind.TOPIC_CREATE, topic_id, fields, 5, frame_no=self.next_no))

    def delete(self, topic_id: int, name: str) -> None:
        self.add(encode_map(Kind.TOPIC_DELETE, topic_id, {"name": name}, 5, frame_no=self.next_no))

    def write(
        self, topic_id: int, seq: int, values: Sequence[bytes], *, synced: int = 0, deleted: bytes | None = None
    ) -> bytes:
        batch = Columns(len(values), 1_700_000_000_123, plain(values))
        return self.add(encode_batch(batch, topic_id, seq, frame_no=self.next_no, synced_no=synced, deleted=deleted))

    def add_batch(self, batch: Columns, topic_id: int, seq: int) -> bytes:
        return self.add(encode_batch(batch, topic_id, seq, frame_no=self.next_no))


def read(root: Path, **options: str) -> list[dict[str, Any]]:
    reader = Reader({"path": str(root), **options}, SCHEMA)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def values(root: Path, **options: str) -> list[bytes]:
    return [row["value"] for row in read(root, **options)]


def test_every_column_of_every_form_comes_back(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data", number=0)
    shard.create(7, "jobs")
    shard.add_batch(
        Columns(
            3,
            [1_700_000_000_001, 1_700_000_000_002, 1_700_000_000_003],
            plain([b'{"a":1}', b"null", b'"\xc3\xa9"']),
            tag=optional([b"x", None, b"z"]),
            node=constant(b"host-1"),
            meta=optional([None, b'{"m":1}', None]),
            key=b"idempotent",
        ),
        7,
        1,
    )
    rows = read(tmp_path / "data")
    assert [row["value"] for row in rows] == [b'{"a":1}', b"null", b'"\xc3\xa9"']
    assert [row["key"] for row in rows] == [b"x", None, b"z"]
    assert [row["tag"] for row in rows] == ["x", None, "z"]
    assert [row["node"] for row in rows] == ["host-1"] * 3
    assert [row["meta"] for row in rows] == [None, b'{"m":1}', None]
    assert [row["offset"] for row in rows] == [1, 2, 3]
    assert [row["timestamp"].timestamp() for row in rows] == [1_700_000_000.001, 1_700_000_000.002, 1_700_000_000.003]
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in rows} == {("jobs", 0, 1)}


cells = st.lists(st.one_of(st.none(), st.binary(max_size=12)), min_size=1, max_size=20)


@given(st.lists(st.tuples(cells, st.booleans(), st.sampled_from([1, 2])), min_size=1, max_size=6))
def test_any_mix_of_frames_reads_as_written(tmp_path_factory: pytest.TempPathFactory, writes: list[Any]) -> None:
    shard = Shard(tmp_path_factory.mktemp("any") / "data")
    names = {1: "one", 2: "two"}
    heads = {1: 0, 2: 0}
    for topic_id, name in names.items():
        shard.create(topic_id, name)
    expected = []
    for number, (tags, own_times, topic_id) in enumerate(writes):
        count = len(tags)
        times: int | list[int] = list(range(number, number + count)) if own_times else number
        data = [f"{number}.{i}".encode() for i in range(count)]
        shard.add_batch(Columns(count, times, plain(data), tag=optional(tags)), topic_id, heads[topic_id] + 1)
        for i in range(count):
            ms = number + i if own_times else number
            expected.append((names[topic_id], heads[topic_id] + 1 + i, ms, data[i], tags[i]))
        heads[topic_id] += count
    (piece,) = plan(str(shard.root))
    got: list[Any] = []
    for batch in planning.read(piece, arrow_schema(SCHEMA)):
        batch.validate(full=False)
        times_ms = [int(value.timestamp() * 1000 + 0.5) for value in batch["timestamp"].to_pylist()]
        columns = [batch[name].to_pylist() for name in ("topic", "offset")]
        got += zip(*columns, times_ms, batch["value"].to_pylist(), batch["key"].to_pylist(), strict=True)
    assert got == expected


def test_values_of_a_large_frame_are_the_bytes_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Shard(tmp_path / "data")
    shard.create(1, "t")
    shard.write(1, 1, [b"%d" % i for i in range(BATCH_ROWS)])
    (piece,) = plan(str(shard.root))
    log = piece.open()
    monkeypatch.setattr(type(piece), "open", lambda _: log)
    (batch,) = planning.read(piece, arrow_schema(SCHEMA))
    wrapped = batch["value"].buffers()[2]
    assert log.buffer.address <= wrapped.address
    assert wrapped.address + wrapped.size <= log.buffer.address + log.buffer.size


def test_small_frames_are_joined_into_large_batches(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.create(1, "t")
    for seq in range(1, 1001, 5):
        shard.write(1, seq, [b"%d" % (seq + i) for i in range(5)])
    (piece,) = plan(str(shard.root))
    (batch,) = planning.read(piece, arrow_schema(SCHEMA))
    assert batch["offset"].to_pylist() == list(range(1, 1001))
    assert batch["value"].to_pylist() == [b"%d" % seq for seq in range(1, 1001)]


def test_one_piece_per_file_that_holds_something_wanted(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data", 0, shards=3)
    other = Shard(tmp_path / "data", 1, shards=3)  # shard 2 never started: no directory
    shard.create(1, "a")
    shard.write(1, 1, [b"1"])
    shard.rotate()
    shard.create(2, "b")
    shard.write(1, 2, [b"2"])
    shard.write(2, 1, [b"3"])
    other.create(1, "c")
    other.write(1, 1, [b"4"])
    reader = Reader({"path": str(shard.root)}, SCHEMA)
    assert len(reader.partitions()) == 2, "small files of a shard share a task"
    many = Reader({"path": str(shard.root), "minPartitions": "1"}, SCHEMA)
    assert len(many.partitions()) == 3
    assert values(shard.root) == [b"1", b"2", b"3", b"4"]
    assert [row["partition"] for row in read(shard.root)] == [0, 0, 0, 1]
    (only,) = Reader({"path": str(shard.root), "subscribe": " b ,"}, SCHEMA).partitions()
    assert isinstance(only, FilePartition)
    assert values(shard.root, subscribe="b,c") == [b"3", b"4"]
    with pytest.raises(BadOption, match='subscribe names the topic "nobody", which does not exist'):
        values(shard.root, subscribe="b,nobody")
    with pytest.raises(BadOption, match='assign names the topic "nobody"'):
        values(shard.root, assign='{"b": [0], "nobody": [0]}')
    assert values(shard.root, subscribePattern="nobody") == []
    assert values(shard.root / "shard-01") == [b"4"]


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.create(1, "t")
    shard.rotate()
    shard.write(1, 1, [b"one"])
    shard.file.unlink()
    shard.rotate()
    shard.write(1, 2, [b"two"])
    with pytest.raises(CorruptFile, match="frame 2 is damaged or missing"):
        read(shard.root)


def test_what_is_appended_after_planning_is_not_read(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.create(1, "t")
    shard.write(1, 1, [b"one"])
    reader = Reader({"path": str(shard.root)}, SCHEMA)
    (partition,) = reader.partitions()
    shard.write(1, 2, [b"two"])
    shard.create(2, "later")
    shard.write(2, 1, [b"three"])
    assert [row for batch in reader.read(partition) for row in batch["value"].to_pylist()] == [b"one"]


def test_a_newer_format_is_refused_everywhere(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.create(1, "t")
    raw = bytearray(shard.file.read_bytes())
    for place, value in ((4, 2), (5, 99)):
        changed = raw.copy()
        changed[place] = value
        end = wire.HEADER.size + int.from_bytes(raw[12:16], "little")
        changed[end : end + 8] = xxhash.xxh3_64_intdigest(changed[:end]).to_bytes(8, "little")
        shard.file.write_bytes(changed)
        with pytest.raises(UnknownFormat, match=r"byte 0: .*update pyspark_topics"):
            read(shard.root)
        with pytest.raises(UnknownFormat, match="update"):
            read(shard.root, failOnDataLoss="false")
    (shard.root / "manifest.json").write_text('{"format": 2, "shards": 1}')
    with pytest.raises(NotADataDirectory, match="format 2"):
        read(shard.root)


def test_a_path_that_is_no_data_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotADataDirectory, match="TOPICS_DATA_DIR"):
        read(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 1, "shards": 1}')
    (tmp_path / "reshard.json").write_text('{"shards": 2}')
    with pytest.raises(NotADataDirectory, match="interrupted"):
        read(tmp_path)
    with pytest.raises(ValueError, match="no path"):
        Reader({}, SCHEMA)


def test_several_directories_are_given_as_a_json_list(tmp_path: Path) -> None:
    for name in ("x", "y"):
        shard = Shard(tmp_path / name)
        shard.create(1, name)
        shard.write(1, 1, [name.encode()])
    assert parse({"Path": "[]", "paths": '["/x"]'}).paths == ("/x",)
    reader = Reader({"paths": json.dumps([str(tmp_path / "x"), str(tmp_path / "y")])}, SCHEMA)
    assert len(reader.partitions()) == 2


def test_a_selection_of_columns_is_served_and_an_unknown_one_refused() -> None:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    some = StructType([StructField("offset", LongType()), StructField("topic", StringType())])
    assert arrow_schema(some).names == ["offset", "topic"]
    with pytest.raises(ValueError, match="column offset string"):
        arrow_schema(StructType([StructField("offset", StringType())]))


def test_empty_directories_have_no_rows(tmp_path: Path) -> None:
    from pyspark.sql.datasource import InputPartition

    shard = Shard(tmp_path / "data", shards=2)
    reader = Reader({"path": str(shard.root)}, SCHEMA)
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_the_reader_needs_nothing_of_the_server() -> None:
    program = (
        "import sys, pyspark_topics; "
        "print(sorted({'proto','gateway','shardd','supervisor','cbor2','msgspec','trio','zmq'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"

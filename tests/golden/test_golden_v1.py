"""Files of format version 1, as they were written when it was released. They must be readable for ever."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from proto.frame import (
    Columns,
    Frame,
    Kind,
    check,
    constant,
    decode_batch,
    decode_map,
    encode_batch,
    encode_map,
    optional,
    plain,
)
from shardd.config import TopicConfig, as_map
from shardd.disk import RealDisk
from tests.support.harness import Harness

LOG = Path(__file__).parent / "v1" / "wal-00000000000000000001.log"
DATA = [b"1", b'{"b":1.0,"a":"\xc3\xa9"}', b"null", b'"x"']
TAGS = [b"t1", None, b"", "käse".encode()]


def frames() -> list[Frame]:
    """Every kind of frame and every encoding of a column. What this makes is what the file holds."""
    config = as_map(TopicConfig(priority=5))
    times = [1_700_000_000_001, 1_700_000_000_001, 1_700_000_000_002, 1_700_000_000_009]
    meta = optional([None, b'{"k":1}', None, b"{}"])
    return [
        encode_map(Kind.TOPIC_CREATE, 1, {"name": "golden", "epoch": 1, "config": config}, 1, frame_no=1, synced_no=0),
        encode_batch(Columns(1, 5, plain([b"true"])), 1, 1, frame_no=2, synced_no=1),
        encode_batch(
            Columns(4, times, plain(DATA), optional(TAGS), constant(b"node"), meta, b"key-1"),
            1,
            2,
            frame_no=3,
            synced_no=1,
        ),
        encode_map(Kind.TOPIC_CREATE, 2, {"name": "gone", "epoch": 2, "config": config}, 1, frame_no=4, synced_no=3),
        encode_map(Kind.TOPIC_CONFIG, 1, CONFIG_FIELDS, 2, frame_no=5, synced_no=3),
        encode_map(Kind.TOPIC_DELETE, 2, {"name": "gone"}, 3, frame_no=6, synced_no=3),
        encode_map(Kind.RESCUED, 0, {"given_up": 1}, 0, frame_no=7, synced_no=6),
    ]


CONFIG_FIELDS: dict[str, Any] = {"config": as_map(TopicConfig(priority=7)), "now": 2, "next_seq": 6}


def test_this_release_writes_the_same_bytes() -> None:
    assert b"".join(frame.head + frame.tail for frame in frames()) == LOG.read_bytes()


def test_every_frame_reads_back() -> None:
    raw = LOG.read_bytes()
    offset = 0
    kinds = []
    while offset < len(raw):
        header = check(raw, offset)
        kinds.append(header.kind)
        if header.kind != Kind.BATCH:
            assert isinstance(decode_map(raw, header, offset), dict)
        elif header.count == 4:
            batch = decode_batch(raw, header, offset)
            assert list(batch.data.cells(0, 4)) == DATA
            assert batch.tag is not None
            assert list(batch.tag.cells(0, 4)) == TAGS
            assert batch.node is not None
            assert list(batch.node.cells(0, 4)) == [b"node"] * 4
            assert batch.key == b"key-1"
        offset += header.length
    assert set(kinds) == {1, 2, 3, 4, 8}


def test_a_shard_starts_from_it(tmp_path: Path) -> None:
    wal = tmp_path / "shard-00" / "wal"
    wal.mkdir(parents=True)
    shutil.copy(LOG, wal)
    shard = Harness(RealDisk(), path=tmp_path / "shard-00")
    assert list(shard.shard.directory.visible) == ["golden"]
    records = shard.everything("golden")
    assert [r["$seq"] for r in records] == [1, 2, 3, 4, 5]
    assert records[4] == {"$seq": 5, "$ts": 1_700_000_000_009, "$node": "node", "$tag": "käse", "data": "x", "meta": {}}
    assert shard.call("state", "golden")["config"]["priority"] == 7
    assert shard.append("golden", 1)["first_seq"] == 6
    shard.shard.close()


def test_spark_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyspark_topics.frames import Head

    view = memoryview(LOG.read_bytes())
    offset = 0
    counts = []
    while offset < len(view):
        head = Head(view, offset)
        counts.append(head.count)
        offset += head.length
    assert counts == [0, 1, 4, 0, 0, 0, 0]

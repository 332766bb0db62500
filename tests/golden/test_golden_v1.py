"""Files of format version 1, as its release wrote them. Every later version must read them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from proto.format.columns import Columns, constant, optional, plain
from proto.format.frame import (
    KIND_AT,
    Frame,
    Kind,
    check,
    content_hash,
    decode_batch,
    decode_map,
    encode_batch,
    encode_map,
)
from shardd.storage.disk import RealDisk
from tests.support.harness import Harness

LOGS = sorted((Path(__file__).parent / "v1").glob("wal-*.log"))
DATA = [b"1", b'{"b":1.0,"a":"\xc3\xa9"}', b"null", b'"x"']
TAGS = [b"t1", None, b"", "käse".encode()]
CONFIG: dict[str, Any] = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": 5,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
}
NOW = 1_700_000_000_010


def first_file() -> list[Frame]:
    """Frames that make, configure and delete topics, with every encoding of a column."""
    times = [1_700_000_000_001, 1_700_000_000_001, 1_700_000_000_002, 1_700_000_000_009]
    meta = optional([None, b'{"k":1}', None, b"{}"])
    changed = {"config": CONFIG | {"priority": 7}, "now": 2, "next_seq": 6}
    return [
        encode_map(Kind.TOPIC_CREATE, 1, {"name": "golden", "epoch": 1, "config": CONFIG}, 1, frame_no=1, synced_no=0),
        encode_batch(Columns(1, 5, plain([b"true"])), 1, 1, frame_no=2, synced_no=1),
        encode_batch(
            Columns(4, times, plain(DATA), optional(TAGS), constant(b"node"), meta, b"key-1"),
            1,
            2,
            frame_no=3,
            synced_no=1,
        ),
        encode_map(Kind.TOPIC_CREATE, 2, {"name": "gone", "epoch": 2, "config": CONFIG}, 1, frame_no=4, synced_no=3),
        encode_map(Kind.TOPIC_CONFIG, 1, changed, 2, frame_no=5, synced_no=3),
        encode_map(Kind.TOPIC_DELETE, 2, {"name": "gone"}, 3, frame_no=6, synced_no=3),
        encode_map(Kind.RESCUED, 0, {"given_up": 1}, 0, frame_no=7, synced_no=6),
    ]


def second_file() -> list[Frame]:
    """Frames that delete records by seq, tag and prefix of a tag, move and delete cursors, and reserve seqs for an
    ephemeral topic."""
    tags = optional([b"a:1", b"a:2", b"b"])
    ephemeral = {"name": "brief", "epoch": 3, "config": CONFIG | {"durability": "ephemeral"}}
    by_seq = {"before": 2, "match": None, "bound": 9, "now": NOW}
    by_tag = {"before": 5, "match": ["Eq", b"t1"], "bound": 9, "now": NOW}
    by_prefix = {"before": None, "match": ["Glob", b"a:"], "bound": 8, "now": NOW}
    moved = {"name": "käse", "seq": 4, "ts": NOW, "force": False}
    back = {"name": "käse", "seq": 3, "ts": NOW + 1, "force": True}
    doomed = {"name": "gone", "seq": 1, "ts": NOW, "force": False}
    return [
        encode_batch(Columns(3, NOW, constant(b'"same"'), tags), 1, 6, frame_no=8, synced_no=6),
        encode_map(Kind.RECORD_DELETE, 1, by_seq, NOW, frame_no=9, synced_no=6),
        encode_map(Kind.RECORD_DELETE, 1, by_tag, NOW, frame_no=10, synced_no=6),
        encode_map(Kind.RECORD_DELETE, 1, by_prefix, NOW, frame_no=11, synced_no=6),
        encode_map(Kind.CURSOR, 1, moved, NOW, frame_no=12, synced_no=11),
        encode_map(Kind.CURSOR, 1, back, NOW, frame_no=13, synced_no=11),
        encode_map(Kind.CURSOR, 1, doomed, NOW, frame_no=14, synced_no=11),
        encode_map(Kind.CURSOR, 1, {"name": "gone", "seq": None}, NOW, frame_no=15, synced_no=11),
        encode_map(Kind.TOPIC_CREATE, 3, ephemeral, NOW, frame_no=16, synced_no=15),
        encode_map(Kind.CEILING, 3, {"seq": 1000}, NOW, frame_no=17, synced_no=15),
    ]


FILES = [first_file(), second_file()]
"""The content of the files, frame by frame; the files were made from it."""
LATER = {Kind.LEASE, Kind.ROUTER, Kind.SESSION, Kind.LOGDEF}
"""Kinds of frames added after these files were made."""
LIVE = [
    {"$seq": 3, "$ts": 1_700_000_000_001, "$node": "node", "data": {"b": 1.0, "a": "é"}, "meta": {"k": 1}},
    {"$seq": 4, "$ts": 1_700_000_000_002, "$node": "node", "$tag": "", "data": None},
    {"$seq": 5, "$ts": 1_700_000_000_009, "$node": "node", "$tag": "käse", "data": "x", "meta": {}},
    {"$seq": 8, "$ts": NOW, "$tag": "b", "data": "same"},
]
"""Records of topic "golden" after both files: 1 was deleted by seq, 2 by tag, 6 and 7 by prefix."""


@pytest.fixture
def shard_dir(tmp_path: Path) -> Path:
    wal = tmp_path / "shard-00" / "wal"
    wal.mkdir(parents=True)
    for path in LOGS:
        shutil.copy(path, wal)
    return wal.parent


def test_this_release_writes_the_same_bytes() -> None:
    for path, frames in zip(LOGS, FILES, strict=True):
        assert b"".join(frame.head + frame.tail for frame in frames) == path.read_bytes()


def test_every_kind_of_frame_is_there_and_reads_back() -> None:
    kinds = set()
    for path in LOGS:
        raw = path.read_bytes()
        offset = 0
        while offset < len(raw):
            header = check(raw, offset)
            kinds.add(header.kind)
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
    assert kinds == set(Kind) - LATER


def test_content_hashes_are_those_that_catalogs_have() -> None:
    batches = [frame.head for frames in FILES for frame in frames if frame.head[KIND_AT] == Kind.BATCH]
    assert list(map(content_hash, batches)) == [0x7D428C0C941E8D28, 0x72F184EB7BB56AC8, 0x93463B1275572397]


def test_a_shard_starts_from_them(shard_dir: Path) -> None:
    shard = Harness(RealDisk(), path=shard_dir)
    assert sorted(shard.shard.directory.visible) == ["brief", "golden"]
    assert shard.everything("golden") == LIVE
    state = shard.call("state", "golden")
    assert (state["config"]["priority"], state["earliest_seq"], state["head_seq"], state["count"]) == (7, 3, 8, 4)
    cursors = shard.call("cursor_list", "golden", page_size=10)
    assert [(c["cursor"], c["seq"], c["updated_ts"]) for c in cursors] == [("käse", 3, NOW + 1)]
    assert shard.append("golden", 1)["first_seq"] == 9
    assert shard.append("brief", 1)["first_seq"] > 1000, "seqs that were reserved may have been used"
    shard.shard.close()


def test_spark_reads_them(shard_dir: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyspark_topics.columns import EVERYTHING, arrow_schema
    from pyspark_topics.plan import plan, read

    schema = arrow_schema(EVERYTHING)
    rows = [row for piece in plan(str(shard_dir)) for batch in read(piece, schema) for row in batch.to_pylist()]
    found = [(row["topic"], row["offset"], json.loads(row["value"]), row["tag"], row["node"]) for row in rows]
    assert found == [("golden", r["$seq"], r["data"], r.get("$tag"), r.get("$node")) for r in LIVE]
    assert [row["meta"] for row in rows] == [b'{"k":1}', None, b"{}", None]

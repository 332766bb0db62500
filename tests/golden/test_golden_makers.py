"""Frames of cursors with their makers as they were first written. Every later version must read them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from proto.format.frame import Kind, encode_map
from shardd.storage.disk import RealDisk
from tests.golden.test_golden_v1 import CONFIG, NOW
from tests.support.harness import Harness

LOG = Path(__file__).parent / "v1_makers" / "wal-00000000000000000001.log"
MADE = {"name": "käse", "seq": 0, "ts": NOW, "force": False, "maker": bytes(range(8))}
MOVED = {"name": "käse", "seq": 0, "ts": NOW + 1, "force": True}
AGAIN = {"name": "käse", "seq": 0, "ts": NOW + 2, "force": False, "maker": b"another."}
FRAMES = [
    encode_map(Kind.TOPIC_CREATE, 1, {"name": "golden", "epoch": 1, "config": CONFIG}, 1, frame_no=1, synced_no=0),
    encode_map(Kind.CURSOR, 1, MADE, NOW, frame_no=2, synced_no=1),
    encode_map(Kind.CURSOR, 1, MOVED, NOW, frame_no=3, synced_no=1),
    encode_map(Kind.CURSOR, 1, AGAIN, NOW, frame_no=4, synced_no=1),
]


@pytest.fixture
def shard_dir(tmp_path: Path) -> Path:
    wal = tmp_path / "shard-00" / "wal"
    wal.mkdir(parents=True)
    shutil.copy(LOG, wal)
    return wal.parent


def test_this_release_writes_the_same_bytes() -> None:
    assert b"".join(frame.head + frame.tail for frame in FRAMES) == LOG.read_bytes()


def test_the_maker_is_there_after_replay_and_after_a_checkpoint(shard_dir: Path) -> None:
    shard = Harness(RealDisk(), path=shard_dir)
    for _ in range(2):
        (cursor,) = shard.shard.directory.find("golden").cursors.values()
        assert (cursor.seq, cursor.updated_ts, cursor.maker) == (0, NOW + 2, bytes(range(8)))
        shard.shard.close()
        shard = shard.restarted()
    shard.shard.close()


def test_spark_reads_a_topic_that_has_them(shard_dir: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyspark_topics.columns import EVERYTHING, arrow_schema
    from pyspark_topics.plan import plan, read

    shard = Harness(RealDisk(), path=shard_dir)
    shard.append("golden", 1, 2)
    for end in (shard.shard.checkpoint_now, shard.shard.close):
        schema = arrow_schema(EVERYTHING)
        rows = [row for piece in plan(str(shard_dir)) for batch in read(piece, schema) for row in batch.to_pylist()]
        assert [(row["topic"], row["offset"]) for row in rows] == [("golden", 1), ("golden", 2)]
        end()

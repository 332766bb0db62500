"""A definition of a Rog log as version 1 first wrote it. Every later version must read it."""

from __future__ import annotations

import shutil
from pathlib import Path

from proto.format.frame import Kind, check, encode_map
from shardd.storage.disk import RealDisk
from tests.support.harness import Harness

LOG = Path(__file__).parent / "v1_rog" / "wal-00000000000000000001.log"
FRAME = encode_map(Kind.LOGDEF, 0, {"name": "käse", "partitions": 255}, 1_700_000_000_010, frame_no=1, synced_no=0)


def test_this_release_writes_the_same_bytes() -> None:
    raw = FRAME.head + FRAME.tail
    assert raw == LOG.read_bytes()
    assert check(raw, 0).kind == 12


def test_the_log_is_there_after_replay_and_after_a_checkpoint(tmp_path: Path) -> None:
    wal = tmp_path / "shard-00" / "wal"
    wal.mkdir(parents=True)
    shutil.copy(LOG, wal)
    shard = Harness(RealDisk(), path=wal.parent)
    assert shard.call("log_find", "käse") == {"partitions": 255}
    shard.shard.close()
    assert shard.restarted().call("log_find", "käse") == {"partitions": 255}

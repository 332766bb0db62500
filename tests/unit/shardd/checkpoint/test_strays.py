"""Files that no topic knows."""

from __future__ import annotations

from tests.support.fault_disk import FaultDisk
from tests.support.many_topics import (
    shard_with,
    state,
)


def test_files_that_no_topic_knows_go_with_the_first_checkpoint() -> None:
    shard = shard_with(3)
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    folder = next(path.parent for path in disk.names if path.suffix == ".data")
    for stray in (folder / "seg-00000000000000000099.data", folder.with_name("00000000000000ff") / "seg-1.idx"):
        disk.make_dir(stray.parent)
        disk.create(stray)
        again = shard.restarted()
        assert stray in disk.names
        again.append("t1", 1)
        again.shard.checkpoint_now()
        assert stray not in disk.names
        assert state(again.restarted()) == state(again)

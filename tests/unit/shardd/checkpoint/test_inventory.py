"""The files that a shard has."""

from __future__ import annotations

from tests.support.fault_disk import FaultDisk
from tests.support.many_topics import (
    break_file,
    various,
)


def test_the_first_checkpoint_notices_files_that_are_missing() -> None:
    disk = FaultDisk()
    shard = various(disk, 3)
    folder = f"{shard.shard.directory.find('t1').id:016x}"
    for path in [path for path in disk.names if path.parent.name == folder]:
        break_file(disk, path, "missing")
    again = shard.restarted()
    again.shard.checkpoint_now()
    assert again.call("state", "t1")["quarantined"]["reason"] == "damaged"
    assert len(again.shard.quarantine) == 1

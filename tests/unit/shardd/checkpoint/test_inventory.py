"""The files that a shard has."""

from __future__ import annotations

import pytest

from shardd.offline.verify import verify
from shardd.recovery.wal_scan import RecoveryError
from tests.support.fault_disk import FaultDisk
from tests.support.many_topics import (
    break_file,
    shard_with,
    state,
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


def test_a_file_in_place_of_a_folder_is_set_apart_like_others_that_no_topic_has() -> None:
    shard = shard_with(3)
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    path = shard.path / "topics" / "00000000000000ff"
    disk.create(path).close()
    report = verify(disk, shard.path, shard.clock, shard.limits)
    assert [each for each in report.problems if str(path) in each] == report.problems != []
    again = shard.restarted()
    again.append("t1", 1)
    again.shard.checkpoint_now()
    assert path not in disk.names
    assert again.shard.checkpoints.inventory.lost() == [shard.path / "lost+found" / "topics" / "00000000000000ff.1"]
    assert state(again.restarted()) == state(again)


def test_a_file_in_place_of_a_folder_is_no_sign_of_an_empty_shard() -> None:
    shard = shard_with(0)
    disk = FaultDisk()
    disk.make_dir(shard.path / "topics")
    disk.create(shard.path / "topics" / "00000000000000ff").close()
    with pytest.raises(RecoveryError, match="no catalog and no log"):
        shard.restarted(disk)

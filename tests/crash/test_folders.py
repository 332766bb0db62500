"""Claims about folders: those that a shard makes exist after a power cut, with all acknowledged data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.fault_disk import Crash, FaultDisk
from tests.support.harness import Harness

LIMITS: dict[str, Any] = {"cache_bytes": 0, "segment_max_events": 2, "cold_dir": "/cold", "hot_retain_segments": 0}


def _run(disk: FaultDisk, acknowledged: list[int]) -> None:
    shard = Harness(disk, **LIMITS)
    for number in range(6):
        shard.append("a", number, config={"durability": "fsync"})
        acknowledged.append(number)
        if number % 2:
            shard.shard.checkpoint_now()


def test_a_folder_that_was_not_synced_vanishes_with_the_power() -> None:
    disk = FaultDisk()
    folder = Path("/data/folder")
    disk.make_dir(folder)
    file = disk.create(folder / "file")
    file.write([b"1"])
    file.sync()
    disk.sync_dir(folder)
    assert not disk.after_crash("drop").names
    disk.sync_dir(folder.parent)
    assert set(disk.after_crash("drop").names) == {folder / "file"}


def test_what_was_acknowledged_on_a_fresh_disk_survives_a_power_cut_at_every_call() -> None:
    whole = FaultDisk()
    _run(whole, [])
    assert ("make_dir", "wal") in whole.calls
    for crash_at in range(len(whole.calls) + 1):
        disk, acknowledged = FaultDisk(), list[int]()
        disk.crash_at = crash_at
        try:
            _run(disk, acknowledged)
        except Crash:
            pass
        again = Harness(disk.after_crash("drop"), **LIMITS)
        found = [r["data"] for r in again.everything("a")] if "a" in again.shard.directory.visible else []
        assert found[: len(acknowledged)] == acknowledged, f"power cut before call {crash_at}"


@pytest.mark.parametrize("killed_at", range(4))
def test_a_start_makes_durable_what_a_killed_one_has_only_made(killed_at: int) -> None:
    disk = FaultDisk()
    disk.crash_at = killed_at
    try:
        Harness(disk)
    except Crash:
        pass
    later = Harness(disk.after_crash("process"))
    later.append("a", "kept", config={"durability": "fsync"})
    assert isinstance(later.disk, FaultDisk)
    again = Harness(later.disk.after_crash("drop"))
    assert [r["data"] for r in again.everything("a")] == ["kept"]

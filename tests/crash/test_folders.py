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


def test_a_folder_that_was_removed_is_back_after_a_power_cut_until_its_parent_is_synced() -> None:
    disk = FaultDisk()
    folder = Path("/data/folder")
    disk.make_dir(folder)
    disk.create(folder / "file").close()
    with pytest.raises(OSError, match="not empty"):
        disk.remove_dir(folder)
    disk.sync_dir(folder)
    disk.sync_dir(folder.parent)
    disk.remove(folder / "file")
    disk.remove_dir(folder)
    assert disk.list(folder.parent) == []
    with pytest.raises(FileNotFoundError):
        disk.create(folder / "file")
    assert set(disk.after_crash("process").after_crash("drop").names) == {folder / "file"}
    disk.sync_dir(folder.parent)
    assert disk.after_crash("drop").list(folder.parent) == []


def _checkpoints(shard: Harness, count: int = 3) -> None:
    """The first one makes files that no topic needs, or finds them; those after it remove them."""
    for _ in range(count):
        shard.shard.commits.sync_now()
        shard.shard.checkpoint_now()


def test_segments_that_a_checkpoint_fills_move_to_the_cold_folder_though_their_topic_is_idle() -> None:
    disk = FaultDisk()
    shard = Harness(disk, **LIMITS, hot_retain_bytes=0)
    shard.append("idle", 0, 1, 2, 3)
    _checkpoints(shard, 1)
    ident = f"{shard.shard.directory.find('idle').id:016x}"
    for number in range(3):
        shard.append("busy", number)
        _checkpoints(shard, 1)
    tops = [shard.path / "topics", Path("/cold") / shard.path.name / "topics"]
    assert [len(disk.list(top / ident)) for top in tops] == [0, 2]
    assert [r["data"] for r in shard.restarted().everything("idle")] == [0, 1, 2, 3]
    plan = shard.shard.control.begin()
    assert "idle" not in {each.topic.name for each in plan.topics}


ALL: dict[str, Any] = {"before_seq": 1000}


@pytest.mark.parametrize("deletes", [True, False], ids=["topic", "its records"])
def test_no_folder_is_left_of_a_topic_without_files_in_either_tier(deletes: bool) -> None:
    disk = FaultDisk()
    shard = Harness(disk, **LIMITS)
    tops = [shard.path / "topics", Path("/cold") / shard.path.name / "topics"]
    for number in range(6):
        shard.append("a", number, config={"durability": "fsync"})
        shard.shard.checkpoint_now()
    shard.append("a", 6)
    _checkpoints(shard, 1)
    assert all(disk.list(top) for top in tops)
    shard.call(*("delete_topic", "a") if deletes else ("delete_records", "a", ALL))
    _checkpoints(shard)
    assert [disk.list(top) for top in tops] == [[], []]
    _written_again(shard)


def test_the_first_checkpoint_removes_folders_that_an_earlier_process_left_empty() -> None:
    disk = FaultDisk()
    shard = Harness(disk, **LIMITS)
    tops = [shard.path / "topics", Path("/cold") / shard.path.name / "topics"]
    shard.append("a", 1, 2, config={"durability": "fsync"})
    _checkpoints(shard, 1)
    for top in tops:
        disk.make_dir(top / f"{77:016x}")
        disk.make_dir(top / "of an operator")
    shard = shard.restarted()
    _checkpoints(shard, 1)
    assert [disk.list(top) for top in tops] == [[f"{1:016x}", "of an operator"]] * 2
    assert [r["data"] for r in shard.restarted().everything("a")] == [1, 2]


def _written_again(shard: Harness) -> None:
    """What is written next is in the folders that are made again, also when the power is cut."""
    acknowledged = list(range(10, 16))
    for number in acknowledged:
        shard.append("a", number, config={"durability": "fsync"})
        shard.shard.checkpoint_now()
    assert isinstance(shard.disk, FaultDisk)
    for survival in ("process", "drop"):
        again = shard.restarted(shard.disk.after_crash(survival))  # type: ignore[arg-type]
        assert [r["data"] for r in again.everything("a")] == acknowledged


def _emptied_and_written(disk: FaultDisk, acknowledged: list[int], gone: set[int]) -> None:
    shard = Harness(disk, **LIMITS)
    for number in range(9):
        shard.append("a", number, config={"durability": "fsync"})
        acknowledged.append(number)
        if number % 3 == 2:
            shard.shard.checkpoint_now()
            acknowledged.clear()  # before the deletion: a power cut meanwhile may leave them or not
            shard.call("delete_records", "a", ALL)
            gone.update(range(number + 1))
            _checkpoints(shard)


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
def test_a_power_cut_while_folders_are_removed_and_made_again_loses_nothing(survival: str) -> None:
    whole = FaultDisk()
    _emptied_and_written(whole, [], set())
    assert sum(what == "remove_dir" and ("make_dir", name) in whole.calls for what, name in whole.calls) > 2
    for crash_at in range(len(whole.calls) + 1):
        disk, acknowledged, gone = FaultDisk(), list[int](), set[int]()
        disk.crash_at = crash_at
        try:
            _emptied_and_written(disk, acknowledged, gone)
        except Crash:
            pass
        again = Harness(disk.after_crash(survival), **LIMITS)  # type: ignore[arg-type]
        found = [r["data"] for r in again.everything("a")] if "a" in again.shard.directory.visible else []
        assert set(acknowledged) <= set(found), f"power cut before call {crash_at}"
        assert gone.isdisjoint(found), f"power cut before call {crash_at}"
        again.append("a", 99, config={"durability": "fsync"})
        again.shard.checkpoint_now()
        assert isinstance(again.disk, FaultDisk)
        later = again.restarted(again.disk.after_crash("drop"))
        assert [r["data"] for r in later.everything("a")] == [*found, 99], f"power cut before call {crash_at}"


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

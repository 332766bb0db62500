"""Files that are set apart: none is written over, and the move is durable."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.storage.lost import lost, set_apart
from tests.support.fault_disk import Crash, FaultDisk

BASE = Path("/data/shard-00")


def shard(*names: str) -> FaultDisk:
    disk = FaultDisk()
    for name in names:
        path = BASE / name
        disk.make_dir(path.parent)
        file = disk.create(path)
        file.write([name.encode()])
        file.sync()
        file.close()
        for folder in (path.parent, *path.parent.parents):
            disk.sync_dir(folder)
    return disk


@pytest.mark.parametrize("name", ["catalog-1.cbor", "wal/wal-1.log", "topics/0001/seg-1.data", "topics/0001/README"])
def test_a_file_is_found_under_the_name_that_it_had(name: str) -> None:
    disk = shard(name)
    target = set_apart(disk, BASE, BASE / name)
    assert target == BASE / "lost+found" / name
    assert lost(disk, BASE) == [target]
    assert bytes(disk.read(target)) == name.encode()
    found = disk.after_crash("drop")
    assert lost(found, BASE) == [target], "the move survives the death of the machine"
    assert BASE / name not in found.names


def test_a_name_that_is_taken_gets_a_number() -> None:
    disk = shard("wal/wal-1.log")
    for number in range(3):
        if number:
            disk.create(BASE / "wal/wal-1.log").close()
        set_apart(disk, BASE, BASE / "wal/wal-1.log")
    assert sorted(path.name for path in lost(disk, BASE)) == ["wal-1.log", "wal-1.log.1", "wal-1.log.2"]
    assert bytes(disk.read(BASE / "lost+found/wal/wal-1.log")) == b"wal/wal-1.log"


def test_a_file_in_place_of_a_topics_folder_leaves_that_folder_its_name() -> None:
    disk = shard("topics/00000000000000ff")
    first = set_apart(disk, BASE, BASE / "topics/00000000000000ff")
    disk.make_dir(BASE / "topics/00000000000000ff")
    disk.create(BASE / "topics/00000000000000ff/seg-1.data").close()
    second = set_apart(disk, BASE, BASE / "topics/00000000000000ff/seg-1.data")
    assert sorted(lost(disk, BASE)) == sorted([first, second])


@pytest.mark.parametrize("survival", ["process", "drop"])
def test_a_death_at_any_step_leaves_the_file_in_one_of_the_two_places(survival: str) -> None:
    name = "topics/0001/seg-1.data"
    for at in range(100):
        disk = shard(name)
        disk.crash_at = len(disk.calls) + at
        try:
            set_apart(disk, BASE, BASE / name)
        except Crash:
            found = disk.after_crash(survival)  # type: ignore[arg-type]
            places = [path for path in (BASE / name, BASE / "lost+found" / name) if path in found.names]
            assert places, at
            assert all(bytes(found.read(path)) == name.encode() for path in places)
        else:
            assert at > 3
            return
    raise AssertionError("it never ends")


def test_a_shard_without_such_files_has_none() -> None:
    assert lost(shard("wal/wal-1.log"), BASE) == []

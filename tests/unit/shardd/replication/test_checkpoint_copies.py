"""Copies of checkpoints: which files are uploaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.offline.verify import verify
from shardd.replication import checkpoint_copies
from tests.support.bucket import MemoryStore
from tests.support.fault_disk import FaultDisk
from tests.support.harness import SHARD
from tests.support.shipped import SMALL, Shipped, contents, restored


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_copies, "FIRST_PAUSE", 0.0)


@pytest.fixture
def shard() -> Shipped:
    return Shipped(MemoryStore(), **SMALL).attach()


def sound(of: Shipped, disk: FaultDisk) -> None:
    report = verify(disk, SHARD, of.clock, of.limits)
    assert report.problems == []
    assert report.notes == []


def test_a_checkpoint_is_copied_with_new_files_only(shard: Shipped) -> None:
    for number in range(50):
        shard.append("a", "x" * 100, number)
    shard.append("b", 1)
    shard.sync()
    shard.shard.checkpoint_now()
    first = shard.copy()
    shard.append("b", 2)
    shard.sync()
    shard.shard.checkpoint_now()
    assert shard.copy() < first / 4
    other = restored(shard)
    assert contents(other) == contents(shard)
    assert isinstance(other.disk, FaultDisk)
    sound(shard, other.disk)


def test_a_start_goes_on_with_the_files_of_the_last_manifest(shard: Shipped) -> None:
    for number in range(50):
        shard.append("a", "x" * 100, number)
    shard.sync()
    shard.shard.checkpoint_now()
    first = shard.copy()
    again = shard.again().attach()
    again.append("b", 1)
    again.sync()
    again.shard.checkpoint_now()
    assert again.copy() < first / 4
    assert contents(restored(again)) == contents(again)


def test_files_changed_by_later_checkpoints_are_uploaded_again(shard: Shipped) -> None:
    for number in range(50):
        shard.append("a", number, tag=f"t{number % 3}")
    shard.sync()
    shard.shard.checkpoint_now()
    reads = 0
    read_part = shard.disk.read_part

    def reading(path: Path, offset: int, size: int) -> bytes:
        nonlocal reads
        if path.suffix == ".data":
            reads += 1
            if reads == 1:  # deletions reach the file while it is read
                shard.call("delete_records", "a", {"match": ["tag", "Eq", "t1"]})
                shard.sync()
                for _ in range(3):
                    shard.append("b", 1)
                    shard.sync()
                    shard.shard.checkpoint_now()
        return read_part(path, offset, size)

    shard.disk.read_part = reading  # type: ignore[method-assign]
    shard.copy()
    assert reads > 2
    other = restored(shard)
    assert contents(other) == contents(shard)
    assert isinstance(other.disk, FaultDisk)
    sound(shard, other.disk)

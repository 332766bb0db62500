"""Seqs that are given up after a takeover: none that the machine before may have given names another record here."""

from __future__ import annotations

import pytest

from shardd.changes.seq_reservation import TAKEOVER
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness


def taken_over(shard: Harness) -> list[bool]:
    done: list[bool] = []
    shard.shard.restoring.give_seqs_up(lambda: done.append(True))
    return done


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("how", ["process", "drop"])
def test_the_next_seqs_stay_unused_in_every_class_and_after_every_stop(durability: str, how: str) -> None:
    shard = Harness()
    shard.call("configure", "a", {"durability": durability})
    shard.append("a", 1, 2)
    shard.shard.commits.sync_now()
    again = shard.restarted()
    assert taken_over(again) == [True]
    assert isinstance(again.disk, FaultDisk)
    later = again.restarted(again.disk.after_crash(how))  # type: ignore[arg-type]
    first = later.append("a", 3)["first_seq"]
    assert first > 2 + TAKEOVER
    assert [record["data"] for record in later.everything("a")] == ([3] if durability == "ephemeral" else [1, 2, 3])
    once_more = later.restarted()
    assert once_more.append("a", 4)["first_seq"] > first


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_what_is_written_at_once_is_there_after_a_checkpoint_and_without_one(durability: str) -> None:
    shard = Harness()
    shard.call("configure", "a", {"durability": durability})
    shard.append("a", 1)
    shard.shard.commits.sync_now()
    again = shard.restarted()
    taken_over(again)
    first = again.append("a", 2)["first_seq"]
    assert first > 1 + TAKEOVER
    again.shard.commits.sync_now()
    again.shard.checkpoint_now()
    assert again.append("a", 3)["first_seq"] == first + 1
    again.shard.commits.sync_now()
    if durability != "ephemeral":
        seqs = [record["$seq"] for record in again.restarted().everything("a")]
        assert seqs == [1, first, first + 1]


def test_a_log_that_cannot_be_synced_is_no_start() -> None:
    shard = Harness()
    shard.append("a", 1)
    shard.shard.commits.sync_now()
    again = shard.restarted()
    assert isinstance(again.disk, FaultDisk)
    for at in range(len(again.disk.calls), len(again.disk.calls) + 8):
        again.disk.faults[at] = OSError(5, "the device failed")
    with pytest.raises(OSError, match=r"could not be synced|device failed"):
        taken_over(again)

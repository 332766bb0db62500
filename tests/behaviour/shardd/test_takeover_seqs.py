"""Seqs that are given up after a takeover: none that the machine before may have given names another record here."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.changes.seq_reservation import TAKEOVER
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness


def taken_over(shard: Harness) -> list[bool]:
    done: list[bool] = []
    shard.shard.restoring.give_seqs_up(lambda: done.append(True))
    return done


def checkpoint(shard: Harness) -> None:
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()


def without(disk: FaultDisk, folder: Path) -> FaultDisk:
    """The disk after the end of the process, without the files of a topic."""
    after = disk.after_crash("process")
    after.names = {path: node for path, node in after.names.items() if path.parent != folder}
    return after


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


def test_a_topic_whose_files_are_not_there_gives_its_seqs_up_at_the_start_after_they_are_back() -> None:
    shard = Harness()
    for data in (1, 2):  # the latter is in the log only, so that the start needs the files
        for topic in ("a", "b"):
            shard.append(topic, data, config={"durability": "fsync"})
        if data == 1:
            checkpoint(shard)
    shard.shard.commits.sync_now()
    assert isinstance(shard.disk, FaultDisk)
    folder = shard.shard.directory.visible["a"].segments[0].directory
    again = shard.restarted(without(shard.disk, folder))
    assert isinstance(again.disk, FaultDisk)
    assert taken_over(again) == [], "a has not given any up"
    assert again.append("b", 3)["first_seq"] > TAKEOVER
    again.disk.names |= {path: node for path, node in shard.disk.names.items() if path.parent == folder}
    again.clock.advance(61_000)
    error = again.reply("append", "a", {"records": [{"data": 3}]}).error
    assert error is not None
    assert (error.detail or {})["reason"] == "damaged", "another machine may have given its next seqs"
    last = again.restarted()
    assert taken_over(last) == [True]
    for topic in ("a", "b"):
        assert last.append(topic, 4)["first_seq"] > 2 + TAKEOVER
    assert [record["data"] for record in last.everything("a")] == [1, 2, 4]
    assert [record["data"] for record in last.everything("b")] == [1, 2, 3, 4]


def test_a_topic_that_is_deleted_while_its_files_are_not_there_owes_nothing_to_the_next_start() -> None:
    shard = Harness()
    shard.append("a", 1, config={"durability": "fsync"})
    checkpoint(shard)
    shard.append("a", 2)
    shard.shard.commits.sync_now()
    assert isinstance(shard.disk, FaultDisk)
    folder = shard.shard.directory.visible["a"].segments[0].directory
    again = shard.restarted(without(shard.disk, folder))
    assert taken_over(again) == []
    again.call("delete_topic", "a")
    assert taken_over(again.restarted()) == [True]


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

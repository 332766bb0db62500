"""A seq is given to one record only, whatever stops and is lost with it (except in class `memory`)."""

from __future__ import annotations

from typing import Any

import pytest

from shardd.changes.seq_reservation import BLOCK, FIRST_BLOCK
from tests.support.fault_disk import FaultDisk, Survival
from tests.support.harness import Harness


def stopped(shard: Harness, survival: Survival) -> Harness:
    assert isinstance(shard.disk, FaultDisk)
    return shard.restarted(shard.disk.after_crash(survival))


def create(shard: Harness, durability: str) -> None:
    shard.call("configure", "a", {"durability": durability})
    shard.shard.commits.sync_now()


def unsynced(shard: Harness, *data: Any) -> int:
    """Makes an acknowledged write that no sync follows. Returns its last seq."""
    sent = shard.send("append", "a", {"records": [{"data": d} for d in data]})
    shard.shard.flush()
    reply: Any = shard.replies[sent]
    assert reply.error is None
    return shard.shard.directory.visible["a"].records.head_seq


def head(shard: Harness) -> int:
    return int(shard.call("state", "a")["head_seq"])


def test_what_the_machine_took_is_not_given_again() -> None:
    shard = Harness()
    create(shard, "disk")
    shard.append("a", "kept")
    shard.shard.commits.sync_now()
    acked = unsynced(shard, "lost", "lost")
    again = stopped(shard, "drop")
    assert again.diff("a")["records"][-1]["data"] == "kept"
    first = again.append("a", "next")["first_seq"]
    assert acked < first <= BLOCK + 1
    assert again.diff("a", acked)["records"][0]["data"] == "next"


@pytest.mark.parametrize("between", ["nothing", "checkpoint", "configure", "process", "drop"])
def test_the_jump_stays(between: str) -> None:
    """Readers have seen the head, so it never goes back, whatever happens before the next write."""
    shard = Harness()
    create(shard, "disk")
    unsynced(shard, 1)
    shard = stopped(shard, "drop")
    jumped = head(shard)
    if between == "checkpoint":
        shard.shard.commits.sync_now()
        shard.shard.checkpoint_now()
    elif between == "configure":
        shard.call("configure", "a", {"priority": 7})
    elif between != "nothing":
        shard = stopped(shard, between)  # type: ignore[arg-type]
    assert head(stopped(shard, "process")) == jumped
    assert head(stopped(shard, "drop")) == jumped
    assert shard.append("a", 2)["first_seq"] == jumped + 1
    again = stopped(shard, "process")
    assert [record["$seq"] for record in again.diff("a")["records"]] == [jumped + 1]


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory"])
def test_a_process_that_dies_leaves_no_hole(durability: str) -> None:
    shard = Harness()
    create(shard, durability)
    shard.append("a", 1, 2)
    again = stopped(shard, "process")
    assert again.append("a", 3)["first_seq"] == 3


@pytest.mark.parametrize("how", ["closed", "idle"])
def test_where_everything_is_synced_the_machine_leaves_no_hole(how: str) -> None:
    """After an orderly stop, or without writes since a checkpoint."""
    shard = Harness()
    create(shard, "disk")
    shard.append("a", 1, 2)
    if how == "closed":
        shard.shard.close()
    else:
        shard.shard.commits.sync_now()
        shard.shard.checkpoint_now()
    again = stopped(shard, "drop")
    assert again.append("a", 3)["first_seq"] == 3


def test_fsync_leaves_no_hole() -> None:
    shard = Harness()
    create(shard, "fsync")
    shard.append("a", 1, 2)
    assert stopped(shard, "drop").append("a", 3)["first_seq"] == 3


def test_after_leaving_disk_there_is_nothing_to_jump_over() -> None:
    shard = Harness()
    create(shard, "disk")
    shard.append("a", 1, 2)
    shard.call("configure", "a", {"durability": "fsync"})
    assert stopped(shard, "drop").append("a", 3)["first_seq"] == 3


def test_a_topic_reserves_ahead_without_keeping_anyone_waiting() -> None:
    shard = Harness(max_batch_records=BLOCK)
    create(shard, "disk")
    seqs = 0
    for _ in range(12):
        seqs = unsynced(shard, *range(BLOCK // 4))  # answered without a sync
        shard.shard.commits.sync_now()
    assert seqs == 3 * BLOCK
    unsynced(shard, 1)
    again = stopped(shard, "drop")
    assert again.append("a", 1)["first_seq"] > seqs + 1


def test_a_write_beyond_what_is_reserved_waits_for_its_reservation() -> None:
    shard = Harness(max_batch_records=2 * BLOCK)
    create(shard, "disk")
    sent = shard.send("append", "a", {"records": [{"data": 0}] * (BLOCK + 1)})
    shard.shard.flush()
    assert sent not in shard.replies
    shard.shard.commits.sync_now()
    assert sent in shard.replies


def test_a_reservation_that_fails_is_made_again() -> None:
    shard = Harness()
    create(shard, "disk")
    shard.append("a", 1)
    again = stopped(shard, "drop")
    disk = again.disk
    assert isinstance(disk, FaultDisk)
    disk.fail["write"] = OSError(28, "full")
    assert again.reply("append", "a", {"records": [{"data": 1}]}).error is not None
    disk.fail.clear()
    first = again.append("a", 2)["first_seq"]
    acked = unsynced(again, 3)
    assert acked == first + 1
    assert stopped(again, "drop").append("a", 4)["first_seq"] > acked


def test_a_crash_reports_no_more_lost_than_a_small_topic_can_have_had() -> None:
    shard = Harness()
    shard.call("configure", "e", {"durability": "ephemeral"})
    shard.append("e", 1, 2)
    after = stopped(shard, "process")
    assert 2 <= after.call("state", "e")["head_seq"] <= 2 + FIRST_BLOCK
    tombstone = after.diff("e")["tombstone"]
    assert tombstone["cause"] == "restart"
    assert 2 <= tombstone["missed_estimate"] <= 2 + FIRST_BLOCK
    assert after.append("e", 3)["first_seq"] > 2


def test_the_blocks_of_a_busy_ephemeral_topic_grow_until_syncs_are_rare() -> None:
    shard = Harness(max_batch_records=1000)
    shard.call("configure", "e", {"durability": "ephemeral"})
    topic = shard.shard.directory.find("e")
    ceilings = set()
    for _ in range(300):
        shard.append("e", *range(1000))
        ceilings.add(topic.position.ceiling)
    assert topic.position.block == BLOCK
    assert len(ceilings) <= 14

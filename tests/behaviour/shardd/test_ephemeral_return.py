"""Claims about a topic that is ephemeral for a while: records acknowledged under another class survive every stop."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness

WAYS = ["stop", "kill", "checkpoint and kill"]


def restarted(shard: Harness, how: str) -> Harness:
    if how == "stop":
        shard.shard.close()
        return shard.restarted()
    if how == "checkpoint and kill":
        shard.shard.commits.sync_now()
        shard.shard.checkpoint_now()
    assert isinstance(shard.disk, FaultDisk)
    return shard.restarted(shard.disk.after_crash("process"))


def put(shard: Harness, durability: str, **fields: Any) -> None:
    shard.call("configure", "c", {"durability": durability, **fields})


def seqs(shard: Harness) -> list[int]:
    return [record["$seq"] for record in shard.everything("c")]


def head(shard: Harness) -> int:
    return int(shard.call("state", "c")["head_seq"])


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("first", ["disk", "fsync", "memory"])
def test_what_was_acknowledged_under_another_class_stays_over_restarts(how: str, first: str) -> None:
    shard = Harness()
    put(shard, first)
    shard.append("c", 1, 2, 3)
    put(shard, "ephemeral")
    shard.append("c", 4, 5)
    for _ in range(3):
        shard = restarted(shard, how)
        assert [record["data"] for record in shard.everything("c")] == [1, 2, 3]
        state = shard.call("state", "c")
        assert (state["earliest_seq"], state["count"]) == (1, 3)
        assert shard.diff("c")["tombstone"] is None
        gap = shard.diff("c", 3)["tombstone"]
        assert gap["gap_from"] == 4
        assert gap["gap_to"] >= 5
        assert (gap["reason"], gap["cause"]) == ("cap", "restart")
        assert shard.diff("c", head(shard))["tombstone"] is None


@pytest.mark.parametrize("how", WAYS)
def test_switching_to_and_fro_loses_only_what_was_ephemeral_when_it_stopped(how: str) -> None:
    shard = Harness()
    kept: list[int] = []
    for durability in ("disk", "ephemeral", "fsync", "ephemeral", "memory", "ephemeral", "disk"):
        put(shard, durability)
        written = shard.append("c", *range(3))["seqs"]
        if durability != "ephemeral":
            kept += written
        shard = restarted(shard, how)
        assert seqs(shard) == kept
    put(shard, "ephemeral")
    late = shard.append("c", "late")["seqs"]
    put(shard, "disk")
    # The next checkpoint writes these records, like all present ones.
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()
    assert seqs(restarted(shard, "kill")) == kept + late


@pytest.mark.parametrize("kept", [0, 3])
@pytest.mark.parametrize("written", [0, 2])
def test_an_orderly_stop_moves_no_head(kept: int, written: int) -> None:
    shard = Harness()
    put(shard, "disk")
    if kept:
        shard.append("c", *range(kept))
    put(shard, "ephemeral")
    if written:
        shard.append("c", *range(written))
    for _ in range(3):
        before = head(shard)
        assert before == kept + written
        shard = restarted(shard, "stop")
        assert head(shard) == before
        caught_up = shard.diff("c", before)
        assert (caught_up["tombstone"], caught_up["caught_up"], caught_up["records"]) == (None, True, [])
        if written:
            gap = shard.diff("c", kept)["tombstone"]
            assert (gap["gap_from"], gap["gap_to"], gap["cause"]) == (kept + 1, kept + written, "restart")
    assert shard.append("c", "next")["first_seq"] == kept + written + 1
    # After a kill the exact head is unknown: it moves ahead, and never back to a seq that was given out.
    assert head(restarted(shard, "kill")) > kept + written + 1


def test_an_orderly_stop_does_not_tell_of_what_was_deleted() -> None:
    shard = Harness()
    put(shard, "ephemeral")
    shard.append("c", 1, 2, 3, 4)
    shard.call("append", "c", {"records": [{"data": n, "tag": "t"} for n in (5, 6)]})
    shard.call("delete_records", "c", {"match": "t"})
    shard = restarted(shard, "stop")
    assert head(shard) == 6
    assert shard.diff("c", 4)["tombstone"] is None
    assert shard.diff("c", 2)["tombstone"]["cause"] == "restart"


@pytest.mark.parametrize("back", [False, True], ids=["ephemeral", "durable again"])
@pytest.mark.parametrize("how", WAYS)
def test_what_a_cap_pushed_out_does_not_come_back(how: str, back: bool) -> None:
    """The records that did it are not in the log."""
    shard = Harness()
    put(shard, "disk", cap_records=4)
    shard.append("c", 1, 2)
    shard.append("c", 3, 4)
    put(shard, "ephemeral")
    for n in range(5, 9):
        shard.append("c", n)
        if back:
            put(shard, "disk")
        expected = list(range(n - 3, 5))
        again = shard.restarted(shard.disk.after_crash("process"))  # type: ignore[attr-defined]
        assert [seq for seq in seqs(again) if seq <= 4] == expected
        assert again.call("state", "c")["earliest_seq"] >= shard.call("state", "c")["earliest_seq"]
    shard = restarted(shard, how)
    assert [seq for seq in seqs(shard) if seq <= 4] == []


def test_a_tighter_cap_while_ephemeral_holds_over_a_kill() -> None:
    shard = Harness()
    put(shard, "disk")
    shard.append("c", 1, 2, 3)
    put(shard, "ephemeral")
    shard.append("c", 4, 5)
    put(shard, "ephemeral", cap_records=3)
    assert seqs(shard) == [3, 4, 5]
    assert seqs(restarted(shard, "kill")) == [3]


@pytest.mark.parametrize("durability", ["ephemeral", "disk"])
def test_the_newest_record_stays_whatever_the_cap(durability: str) -> None:
    shard = Harness()
    put(shard, "disk")
    shard.append("c", "first", "x" * 50)
    put(shard, "ephemeral")
    put(shard, durability, cap_bytes=1)
    assert seqs(shard) == [2]
    assert seqs(restarted(shard, "kill")) == [2]


def test_while_nothing_lasting_goes_an_ephemeral_write_logs_nothing() -> None:
    shard = Harness()
    put(shard, "disk", cap_records=100)
    shard.append("c", 1, 2, 3)
    put(shard, "ephemeral")
    shard.append("c", 4)
    frames = shard.call("stats")["wal"]["frames_total"]
    for n in range(50):
        shard.append("c", n)
    assert shard.call("stats")["wal"]["frames_total"] == frames

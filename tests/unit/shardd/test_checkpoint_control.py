"""Checkpoint control: when a checkpoint is due, and what is around the steps of one."""

from __future__ import annotations

import pytest

from proto.ipc.figures import ReplicaFigures
from shardd.checkpoint.slices import exhaust
from shardd.checkpoint_control import CheckpointControl
from tests.support.harness import Harness


class Copy:
    """The copy in a bucket, which notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def synced(self) -> None:
        self.told.append("synced")

    def checkpointed(self) -> None:
        self.told.append("checkpointed")

    def figures(self) -> ReplicaFigures:
        return ReplicaFigures(lag_bytes=7)


def control(shard: Harness) -> CheckpointControl:
    return shard.shard.control


def test_a_checkpoint_is_called_for_when_enough_was_logged() -> None:
    shard = Harness(checkpoint_bytes=4096)
    calls: list[int] = []
    control(shard).wanted = lambda: calls.append(control(shard).logged_bytes)
    shard.append("a", "x")
    assert not calls
    shard.append("a", "x" * 5000)
    assert calls
    assert min(calls) >= 4096
    shard.shard.checkpoint_now()
    assert control(shard).logged_bytes == 0
    assert not control(shard).due


def test_nothing_is_due_while_copies_are_made_again() -> None:
    shard = Harness(checkpoint_bytes=4096)
    shard.append("a", "x" * 5000)
    assert control(shard).due
    assert control(shard).worth
    shard.shard.restoring.restored = False
    assert not control(shard).due
    assert not control(shard).worth


def test_after_a_failed_checkpoint_what_was_logged_before_it_counts_again() -> None:
    shard = Harness()
    copy = Copy()
    shard.shard.follower.copy = copy
    shard.append("a", "x" * 5000)
    logged = control(shard).logged_bytes
    plan = control(shard).begin()
    shard.append("a", "y")
    since = control(shard).logged_bytes
    assert 0 < since < logged
    control(shard).end(plan, OSError(5, "injected"))
    assert control(shard).logged_bytes == logged + since
    assert "checkpointed" not in copy.told
    shard.shard.checkpoint_now()
    assert copy.told.count("checkpointed") == 1


def test_a_clock_that_was_set_ahead_makes_a_checkpoint_due_until_one_is_made() -> None:
    shard = Harness()
    shard.clock.jumped(1000)
    plan = control(shard).begin()
    assert not control(shard).due
    control(shard).end(plan, OSError(5, "injected"))
    assert control(shard).due
    plan = control(shard).begin()
    shard.clock.jumped(1000)
    shard.shard.checkpoints.writer.write(plan)
    control(shard).end(plan)
    assert control(shard).due, "the plan may lack the second one"
    shard.shard.checkpoint_now()
    assert not control(shard).due


def test_the_copy_learns_of_a_checkpoint_when_the_last_slice_has_adopted_it() -> None:
    shard = Harness()
    copy = Copy()
    shard.shard.follower.copy = copy
    shard.append("a", 1)
    plan = control(shard).begin()
    shard.shard.checkpoints.writer.write(plan)
    ending = control(shard).ending(plan)
    before = shard.shard.checkpoints.inventory.newest.number
    assert "checkpointed" not in copy.told
    exhaust(ending)
    assert shard.shard.checkpoints.inventory.newest.number == before + 1
    assert copy.told.count("checkpointed") == 1


def test_a_checkpoint_that_would_change_nothing_is_not_worth_it() -> None:
    shard = Harness()
    assert not control(shard).worth
    shard.append("a", 1)
    assert control(shard).worth
    while control(shard).worth:
        shard.shard.checkpoint_now()
    assert control(shard).logged_bytes == 0


@pytest.mark.parametrize("joined", [False, True])
def test_figures_of_the_copy_are_those_of_the_one_that_joined(joined: bool) -> None:
    shard = Harness()
    if joined:
        shard.shard.follower.copy = Copy()
    assert shard.shard.follower.figures() == (ReplicaFigures(lag_bytes=7) if joined else None)

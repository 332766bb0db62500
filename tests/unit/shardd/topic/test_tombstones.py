"""Losses: their floor, and the reason that a reader of a gap is given."""

from __future__ import annotations

import random

import pytest

from shardd.topic.tombstones import MAX_RUNS, RESTART, Losses, told


def test_without_a_loss_there_is_no_floor() -> None:
    assert Losses().evict_floor == 0
    assert Losses([(9, "cap")]).evict_floor == 10


def test_losses_of_one_reason_are_one_run() -> None:
    losses = Losses()
    for upto in (3, 5, 8):
        losses.add(upto, "cap")
    losses.add(9, "ttl")
    assert losses.runs == [(8, "cap"), (9, "ttl")]


def test_what_is_lost_already_is_not_lost_again_for_another_reason() -> None:
    losses = Losses([(8, "cap")])
    losses.add(8, "ttl")
    losses.add(3, "ttl")
    assert losses.runs == [(8, "cap")]


@pytest.mark.parametrize(
    ("gap_from", "reason"), [(1, "mixed"), (5, "mixed"), (6, "ttl"), (7, "ttl"), (8, "mixed"), (100, "mixed")]
)
def test_the_reason_is_that_of_the_records_in_the_gap(gap_from: int, reason: str) -> None:
    assert Losses([(5, "cap"), (7, "ttl")]).reason(gap_from) == reason


def test_a_stop_is_told_as_a_cap_with_its_cause() -> None:
    assert told(RESTART) == ("cap", RESTART)
    assert told("ttl") == ("ttl", None)
    assert Losses([(5, RESTART)]).reason(1) == RESTART
    assert Losses([(5, "cap"), (7, RESTART)]).reason(1) == "cap", "two reasons that readers are told alike"
    assert Losses([(5, "ttl"), (7, RESTART)]).reason(1) == "mixed"


@pytest.mark.parametrize("seed", range(5))
def test_memory_is_bounded_and_only_the_oldest_reasons_are_forgotten(seed: int) -> None:
    rng = random.Random(seed)
    losses, everything = Losses(), Losses()
    upto = 0
    for _ in range(5 * MAX_RUNS):
        upto += rng.randrange(1, 4)
        reason = rng.choice(("cap", "ttl", RESTART))
        losses.add(upto, reason)
        if everything.runs and everything.runs[-1][1] == reason:
            everything.runs.pop()
        everything.runs.append((upto, reason))
        assert len(losses.runs) <= MAX_RUNS
        assert losses.evict_floor == upto + 1
    kept = losses.runs[1][0]
    for gap_from in range(kept, upto + 1):
        assert losses.reason(gap_from) == everything.reason(gap_from)
    assert losses.reason(1) == "mixed"

"""Claims about the replication protocol: whatever fails, nothing acknowledged is lost, and a broken rule is noticed.

A failing schedule is run again with `TOPICS_TEST_SEED=<number>`.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import pytest

from shardd.replication.protocol import Replica
from shardd.replication.states import TRANSITIONS, ReplicaEvent, ReplicaState
from tests.simulation import broken_replicas as broken
from tests.simulation.replication import TIMING, Disk, Flaws, Machine, World, run

DEFAULT_SEED = 0
FEW = 120
MANY = 20_000
RARE = {
    (ReplicaState.CHECKING, ReplicaEvent.MISPLACED),
    (ReplicaState.DRAINING, ReplicaEvent.DRAIN),
    (ReplicaState.DRAINING, ReplicaEvent.LOST),
}
"""Transitions that a few schedules may miss."""

FLAWS = {
    "no fence": Flaws(broken.NoFence),
    "fences are removed": Flaws(removes_fences=True),
    "the store ignores the condition": Flaws(ignores_condition=True),
    "no answer means done": Flaws(broken.GuessesDone),
    "no answer means not done": Flaws(broken.GuessesFailed),
    "a part is created again with more in it": Flaws(broken.ForgetsWhatItSent),
    "any part is taken for one's own": Flaws(broken.TakesAnyPart),
    "a fence's number is not checked": Flaws(broken.NoCheck),
    "parts are removed without a manifest": Flaws(removes_without_manifest=True),
    "a tail that differs is kept": Flaws(keeps_tail=True),
    "a term is no boot of its own": Flaws(keeps_boot=True),
    "a holder is never silent": Flaws(broken.NeverSilent),
    "a renewal proves that there is no later term": Flaws(broken.RenewsBlindly),
    "a holder that is replaced is not waited for": Flaws(broken.NoWait),
}
BEGIN_AT = {
    "a fence's number is not checked": 300,
    "fences are removed": 250,
    "a holder that is replaced is not waited for": 150,
}
"""Seeds shortly before one that shows the flaw: it needs a machine that is stopped at the right moment, for long."""


def first_seed() -> int:
    return int(os.environ.get("TOPICS_TEST_SEED") or DEFAULT_SEED)


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[ReplicaState, ReplicaEvent]]:
    counted: Counter[tuple[ReplicaState, ReplicaEvent]] = Counter()
    move = Replica._move

    def counting(self: Replica, event: ReplicaEvent) -> None:
        counted[self.state, event] += 1
        move(self, event)

    monkeypatch.setattr(Replica, "_move", counting)
    return counted


def sweep(first: int, count: int) -> None:
    for seed in range(first, first + count):
        found = run(seed)
        assert not found, f"TOPICS_TEST_SEED={seed}: {found}"


def caught(name: str, first: int, most: int) -> int:
    """After how many schedules a flaw is noticed; 0 if it is not."""
    return next((n for n, seed in enumerate(range(first, first + most), 1) if run(seed, FLAWS[name])), 0)


def test_nothing_acknowledged_is_lost_and_every_transition_is_met(
    moves: Counter[tuple[ReplicaState, ReplicaEvent]],
) -> None:
    sweep(first_seed(), FEW)
    assert {(state, event) for state, row in TRANSITIONS.items() for event in row} - RARE <= moves.keys()


@pytest.mark.parametrize("seed", range(10))
def test_operators_at_every_machine_at_once_leave_one_holder_soon(seed: int) -> None:
    world = World(seed)
    world.automatic = world.settled = True  # and nothing fails
    world.machines = [Machine(world, name, Disk()) for name in "abc"]
    world.begin()
    assert world.pass_time(8, lambda: any(each.serving() for each in world.machines))
    world.pass_time(9)
    for each in world.machines:
        assert each.replica is not None
        each.replica.newest.take_over()
    first = world.newest
    done = world.pass_time(9 + 3 * TIMING.time_to_live, lambda: world.newest > first)
    assert done or any(each.serving() for each in world.machines)


@pytest.mark.parametrize("name", FLAWS)
def test_a_broken_rule_is_noticed(name: str) -> None:
    assert caught(name, BEGIN_AT.get(name, DEFAULT_SEED), 100)


@pytest.mark.long
def test_nothing_is_lost_in_many_schedules(
    moves: Counter[tuple[ReplicaState, ReplicaEvent]], capsys: pytest.CaptureFixture[str]
) -> None:
    first = int(os.environ.get("TOPICS_TEST_SEED") or random.randrange(1 << 32))
    began = time.monotonic()
    with capsys.disabled():
        print(f"\nreplication: {MANY} schedules, TOPICS_TEST_SEED={first}")  # noqa: T201
        sweep(first, MANY)
        print(f"replication: {MANY / (time.monotonic() - began) * 60:.0f} schedules a minute")  # noqa: T201
    assert {(state, event) for state, row in TRANSITIONS.items() for event in row} <= moves.keys()


@pytest.mark.long
def test_every_broken_rule_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    first = int(os.environ.get("TOPICS_TEST_SEED") or random.randrange(1 << 32))
    counts = {name: caught(name, first, 5000) for name in FLAWS}
    with capsys.disabled():
        print(f"\nschedules until a broken rule is noticed, from TOPICS_TEST_SEED={first}")  # noqa: T201
        for name, count in counts.items():
            print(f"  {count:5}  {name}")  # noqa: T201
    assert all(counts.values())

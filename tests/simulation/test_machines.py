"""Claims about several machines: whatever fails, each acknowledged write is there once, one process answers for a
shard, and shards settle; and a broken rule is noticed.

A failing schedule is run again with `TOPICS_TEST_SEED=<number>`, more of them with `--seeds N`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from shardd.replication.messages import Kind, Result
from shardd.roster.moves import Move
from tests.simulation import broken_machines as broken
from tests.simulation import broken_replicas
from tests.simulation.machine_seats import Seat
from tests.simulation.machines import CALM, Cluster, MachineFlaws, run
from tests.simulation.replication import Violation

DEFAULT_SEED = 0
FEW = 200
MANY = 20_000
TTL = 2.0

FLAWS = {
    "no fence": MachineFlaws(broken_replicas.NoFence),
    "a mover that holds nothing": MachineFlaws(broken.EndsAnyTerm, roster=broken.GivesWhatItFollows),
    "the own time to live instead of the term's": MachineFlaws(broken.OwnTimeToLive),
    "orders of an old epoch": MachineFlaws(allowance=broken.ObeysOldEpochs),
    "two forwards": MachineFlaws(forwards_twice=True),
    "the last entry of a move is removed": MachineFlaws(moves_kept=0),
    "copied directories are admitted": MachineFlaws(roster=broken.AdmitsCopies),
    "a holder is never silent": MachineFlaws(broken_replicas.NeverSilent),
    "no answer means done": MachineFlaws(broken_replicas.GuessesDone),
}
ENOUGH = 0.1
"""The share of schedules that notice a flaw, at least."""


def first_seed() -> int:
    return int(os.environ.get("TOPICS_TEST_SEED") or DEFAULT_SEED)


def sweep(first: int, count: int) -> None:
    for seed in range(first, first + count):
        found = run(seed)
        assert not found, f"TOPICS_TEST_SEED={seed}: {found}"


def test_nothing_acknowledged_is_lost_and_shards_settle(pytestconfig: pytest.Config) -> None:
    sweep(first_seed(), pytestconfig.getoption("seeds") or FEW)


@pytest.mark.parametrize("name", FLAWS)
def test_a_broken_rule_is_noticed(name: str) -> None:
    assert any(run(seed, FLAWS[name]) for seed in range(60))


# Hazards, each alone. Nothing else fails


def calm(machines: int = 3, *, seed: int = 0, shards: int = 3) -> Cluster:
    """Machines that hold equal parts of the shards, without faults, all with the same time to live."""
    cluster = Cluster(seed, machines=machines, shards=shards)
    for shard in cluster.shards:
        shard.settled = True
    for node in cluster.nodes:
        node.skew_s, node.time_to_live = 0.0, TTL
        for seat in node.seats:
            seat.timing = replace(seat.timing, time_to_live=TTL)
    cluster.begin()
    settle(cluster)
    return cluster


def settle(cluster: Cluster) -> None:
    cluster.settled_since = None
    assert cluster.time.pass_time(cluster.time.now + 40, lambda: cluster.settled)


def holder(cluster: Cluster, index: int) -> Seat:
    return next(seat for seat in cluster.seats(index) if seat.serving())


def taken_over(cluster: Cluster, seat: Seat) -> Seat:
    """The seat of another machine that takes the shard over."""
    others = [each for each in cluster.seats(seat.shard.index) if each is not seat]
    assert cluster.time.pass_time(cluster.time.now + 20, lambda: any(each.serving() for each in others))
    return next(each for each in others if each.serving())


def stalled(cluster: Cluster) -> Seat:
    """A holder that is stopped when a write is synced, before it creates the part; another one takes over."""
    seat = holder(cluster, 0)
    seat.shard.idle_until = inf  # no other write takes the part's place
    cluster.traffic.begin(cluster.nodes[0], seat)
    seat.sync()
    seat.host.stopped_until = cluster.time.now + 15
    return seat


def after_waking(cluster: Cluster, seat: Seat) -> None:
    cluster.time.pass_time(seat.host.stopped_until + 10)
    cluster.traffic.check()


def test_a_stalled_writer_collides_with_the_fence_though_retention_runs() -> None:
    cluster = calm()
    seat = stalled(cluster)
    successor = taken_over(cluster, seat)
    for _ in range(3):
        successor.make_manifest()
    cluster.time.pass_time(cluster.time.now + 2)

    def known() -> list[int]:
        return [ident for ident, index in cluster.traffic.done.items() if index == 0]

    before = known()
    after_waking(cluster, seat)
    assert known() == before, "no client hears of it"


def test_a_stalled_writer_whose_fence_was_removed_by_retention_is_noticed() -> None:
    """Which is why fences are never removed."""
    cluster = calm()
    seat = stalled(cluster)
    successor = taken_over(cluster, seat)
    for number, (part, _) in list(seat.shard.store.parts.items()):
        if part.kind is Kind.FENCE:
            del seat.shard.store.parts[number]
    assert successor.serving()
    with pytest.raises(Violation, match="kept"):
        after_waking(cluster, seat)


def test_a_creation_that_succeeds_in_a_name_that_was_freed_counts_for_nothing() -> None:
    """1. The entry of a move is on its way. 2. Others are made, and removed but for the last one. 3. It arrives."""
    cluster = calm()
    seat, target = holder(cluster, 0), next(node for node in cluster.nodes if not node.idle)
    assert seat.replica is not None
    assert seat.node.roster is not None
    cluster.moves = {9: Move(9, 0, 0, seat.node.machine, "gone", target.machine)}
    late = Move(8, 0, seat.replica.term, seat.node.machine, seat.node.roster.nonce, target.machine)
    cluster.time.pass_time(cluster.time.now + 2)
    assert cluster.create_move(late) is Result.DONE
    cluster.time.pass_time(cluster.time.now + 5)
    assert all(node.roster is not None and node.roster.view.move is None for node in cluster.nodes)
    assert seat.serving()


@pytest.mark.parametrize("told", [Result.UNKNOWN, Result.TAKEN])
@pytest.mark.parametrize("done", [True, False])
def test_a_409_means_nothing(done: bool, told: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each third creation is answered so, whether it was carried out or not. Some stores say no more than that the name
    is taken."""
    count = 0
    cluster = calm()

    def refusing(create: Callable[..., Result]) -> Callable[..., Result]:
        def answered(*args: Any) -> Result:
            nonlocal count
            count += 1
            if count % 3:
                return create(*args)
            if done:
                create(*args)
            return told

        return answered

    for shard in cluster.shards:
        names = ("create_part", "create_term", "create_manifest")  # who makes a manifest reads what is there
        for name in names if told is Result.UNKNOWN else names[:2]:
            monkeypatch.setattr(shard.store, name, refusing(getattr(shard.store, name)))
    monkeypatch.setattr(cluster, "create_move", refusing(cluster.create_move))
    known = len(cluster.traffic.done)
    cluster.lose(holder(cluster, 0).node)
    cluster.join()
    settle(cluster)
    cluster.traffic.check()
    assert count > 20
    assert len(cluster.traffic.done) > known


def test_a_holder_that_wakes_after_its_time_to_live_answers_nothing() -> None:
    cluster = calm()
    seat = holder(cluster, 0)
    seat.host.stopped_until = cluster.time.now + 10
    successor = taken_over(cluster, seat)
    assert not seat.serving(), "by its own clock, before it has asked anything"
    assert successor.serving()
    after_waking(cluster, seat)  # any answer of it would be noticed


def test_two_views_of_the_members_settle_and_give_one_answerer() -> None:
    """Machines that do not see each other's objects both take themselves for the second, and for less loaded."""
    cluster = calm(machines=4)
    lost = holder(cluster, 0).node
    one, other = [node for node in cluster.nodes if node is not lost][:2]
    one.blind_to, other.blind_to = {other.machine}, {one.machine}
    cluster.lose(lost)
    cluster.time.pass_time(cluster.time.now + 20)
    for index in range(3):
        assert sum(seat.serving() for seat in cluster.seats(index)) == 1
    one.blind_to = other.blind_to = set()
    settle(cluster)
    cluster.traffic.check()


def test_a_flapping_member_gets_one_shard_an_hour() -> None:
    """It is seen to come and go; the shards that it had are taken over each time."""
    cluster = calm(machines=2, shards=4)
    flapper = cluster.join()
    settle(cluster)
    for _ in range(2):
        flapper.host.cut_until = cluster.time.now + 3 * TTL
        cluster.time.pass_time(cluster.time.now + 3 * TTL + 1)
    before = len(cluster.moved_at)
    began = cluster.time.now
    for _ in range(3):
        cluster.time.pass_time(cluster.time.now + 4)
        flapper.host.cut_until = cluster.time.now + 3 * TTL
        cluster.time.pass_time(cluster.time.now + 3 * TTL + 0.5)
    hours = (cluster.time.now - began) / CALM
    assert len(cluster.moved_at) - before <= 1 + hours
    settle(cluster)


def test_retention_that_runs_all_the_time_harms_no_move() -> None:
    """A manifest after each part, and everything before it removed, while a machine joins and all leave another."""
    cluster = calm()
    cluster.weather.manifests = 1.0
    cluster.join()
    settle(cluster)
    cluster.leave(holder(cluster, 0).node)
    settle(cluster)
    cluster.traffic.check()
    assert len(cluster.traffic.done) > 20


def test_a_join_is_latency_and_no_error() -> None:
    """Requests meanwhile are held, and carried out once."""
    cluster = calm(machines=2, shards=4)
    unknown = cluster.traffic.unknown
    joined = cluster.join()
    settle(cluster)
    assert not joined.idle
    assert cluster.traffic.unknown == unknown
    cluster.traffic.check()


def test_times_to_live_that_differ_end_no_term_of_a_holder_that_lives() -> None:
    """It renews more seldom than the other machine's time to live."""
    cluster = calm(machines=2)
    slow = holder(cluster, 0).node
    for seat in slow.seats:
        seat.timing = replace(seat.timing, time_to_live=4 * TTL)
        seat.stop(for_s=0.1)
    cluster.time.pass_time(cluster.time.now + 3)
    assert holder(cluster, 0).node is slow
    terms = [max(shard.store.terms) for shard in cluster.shards]
    cluster.time.pass_time(cluster.time.now + 12 * TTL)
    assert [max(shard.store.terms) for shard in cluster.shards] == terms


@pytest.mark.long
def test_many_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    first, began = first_seed() + FEW, time.monotonic()
    sweep(first, MANY)
    with capsys.disabled():
        print(f"\nmachines: {MANY / (time.monotonic() - began) * 60:.0f} schedules a minute")  # noqa: T201


@pytest.mark.long
def test_every_broken_rule_is_noticed_often(capsys: pytest.CaptureFixture[str]) -> None:
    most = 300
    first = first_seed()
    counts = {name: sum(bool(run(seed, flaws)) for seed in range(first, first + most)) for name, flaws in FLAWS.items()}
    with capsys.disabled():
        print(f"\nof {most} schedules, a broken rule is noticed in")  # noqa: T201
        for name, count in counts.items():
            print(f"  {count:5}  {name}")  # noqa: T201
    assert all(count >= ENOUGH * most for count in counts.values())

"""Damage in a bucket: what is not needed stops nothing, what is needed is named, and no hole is taken for the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from shardd.offline import replica
from shardd.replication import parts, role
from shardd.replication.damage import Damage
from shardd.replication.names import ShardNames
from shardd.replication.states import ReplicaState
from tests.support.bucket import MemoryStore
from tests.support.roles import Machine, Pair
from tests.support.shipped import SMALL, Shipped

NAMES = ShardNames(0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role, "TURN_S", 0.005)
    monkeypatch.setattr(role, "RETRY_S", 0.005)


@asynccontextmanager
async def pairs(directory: Path) -> AsyncIterator[tuple[Pair, Machine]]:
    """A holder with some parts in the bucket."""
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, directory)
        one = pair.machine("one")
        await one.open()
        for number in range(4):
            await one.write("a", number)
        yield pair, one
        nursery.cancel_scope.cancel()


async def named(pair: Pair, machine: Machine, name: str) -> None:
    """Let time pass until a machine names an object as damaged: it looks when its clock says so, on a busy machine
    perhaps later than the others."""
    with trio.fail_after(60):
        while name not in machine.role.damage:
            await pair.silence()


async def refused(pair: Pair, machine: Machine, name: str) -> None:
    """A machine names an object as damaged, and does not serve."""
    await pair.silence()
    await named(pair, machine, name)
    await pair.silence()
    assert machine.role.replica is not None
    assert machine.role.replica.state in (ReplicaState.STANDBY, ReplicaState.CLAIMING, ReplicaState.FENCING)
    assert not machine.role.held.is_set()
    assert not machine.role.serving()
    assert not any(term > 1 for term, kind in pair.kinds_there() if kind == parts.FENCE)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'{"term":7,"nonce":"x","machine":"m","made_ms":1}', b"\xff"])
async def test_a_damaged_term_does_not_stop_a_failover(tmp_path: Path, content: bytes) -> None:
    async with pairs(tmp_path) as (pair, one):
        one.stop()
        pair.store.objects[NAMES.term(1)] = content
        two = pair.machine("two")
        await pair.until(lambda: two.role.replica is not None)
        await pair.silence()
        await pair.silence()
        await two.open()
        assert two.contents() == {"a": [0, 1, 2, 3]}
        assert NAMES.term(1) in two.role.damage
        problems = next(iter(replica.verify(pair.store)))["problems"]
        assert any(NAMES.term(1) in problem for problem in problems)


@pytest.mark.parametrize("content", [b"", b"TPCM", b"x" * 500])
@pytest.mark.parametrize("number", [1, 5])
async def test_a_damaged_manifest_does_not_stop_the_failover_of_a_standby_that_has_the_log(
    tmp_path: Path, number: int, content: bytes
) -> None:
    async with pairs(tmp_path) as (pair, one):
        two = pair.machine("two")
        await pair.until(lambda: two.role.position.part == 5)
        pair.store.objects[NAMES.manifest(number)] = content
        one.stop()
        await pair.silence()
        await two.open()
        assert two.contents() == {"a": [0, 1, 2, 3]}
        await pair.until(lambda: NAMES.manifest(number) in two.role.damage)


async def test_a_machine_that_may_need_a_damaged_manifest_does_not_fence(tmp_path: Path) -> None:
    async with pairs(tmp_path) as (pair, one):
        one.stop()
        pair.store.objects[NAMES.manifest(5)] = b"?"
        for number in range(1, 6):  # retention went by what the manifest said
            del pair.store.objects[NAMES.part(number)]
        two = pair.machine("two")
        await refused(pair, two, NAMES.manifest(5))
        assert not pair.kinds_there()


@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_a_missing_part_is_named_and_no_machine_serves_less(tmp_path: Path, number: int) -> None:
    async with pairs(tmp_path) as (pair, one):
        one.stop()
        taken = pair.store.objects.pop(NAMES.part(number))
        two = pair.machine("two")
        await refused(pair, two, NAMES.part(number))
        pair.store.objects[NAMES.part(number)] = taken
        await pair.silence()
        await two.open()
        assert two.contents() == {"a": [0, 1, 2, 3]}
        await pair.until(lambda: not two.role.damage)


@pytest.mark.parametrize("content", [b"", b"TPCP", b"x" * 200])
async def test_a_damaged_part_is_named_and_no_machine_serves_less(tmp_path: Path, content: bytes) -> None:
    async with pairs(tmp_path) as (pair, one):
        one.stop()
        name = NAMES.part(3)
        taken, pair.store.objects[name] = pair.store.objects[name], content
        two = pair.machine("two")
        await refused(pair, two, name)
        pair.store.objects[name] = taken
        await pair.silence()
        await two.open()
        assert two.contents() == {"a": [0, 1, 2, 3]}


async def test_a_standby_that_had_read_a_part_takes_over_although_it_is_missing_now(tmp_path: Path) -> None:
    async with pairs(tmp_path) as (pair, one):
        two = pair.machine("two")
        await pair.until(lambda: two.role.position.part == 5)
        del pair.store.objects[NAMES.part(3)]
        empty = pair.machine("three")
        one.stop()
        await pair.silence()
        await pair.silence()
        await two.open()
        assert two.contents() == {"a": [0, 1, 2, 3]}
        await named(pair, empty, NAMES.part(3))
        assert not empty.role.held.is_set()


def age(shard: Shipped) -> None:
    """Three checkpoints and their copies, each older than the window when the next is made."""
    for number in range(3):
        shard.append("a", "x" * 3000, number)
        shard.sync()
        shard.shard.checkpoint_now()
        shard.copy()
        shard.clock.advance(shard.limits.bucket_retain_ms + 1000)
        shard.copies.retain()


def test_retention_goes_on_beside_a_damaged_manifest_and_removes_it_when_it_is_old() -> None:
    shard = Shipped(MemoryStore(), **SMALL).attach()
    shard.store.objects[NAMES.manifest(1)] = b"?"
    age(shard)
    assert NAMES.manifest(1) not in shard.store.objects
    assert NAMES.part(2) not in shard.store.objects


STRANGE = ("~", "-", "0", "99999999999999999999", "09223372036854775808", "٠" * 20, "00000000000000000003.bak", "")


@pytest.mark.parametrize("name", STRANGE)
async def test_objects_of_strangers_between_the_others_stop_nothing(tmp_path: Path, name: str) -> None:
    async with pairs(tmp_path) as (pair, one):
        for folder in (NAMES.log, NAMES.terms, NAMES.manifests, NAMES.checkpoints):
            pair.store.objects[f"{folder}{name}"] = b"?"
        one.stop()
        two = pair.machine("two")
        await pair.until(lambda: two.role.replica is not None)
        await pair.silence()
        await pair.silence()
        await two.open()
        assert two.contents() == {"a": [0, 1, 2, 3]}
        await two.write("a", 4)


@pytest.mark.parametrize("name", STRANGE)
def test_checkpoints_and_retention_pass_over_objects_of_strangers(name: str) -> None:
    shard = Shipped(MemoryStore(), **SMALL).attach()
    for folder in (NAMES.log, NAMES.terms, NAMES.manifests, NAMES.checkpoints):
        shard.store.objects[f"{folder}{name}"] = b"?"
    age(shard)
    assert NAMES.part(2) not in shard.store.objects
    assert f"{NAMES.log}{name}" in shard.store.objects


def test_damage_is_told_by_object_and_not_by_place() -> None:
    found = Damage("s3://secret/prefix")
    found.add(NAMES.part(3), f"s3://secret/prefix: {NAMES.part(3)} has no seal")
    assert str(found) == f"{NAMES.part(3)}: {NAMES.part(3)} has no seal"

"""The holder: what the bucket has before a shard serves."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from shardd.replication import manifests, role
from shardd.replication.holder import Holder
from shardd.replication.names import ShardNames
from shardd.storage.disk import RealDisk
from tests.support.bucket import MemoryStore
from tests.support.harness import FakeClock, Harness
from tests.support.roles import Machine, Time
from tests.support.shipped import SMALL


async def begun(machine: Machine) -> tuple[Harness, Holder]:
    """Open the shard of a machine, and let a holder begin."""
    with trio.fail_after(60):
        await machine.role.held.wait()
    harness = Harness(RealDisk(), FakeClock(), machine.path, **SMALL)
    log = harness.shard.log
    holder = Holder(machine.role, RealDisk(), machine.path, log, harness.clock, harness.limits)
    with trio.fail_after(60):
        await holder.begin()
    assert holder.shipped_no == log.synced_no
    return harness, holder


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role, "TURN_S", 0.005)


async def test_the_bucket_has_the_checkpoint_of_earlier_data_before_the_shard_serves(tmp_path: Path) -> None:
    before = Harness(RealDisk(), FakeClock(), tmp_path / "one" / "shard-00", **SMALL)
    for number in range(30):
        before.append("a", number)
    before.shard.commits.sync_now()
    before.shard.close()
    store = MemoryStore()
    async with trio.open_nursery() as nursery:
        machine = Machine(nursery, store, tmp_path, "one", Time())
        await begun(machine)
        assert manifests.numbers(store, ShardNames(0))
        other = Machine(nursery, store, tmp_path, "two", Time())
        await other.take_over()
        assert other.contents() == {"a": list(range(30))}
        nursery.cancel_scope.cancel()


async def test_a_standby_that_takes_over_makes_no_manifest_with_fewer_frames(tmp_path: Path) -> None:
    store = MemoryStore()
    async with trio.open_nursery() as nursery:
        machine = Machine(nursery, store, tmp_path, "one", Time())
        harness, holder = await begun(machine)
        harness.append("a", 1)
        harness.shard.commits.sync_now()
        holder.synced()
        await machine.role.caught_up(harness.shard.log)
        harness.shard.checkpoint_now()
        uploaded = await trio.to_thread.run_sync(holder.copies.upload)
        assert uploaded is not None
        holder.copies._least_no = uploaded.frame_no + 1
        holder.copies.create_manifest(uploaded)
        assert not manifests.numbers(store, ShardNames(0))
        holder.copies._least_no = uploaded.frame_no
        holder.copies.create_manifest(uploaded)
        assert manifests.numbers(store, ShardNames(0))
        nursery.cancel_scope.cancel()

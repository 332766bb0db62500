"""The shipper: what goes into a sink and when, and what the bucket has before a shard serves."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from shardd.replication import manifests, role
from shardd.replication.log_reader import LogReader
from shardd.replication.names import ShardNames
from shardd.replication.shipper import LONGEST_PAUSE_S, PART_BYTES, Holder, Pace, Shipper
from shardd.storage.disk import RealDisk
from tests.support.bucket import MemoryStore
from tests.support.harness import FakeClock, Harness
from tests.support.kept_sink import Kept
from tests.support.roles import Machine, Time
from tests.support.shipped import SMALL


async def shipping(nursery: trio.Nursery, sink: Kept, path: Path) -> tuple[Harness, Shipper]:
    """A shard whose log is shipped to the sink."""
    harness = Harness(RealDisk(), FakeClock(), path / "shard-00", **SMALL)
    await nursery.start(sink.run)
    reader = LogReader(RealDisk(), path / "shard-00" / "wal")
    return harness, Shipper(sink, reader, harness.shard.log, harness.clock, Pace(0.0, True))


async def test_what_is_synced_while_a_part_is_on_its_way_goes_into_the_next_one(tmp_path: Path) -> None:
    sink = Kept()
    async with trio.open_nursery() as nursery:
        harness, shipper = await shipping(nursery, sink, tmp_path)
        numbers: list[int] = []
        shipper.shipped = numbers.append
        harness.append("a", 1)
        harness.shard.commits.sync_now()
        first_no = harness.shard.log.synced_no
        assert not shipper.attach()
        shipper.begin()
        with trio.fail_after(60):
            await sink.waits.wait()
        assert not sink.parts
        harness.append("a", 2)
        harness.append("a", 3)
        harness.shard.commits.sync_now()
        shipper.synced()
        sink.may.set()
        with trio.fail_after(60):
            await shipper.caught_up()
        last_no = harness.shard.log.synced_no
        assert [(each.first_no, each.last_no) for each in sink.parts] == [(1, first_no), (first_no + 1, last_no)]
        assert numbers == [first_no, last_no]
        assert shipper.progress.lag_bytes == 0
        nursery.cancel_scope.cancel()


async def test_what_the_sink_has_is_not_shipped_again(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        sink = Kept(upto_no=1)
        sink.may.set()
        harness, shipper = await shipping(nursery, sink, tmp_path)
        harness.append("a", 1)
        harness.append("a", 2)
        harness.shard.commits.sync_now()
        assert not shipper.attach()
        shipper.begin()
        with trio.fail_after(60):
            await shipper.caught_up()
        assert sink.begun_at == 1
        assert [each.first_no for each in sink.parts] == [2]
        nursery.cancel_scope.cancel()


async def test_frames_that_were_not_synced_are_not_shipped(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        sink = Kept()
        sink.may.set()
        harness, shipper = await shipping(nursery, sink, tmp_path)
        harness.append("a", 1)
        harness.shard.commits.sync_now()
        synced_no = harness.shard.log.synced_no
        harness.append("a", 2)
        assert harness.shard.log.next_no - 1 > synced_no
        shipper.attach()
        shipper.begin()
        with trio.fail_after(60):
            await shipper.caught_up()
        assert sink.parts[-1].last_no == synced_no
        nursery.cancel_scope.cancel()


async def test_a_drain_ships_what_waits_for_a_pause_and_ends_the_sink(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        sink = Kept()
        sink.may.set()
        harness, shipper = await shipping(nursery, sink, tmp_path)
        shipper._pace = Pace(1000.0, False)
        shipper.attach()
        shipper.begin()
        await trio.testing.wait_all_tasks_blocked()
        harness.append("a", 1)
        harness.shard.commits.sync_now()
        shipper.synced()
        await trio.testing.wait_all_tasks_blocked()
        assert not sink.parts, "a small part waits for the interval"
        with trio.fail_after(60):
            await shipper.drain()
        assert sink.over.is_set()
        assert sink.position.frame_no == harness.shard.log.synced_no
        nursery.cancel_scope.cancel()


async def test_a_sink_that_is_over_gets_nothing_more(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        sink = Kept()
        sink.may.set()
        harness, shipper = await shipping(nursery, sink, tmp_path)
        sink.over.set()
        shipper.attach()
        shipper.begin()
        harness.append("a", 1)
        harness.shard.commits.sync_now()
        shipper.synced()
        await trio.testing.wait_all_tasks_blocked()
        assert not sink.parts
        with trio.fail_after(60):
            await shipper.caught_up()
        nursery.cancel_scope.cancel()


async def begun(machine: Machine) -> tuple[Harness, Holder]:
    """Open the shard of a machine, and let a holder begin."""
    with trio.fail_after(60):
        await machine.role.held.wait()
    harness = Harness(RealDisk(), FakeClock(), machine.path, **SMALL)
    log = harness.shard.log
    holder = Holder(machine.role, RealDisk(), machine.path, log, harness.clock, harness.limits)
    with trio.fail_after(60):
        await holder.begin()
    assert holder.progress.shipped_no == log.synced_no
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


async def test_the_next_checkpoint_is_copied_if_it_is_wanted_and_not_due(tmp_path: Path) -> None:
    store = MemoryStore()
    async with trio.open_nursery() as nursery:
        machine = Machine(nursery, store, tmp_path, "one", Time())
        harness, holder = await begun(machine)
        harness.shard.follower.copy = holder
        nursery.start_soon(holder.run)

        def copied() -> int:
            return len(manifests.numbers(store, ShardNames(0)))

        async def checkpoint(number: int) -> None:
            harness.append("a", number)
            harness.shard.commits.sync_now()
            holder.synced()
            harness.shard.checkpoint_now()
            with trio.fail_after(60):
                await holder.shipper.caught_up()

        async with trio.open_nursery() as waiting:
            waiting.start_soon(holder.save)
            await trio.testing.wait_all_tasks_blocked()
            await checkpoint(1)
        assert copied() == 1
        await checkpoint(2)
        await trio.testing.wait_all_tasks_blocked()
        assert copied() == 1, "the next one is not wanted"
        async with trio.open_nursery() as waiting:
            waiting.start_soon(holder.save)
            await trio.testing.wait_all_tasks_blocked()
            await checkpoint(3)
        assert copied() == 2
        nursery.cancel_scope.cancel()


async def test_a_standby_that_takes_over_makes_no_manifest_with_fewer_frames(tmp_path: Path) -> None:
    store = MemoryStore()
    async with trio.open_nursery() as nursery:
        machine = Machine(nursery, store, tmp_path, "one", Time())
        harness, holder = await begun(machine)
        harness.append("a", 1)
        harness.shard.commits.sync_now()
        holder.shipper.synced()
        await holder.shipper.caught_up()
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


def test_the_first_part_is_created_at_once() -> None:
    pace = Pace(0.0, True)
    assert pace.due < 0
    assert pace.enough(1)


def test_as_much_as_the_part_before_had_does_not_wait() -> None:
    pace = Pace(0.0, True)
    pace.begun(10.0, 800)
    pace.ended(10.02)
    assert pace.enough(800)
    assert not pace.enough(799)
    assert pace.due == 10.02 + (10.02 - 10.0) / 2


def test_what_is_under_way_does_not_count() -> None:
    pace = Pace(0.0, True)
    pace.begun(10.0, 800)
    assert not pace.enough(800 + 799)
    assert pace.enough(800 + 800)


def test_an_outage_and_a_large_part_delay_nothing_for_long() -> None:
    pace = Pace(0.0, True)
    pace.begun(10.0, 3 * PART_BYTES)
    pace.ended(99.0)
    assert pace.due == 99.0 + LONGEST_PAUSE_S
    assert pace.enough(PART_BYTES)


def test_without_waiting_changes_a_part_is_due_after_the_interval_or_when_it_is_full() -> None:
    pace = Pace(1.0, False)
    pace.turn(10.0)
    pace.begun(10.5, 100)
    pace.ended(10.6)
    assert pace.due == 11.0
    assert not pace.enough(PART_BYTES - 1)
    assert pace.enough(PART_BYTES)

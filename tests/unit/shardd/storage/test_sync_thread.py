"""Claims about the sync thread: quick syncs are waited for in place, others do not stop the loop."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import trio
from trio.testing import assert_no_checkpoints, wait_all_tasks_blocked

from proto.model.limits import Limits
from shardd.clock import SystemClock
from shardd.shard import opened_shard
from shardd.storage import sync_thread
from shardd.storage.disk import RealDisk
from shardd.storage.sync_thread import SyncThread


class Device:
    """A device whose syncs take as long as `took` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.took = 0.0
        self.now = 0.0
        monkeypatch.setattr(sync_thread, "PATIENCE_S", 60.0)
        monkeypatch.setattr(sync_thread, "monotonic", lambda: self.now)

    def sync(self) -> None:
        self.now += self.took


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


async def test_a_quick_sync_is_waited_for_in_place(device: Device) -> None:
    with SyncThread() as thread:
        for _ in range(3):
            with assert_no_checkpoints():
                await thread.run(device.sync)


async def test_a_sync_that_hangs_does_not_stop_the_loop() -> None:
    goes_on = threading.Event()
    with SyncThread() as thread:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread.run, goes_on.wait)
            await trio.sleep(2 * sync_thread.PATIENCE_S)
            goes_on.set()


async def test_after_a_slow_sync_the_loop_waits_in_place_only_once_syncs_stay_quick(device: Device) -> None:
    with SyncThread() as thread:
        device.took = 1.0
        await thread.run(device.sync)
        device.took = 0.0
        goes_on = threading.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread.run, goes_on.wait)
            await wait_all_tasks_blocked()
            goes_on.set()
        for _ in range(100):
            await thread.run(device.sync)
        with assert_no_checkpoints():
            await thread.run(device.sync)


async def test_each_sync_reports_its_own_error(device: Device) -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    with SyncThread() as thread:
        with pytest.raises(OSError, match="Input/output error"):
            await thread.run(fail)
        await thread.run(device.sync)


async def test_a_cancelled_sync_is_waited_for() -> None:
    ended = []
    goes_on = threading.Event()

    def sync() -> None:
        goes_on.wait()
        ended.append(True)

    async def cancelled() -> None:
        await thread.run(sync)
        assert ended

    with SyncThread() as thread:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancelled)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            goes_on.set()
    assert ended


async def test_shards_that_were_closed_leave_no_thread_and_no_descriptor(tmp_path: Path) -> None:
    def threads() -> int:
        return sum(each.name == "sync" for each in threading.enumerate())

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def once(number: int) -> None:
        path = tmp_path / str(number)
        path.mkdir()
        shard = opened_shard(RealDisk(), SystemClock(), path, Limits())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.commits.run)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        shard.close()

    await once(0)
    before = descriptors()
    for number in range(1, 100):
        await once(number)
    assert threads() == 0
    assert descriptors() <= before  # fewer, if something of an earlier test was closed meanwhile

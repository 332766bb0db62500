"""Claims about driven coroutines: they run by plain calls, go on in a task where they need one, and await no trio."""

from __future__ import annotations

import socket

import pytest
import trio

from proto.process.driven import Want, carried, drive, driven, in_driver, in_task, readable, turn, writable


async def test_each_wait_is_a_trap_for_the_driver() -> None:
    left, right = socket.socketpair()
    seen: list[bool] = []

    async def serve() -> None:
        await readable(left)
        await writable(left)
        await turn()
        await in_driver()
        seen.append(driven())

    with left, right:
        each = serve()
        assert [drive(each), drive(each), drive(each)] == [Want.INPUT, Want.ROOM, Want.TURN]
        with pytest.raises(StopIteration):
            drive(each)
        assert seen == [True]
        assert not driven()


async def test_the_same_waits_are_trios_in_a_task() -> None:
    left, right = socket.socketpair()
    left.setblocking(False)
    with left, right:
        right.send(b"x")
        await readable(left)
        await writable(left)
        await turn()
        await in_task()


async def test_a_coroutine_goes_on_in_a_task_and_comes_back() -> None:
    seen: list[str] = []

    async def serve() -> None:
        seen.append("driven" if driven() else "task")
        await in_task()
        with trio.CancelScope():
            await trio.lowlevel.checkpoint()
        seen.append("driven" if driven() else "task")
        await in_driver()
        seen.append("driven" if driven() else "task")
        await in_task()
        seen.append("driven" if driven() else "task")

    each = serve()
    assert drive(each) is Want.TASK
    assert await carried(each)
    assert drive(each) is Want.TASK
    assert not await carried(each)
    assert seen == ["driven", "task", "driven", "task"]


async def test_a_cancelled_task_cancels_the_coroutine_it_carries() -> None:
    ended: list[str] = []

    async def serve() -> None:
        await in_task()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            ended.append("cancelled")
            raise

    each = serve()
    drive(each)
    with trio.CancelScope() as scope:
        scope.cancel()
        await carried(each)
    assert ended == ["cancelled"]


async def test_a_driven_coroutine_that_awaits_trio_fails() -> None:
    async def serve() -> None:
        await trio.lowlevel.checkpoint()

    with pytest.raises(RuntimeError, match="awaits trio"):
        drive(serve())
    assert not driven()

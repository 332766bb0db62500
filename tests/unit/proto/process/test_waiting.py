"""How a run waits: steps are called without a tick of trio, and keep nothing of trio's waiting."""

from __future__ import annotations

import ast
import re
import select
import socket
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import pytest
import trio
from trio._core import _run
from trio.testing import MockClock

from proto.process import waiting


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    yield left, right
    left.close()
    right.close()


class Ticks(trio.abc.Instrument):
    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


NAME: ContextVar[str] = ContextVar("name", default="of the run")


async def test_a_step_runs_in_the_context_of_the_task_that_serves_it(ends: tuple[socket.socket, socket.socket]) -> None:
    names: list[str] = []

    def step() -> bool:
        names.append(NAME.get())
        return False

    async def serve() -> None:
        NAME.set("of the task")
        await waiting.serve(ends[0].fileno(), step)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await trio.testing.wait_all_tasks_blocked()
        ends[1].send(b"x")
        with trio.fail_after(60):
            while len(names) < 2:  # noqa: ASYNC110 - a step sets no event of a task
                await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    assert set(names) == {"of the task"}


async def test_steps_pass_messages_without_a_tick_of_trio(ends: tuple[socket.socket, socket.socket]) -> None:
    ticks, done = Ticks(), trio.Event()
    left = 1000

    def step_of(end: socket.socket) -> waiting.Step:
        def step() -> bool:
            nonlocal left
            try:
                end.send(end.recv(1))
            except BlockingIOError:
                return False
            left -= 1
            if not left:
                done.set()
            return False

        return step

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for end in ends:
                nursery.start_soon(waiting.serve, end.fileno(), step_of(end))
            await trio.testing.wait_all_tasks_blocked()
            trio.lowlevel.add_instrument(ticks)
            ends[0].send(b"x")
            await done.wait()
            nursery.cancel_scope.cancel()
    assert ticks.count < 10


async def test_a_task_that_a_step_schedules_runs_although_nothing_else_happens(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    woken = trio.Event()

    def step() -> bool:
        try:
            ends[0].recv(1)
        except BlockingIOError:
            return False
        woken.set()
        return False

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.serve, ends[0].fileno(), step)
            await trio.testing.wait_all_tasks_blocked()
            ends[1].send(b"x")
            await woken.wait()
            nursery.cancel_scope.cancel()


async def test_deadlines_threads_and_sockets_of_trio_are_served_beside_a_step_without_end(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            other, stream = trio.socket.socketpair()
            nursery.start_soon(waiting.serve, ends[0].fileno(), lambda: True)
            await trio.sleep(0.01)
            await trio.to_thread.run_sync(lambda: None)
            await stream.send(b"x")
            assert await other.recv(1) == b"x"
            nursery.start_soon(other.send, b"y")
            assert await stream.recv(1) == b"y"
            nursery.cancel_scope.cancel()
        other.close()
        stream.close()


async def test_a_descriptor_may_have_a_step_after_a_task_waited_for_it(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    got: list[bytes] = []
    done = trio.Event()

    def step() -> bool:
        try:
            got.append(ends[0].recv(1))
        except BlockingIOError:
            return False
        done.set()
        return False

    with trio.fail_after(60):
        ends[1].send(b"x")
        await trio.lowlevel.wait_readable(ends[0])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.serve, ends[0].fileno(), step)
            await done.wait()
            nursery.cancel_scope.cancel()
    assert got == [b"x"]


async def test_an_error_of_a_step_ends_what_serves_it(ends: tuple[socket.socket, socket.socket]) -> None:
    def step() -> bool:
        ends[0].recv(1)  # raises when there is nothing
        return False

    ends[1].send(b"x")
    with trio.fail_after(60), pytest.raises(BlockingIOError):
        await waiting.serve(ends[0].fileno(), lambda: step() or True)
    await waiting_again(ends[0])


async def waiting_again(end: socket.socket) -> None:
    """The descriptor is free for a task."""
    with trio.move_on_after(0):
        await trio.lowlevel.wait_readable(end)


async def test_no_step_is_called_once_its_task_is_cancelled(ends: tuple[socket.socket, socket.socket]) -> None:
    called: list[int] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.serve, ends[0].fileno(), lambda: called.append(1) or True)
            while not called:
                await trio.lowlevel.checkpoint()
            ends[1].send(b"x")
            nursery.cancel_scope.cancel()
            called.clear()
        waiter = waiting.current()
        assert waiter is not None
        waiter.again(ends[0].fileno())
        await trio.lowlevel.checkpoint()
    assert called == []
    await waiting_again(ends[0])


async def test_the_end_of_a_turn_comes_before_a_task_runs_and_before_the_wait(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    order: list[str] = []
    done = trio.Event()
    waiter = waiting.current()
    assert waiter is not None

    def step() -> bool:
        try:
            ends[0].recv(1)
        except BlockingIOError:
            return False
        order.append("step")
        waiter.at_end(lambda: order.append("end"))
        done.set()
        return False

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.serve, ends[0].fileno(), step)
            ends[1].send(b"x")
            await done.wait()
            order.append("task")
            nursery.cancel_scope.cancel()
    assert order == ["step", "end", "task"]


def test_a_clock_of_a_test_still_jumps(ends: tuple[socket.socket, socket.socket]) -> None:
    async def main() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.serve, ends[0].fileno(), lambda: False)
            began = trio.current_time()
            await trio.sleep(1000)
            nursery.cancel_scope.cancel()
        return trio.current_time() - began

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) >= 1000


def test_there_is_no_waiter_outside_of_trio() -> None:
    assert waiting.current() is None


# The names of trio's inner parts, each with what depends on it. A test that fails with a new release of trio says what
# no longer works; docs/adr/0002-trio.md says what the way without them costs.
INNER = {"_run", "TheIOManager", "GLOBAL_RUN_CONTEXT", "runner", "io_manager", "runq", "EpollIOManager", "_epoll"}


def test_no_other_inner_name_of_trio_is_used() -> None:
    source = ast.parse(Path(waiting.__file__).read_text())
    imported = {
        alias.name
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trio._")
        for alias in node.names
    }
    texts = ast.unparse(source)
    used = {name for name in INNER if re.search(rf"\b{name}\b", texts)}
    chained = {
        node.attr
        for node in ast.walk(source)
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("_run.")
    }
    assert imported == {"_run", "EpollIOManager"}
    assert chained == {"GLOBAL_RUN_CONTEXT", "runner", "io_manager", "runq"}
    assert used == INNER


async def test_the_io_manager_of_a_run_is_made_by_its_name_in_the_module_of_runs() -> None:
    """`TheIOManager`, `GLOBAL_RUN_CONTEXT.runner.io_manager`: else trio waits by itself, and no step is ever called."""
    assert vars(_run)["TheIOManager"] is waiting.Waiter
    assert type(_run.GLOBAL_RUN_CONTEXT.runner.io_manager) is waiting.Waiter
    assert waiting.current() is _run.GLOBAL_RUN_CONTEXT.runner.io_manager


async def test_the_queue_of_a_run_has_the_tasks_that_can_run() -> None:
    """`runq`: else a task that a step wakes runs only at trio's next deadline, or event."""
    queue, woken = _run.GLOBAL_RUN_CONTEXT.runner.runq, trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(woken.wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not queue
        woken.set()
        assert len(queue) == 1


async def test_trio_waits_in_get_events_and_in_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """`get_events`: else the steps are never called. Its argument is the longest wait in seconds."""
    timeouts: list[float] = []
    wait = waiting.Waiter.get_events

    def noted(self: waiting.Waiter, timeout: float) -> object:
        timeouts.append(timeout)
        return wait(self, timeout)

    monkeypatch.setattr(waiting.Waiter, "get_events", noted)
    await trio.sleep(0.01)
    assert timeouts
    assert max(timeouts) <= 0.01


async def test_the_epoll_set_of_trio_takes_descriptors_of_others(ends: tuple[socket.socket, socket.socket]) -> None:
    """`_epoll`: else a descriptor with a step and one that a task waits for cannot be waited for together."""
    waiter = waiting.current()
    assert waiter is not None
    assert isinstance(waiter._epoll, select.epoll)
    waiter._epoll.register(ends[0], select.EPOLLIN)
    ends[1].send(b"x")
    assert waiter._epoll.poll(1) == [(ends[0].fileno(), select.EPOLLIN)]
    waiter._epoll.unregister(ends[0])

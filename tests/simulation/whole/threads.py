"""Threads: calls that the product makes in a worker thread, and that ask the store there.

Such a call waits for answers without a task. So it runs in a thread of its own, but never at the same time as another
one: the task that makes the call stands still while the thread runs, and the thread while it waits on the simulation's
clock (`wait`). What happens is one order of events, as of tasks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import outcome
import trio

from tests.simulation.whole import inner_trio
from tests.simulation.whole.network import PROCESS
from tests.simulation.whole.seams import Slow
from tests.support.fault_disk import Crash

T = TypeVar("T")


class _Worker:
    """A thread. It runs from `begin` or `go_on` until it waits or its call has ended."""

    def __init__(self) -> None:
        self.wait_s: float | None = None
        """For how long it waits; None if its call has ended."""
        self.made: outcome.Maybe[Any] | None = None
        self._call: Callable[[], Any] | None = None
        self._enter: Callable[[], None] | None = None
        self._dies = False
        self._turn, self._back = threading.Lock(), threading.Lock()
        self._turn.acquire()
        self._back.acquire()
        threading.Thread(target=self._run, name="simulated worker", daemon=True).start()

    def begin(self, call: Callable[[], Any]) -> None:
        self._call, self._enter, self._dies = call, inner_trio.here(), False
        self._step()

    def go_on(self, dies: bool) -> None:
        """`dies`: its process has ended."""
        self._dies = dies
        self._step()

    def _step(self) -> None:
        self._turn.release()
        self._back.acquire()

    def wait(self, seconds: float) -> None:
        self.wait_s = seconds
        self._back.release()
        self._turn.acquire()
        if self._dies:
            raise Crash

    def _run(self) -> None:
        _HERE.worker = self
        while True:
            self._turn.acquire()
            assert self._call is not None
            assert self._enter is not None
            self._enter()
            self.made = outcome.capture(self._call)
            self.wait_s = self._call = None
            self._back.release()


_HERE = threading.local()
_IDLE: list[_Worker] = []


def wait(seconds: float) -> None:
    """Let time pass, in a worker thread. Raises `Crash` if the process has ended meanwhile."""
    worker: _Worker = _HERE.worker
    worker.wait(seconds)


class Threads(Slow):
    """Calls in threads, which take as long as the store lets them besides."""

    async def made(self, call: Callable[[], T]) -> outcome.Maybe[T]:
        process = PROCESS.get()
        worker = _IDLE.pop() if _IDLE else _Worker()
        worker.begin(partial(copy_context().run, call))
        while worker.wait_s is not None:
            with trio.move_on_after(worker.wait_s):
                await process.ended.wait()
            worker.go_on(process.dead)
        found, worker.made = worker.made, None
        _IDLE.append(worker)
        assert found is not None
        return found

    async def run_sync(
        self,
        call: Callable[..., T],
        *args: Any,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
        **more: Any,
    ) -> T:
        if not abandon_on_cancel:
            return await super().run_sync(call, *args, **more)
        found: list[outcome.Maybe[T]] = []
        ended = trio.Event()
        token = object()
        if limiter is not None:
            await limiter.acquire_on_behalf_of(token)

        async def aside() -> None:
            found.append(await outcome.acapture(partial(super(Threads, self).run_sync, call, *args)))
            if limiter is not None:
                limiter.release_on_behalf_of(token)
            ended.set()

        PROCESS.get().home.nursery.start_soon(aside)
        await ended.wait()
        return found[0].unwrap()


class AtOnce:
    """In place of a pool of threads: each call is made when it is submitted."""

    def __init__(self, most: int) -> None:
        pass

    def __enter__(self) -> AtOnce:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(call(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class Patience:
    """In place of `threading.Event`, of a call in a thread that waits for it with a limit."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, seconds: float) -> bool:
        if not self._set:
            wait(seconds)
        return self._set

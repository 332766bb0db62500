"""Seams: what of the product is replaced while a simulation runs. Everything is put back afterwards."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from random import Random
from types import SimpleNamespace, TracebackType
from typing import Any, TypeVar

import outcome
import pytest
import structlog
import trio

from proto.ipc import link
from proto.ipc.suspects import Suspects
from proto.process import faults
from shardd.clock import SystemClock
from shardd.delivery import name_reads
from shardd.process import main, peers, server
from shardd.queues import job_requests
from shardd.storage import group_commit, indivisible
from tests.conftest import LACKING
from tests.simulation.whole.network import PROCESS, Socket
from tests.simulation.whole.processes import Process

T = TypeVar("T")
EPOCH_NS = 1_700_000_000 * 10**9
LOUD = structlog.make_filtering_bound_logger(logging.WARNING)


def now() -> float:
    """Seconds of the simulation's clock."""
    return trio.current_time()


def now_ns() -> int:
    return int(trio.current_time() * 1e9)


def wall_ns(process: Process) -> int:
    """The wall clock of a process's machine."""
    return EPOCH_NS + now_ns() + int(process.home.skew_s * 1e9)


class SimulatedClock(SystemClock):
    monotonic = staticmethod(now)

    def __init__(self) -> None:
        super().__init__(partial(wall_ns, PROCESS.get()), now_ns)


class Slow:
    """Calls that the product makes in a thread: a seeded time passes before each, and before its end is seen."""

    def __init__(self, rng: Random, longest_s: float = 0.1) -> None:
        self._rng = rng
        self._longest_s = longest_s

    def _time(self) -> float:
        draw = self._rng.random()
        return 0.0 if draw < 0.4 else self._rng.random() * (0.002 if draw < 0.95 else self._longest_s)

    async def made(self, call: Callable[[], T]) -> outcome.Maybe[T]:
        """What a call makes."""
        return outcome.capture(call)

    async def run_sync(self, call: Callable[..., T], *args: Any, **_: Any) -> T:
        with trio.CancelScope(shield=True):
            before, after = self._time(), self._time()
            if before:
                await trio.sleep(before)
            made = await self.made(partial(call, *args))
            if after and not PROCESS.get().dead:
                await trio.sleep(after)
        return made.unwrap()


class SyncThread:
    """In place of that of group commit."""

    slow: Slow

    def __enter__(self) -> SyncThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def run(self, job: Callable[[], None]) -> None:
        await self.slow.run_sync(job)


class OfProcess(indivisible.Indivisible):
    """Each process of the simulation has its own `broken`; what unwinds in a dead one breaks nothing."""

    __slots__ = ()

    @property
    def broken(self) -> bool:
        process = PROCESS.get(None)
        return process is not None and process.broken

    @broken.setter
    def broken(self, value: bool) -> None:
        process = PROCESS.get(None)
        if process is not None and not process.dead:
            process.broken = value


@contextmanager
def replaced(rng: Random, failed: Callable[[str], object], slow: Slow) -> Iterator[None]:
    """Inside, the product runs on the simulation. `failed` hears of each fault of a process that lives. `slow` has the
    calls in threads."""
    logged = structlog.get_config()

    def heard(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if event["event"] in LACKING:
            failed(f"the log says {event}")
        raise structlog.DropEvent

    def count(self: faults.Faults, operation: str, **detail: Any) -> Any:
        error = counted(self, operation, **detail)
        process = PROCESS.get()
        if not process.dead:
            failed(f"{process.name} fails at {operation}")
        return error

    counted = faults.Faults.failed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", now)
        patch.setattr(time, "monotonic_ns", now_ns)
        patch.setattr(trio.to_thread, "run_sync", slow.run_sync)
        patch.setattr(SyncThread, "slow", slow, raising=False)
        patch.setattr(group_commit, "SyncThread", SyncThread)
        patch.setattr(main, "SystemClock", SimulatedClock)
        patch.setattr(main, "MessageSocket", Socket)
        patch.setattr(link, "MessageSocket", Socket)
        patch.setattr(main, "gc", SimpleNamespace(disable=lambda: None))
        patch.setattr(main, "calm", lambda: None)
        patch.setattr(main, "links", _links)
        patch.setattr(server, "search", lambda things: None)
        patch.setattr(server, "trim_heap", lambda: None)
        patch.setattr(job_requests, "os", SimpleNamespace(urandom=rng.randbytes))
        patch.setattr(name_reads, "randbits", rng.getrandbits)
        patch.setattr(faults, "secrets", SimpleNamespace(token_hex=lambda size: rng.randbytes(size).hex()))
        patch.setattr(faults.Faults, "failed", count)
        patch.setattr(Suspects.__init__, "__defaults__", (now,))
        patch.setattr(faults.faults, "_monotonic", now)
        patch.setattr(faults.faults, "_window_ends", 0.0)
        indivisible.indivisible.__class__ = OfProcess
        structlog.configure(processors=[heard], wrapper_class=LOUD)
        try:
            yield
        finally:
            indivisible.indivisible.__class__ = indivisible.Indivisible
            structlog.configure(**logged)


def _links(*args: Any) -> Any:
    found = peers.links(*args)
    found.read = Socket.read  # type: ignore[assignment]
    return found

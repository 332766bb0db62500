"""Processes: scopes of tasks with a disk and ends of links, which end at any moment as by SIGKILL."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

from tests.simulation.whole.network import PROCESS, Network
from tests.support.fault_disk import Crash, FaultDisk

if TYPE_CHECKING:
    from random import Random

KILLED = -9


class Process:
    """A process. It is `dead` from its end on, though its tasks still unwind: nothing that they do counts."""

    disk: Any
    """That of its shard, of a process that looks for a disk by itself."""

    def __init__(self, name: str, home: Any) -> None:
        """`home` is its machine."""
        self.name = name
        self.home = home
        self.network: Network = home.network
        self.dead = False
        self.paused = False
        self.broken = False
        """That of `shardd.storage.indivisible`."""
        self.status = 0
        self.ended = trio.Event()
        self.at_end: list[Callable[[], object]] = []
        """Called at its end, in order."""
        self._scope = trio.CancelScope()

    async def run(self, main: Callable[[], Awaitable[int]]) -> None:
        """Run the process to its end."""
        PROCESS.set(self)
        status = KILLED
        try:
            with self._scope:
                status = await main()
        except BaseException as error:
            if _is_cancelled(error):
                raise
            if not self.dead:
                self.home.crashed(self, "".join(traceback.format_exception(error)))
        self.end(status)

    def end(self, status: int = KILLED) -> None:
        """End the process at once."""
        if self.dead:
            return
        self.dead, self.paused, self.status = True, False, status
        for each in self.at_end:
            each()
        self._scope.cancel()
        self.ended.set()


def _is_cancelled(error: BaseException) -> bool:
    """Whether it only says that the run ends."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_cancelled, error.exceptions))
    return isinstance(error, trio.Cancelled)


class Disk(FaultDisk):
    """The disk of a shard, for one process. Its process may end at a call."""

    dies_in: list[int]
    """After how many calls this process ends, then the next ones."""
    next_fault: dict[str, OSError | int]
    sync_failed: bool
    """Whether a sync of this process failed."""

    @classmethod
    def of(cls, disk: FaultDisk) -> Disk:
        """The contents of another disk."""
        made = cls(disk.boot)
        made.dies_in = []
        vars(made).update(vars(disk))
        made.next_fault = {}
        made.sync_failed = False
        return made

    def begin(self, process: Process) -> None:
        self._process = process

    def call(self, what: str, name: str) -> OSError | int | None:
        process = self._process
        if process.dead:
            raise Crash
        if self.dies_in:
            self.dies_in[0] -= 1
            if self.dies_in[0] <= 0:
                del self.dies_in[0]
                process.network.tell(f"{process.name} dies before {what} {name}")
                process.end()
                raise Crash
        fault = self.next_fault.pop(what, None)
        if fault is None:
            return None
        process.network.tell(f"{process.name}: {what} {name} fails")
        self.sync_failed |= what == "sync"
        if isinstance(fault, OSError):
            raise fault
        return fault


def cut(disk: FaultDisk, rng: Random) -> FaultDisk:
    """What a device has after a power cut."""
    return disk.after_crash("tear" if rng.random() < 0.7 else "drop", rng.randrange(1 << 30))

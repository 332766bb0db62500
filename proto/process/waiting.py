"""How a trio run waits: in one epoll set, in which descriptors may have plain callbacks besides trio's tasks.

A tick of trio costs more than what most messages need: it re-arms a descriptor, computes deadlines and switches tasks.
So a socket that has many messages is not waited for by a task. It has a *step*, a plain function, which is called from
trio's wait itself:

    trio waits ──► the turn ends: what it has to send is sent (`at_end`)
           ▲       wait for events, until the next deadline of trio
           │       a step for each descriptor that is readable
           └────── nothing for trio: wait again      a task can run, an event or a deadline of trio: return to trio

Steps run outside of all tasks, in the context (`contextvars`) of the task that serves them. They must not block. They
may schedule tasks, and trio runs those at once. A step must not move a deadline of trio's, because trio would learn of
it only when it wakes.

`Waiter` takes the place of trio's own manager of events in every run of the process. trio has no interface for that.
Of its inner parts, the module uses `TheIOManager`, `EpollIOManager` with `get_events` and `_epoll`, and `Runner.runq`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from select import EPOLLIN
from time import monotonic
from typing import Any

import trio
from outcome import Error
from trio._core import _run
from trio._core._io_epoll import EpollIOManager

MOST_EVENTS = 256
"""Events taken from the kernel at a time."""

Step = Callable[[], bool]
"""Does what can be done without waiting. Returns True to be called again, after trio had its turn."""


class Waiter(EpollIOManager):
    """The manager of events of one trio run."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[int, Step] = {}
        self._due: set[int] = set()
        """Descriptors whose steps are called without an event."""
        self._ends: list[Callable[[], object]] = []

    def watch(self, descriptor: int, step: Step) -> None:
        """Call `step` whenever `descriptor` is readable, and once now. No task may wait for it meanwhile."""
        try:
            self._epoll.register(descriptor, EPOLLIN)
        except FileExistsError:  # trio leaves a descriptor in the set when a task has waited for it
            self._epoll.modify(descriptor, EPOLLIN)
        self._steps[descriptor] = step
        self._due.add(descriptor)

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`. Does nothing if it is undone already."""
        if self._steps.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def again(self, descriptor: int) -> None:
        """Call the step of `descriptor` before trio waits, although it may not be readable."""
        self._due.add(descriptor)

    def at_end(self, end: Callable[[], object]) -> None:
        """Call `end`, which must not fail, once when the turn ends: before trio waits, or a task runs."""
        self._ends.append(end)

    def get_events(self, timeout: float) -> Any:
        """Trio's wait. Returns trio's own events."""
        until = monotonic() + timeout
        steps, runnable = self._steps, _run.GLOBAL_RUN_CONTEXT.runner.runq
        while True:
            self._end_turn()
            due, self._due = self._due, set()
            others = []
            for event in self._epoll.poll(0 if due else max(timeout, 0), MOST_EVENTS):
                if event[0] in steps:
                    due.add(event[0])
                else:
                    others.append(event)
            if not due:
                return others
            for descriptor in due:
                step = steps.get(descriptor)
                if step is not None and step():
                    self._due.add(descriptor)
            timeout = until - monotonic()
            if others or runnable or timeout <= 0:
                self._end_turn()
                return others

    def _end_turn(self) -> None:
        while self._ends:
            ends, self._ends = self._ends, []
            for end in ends:
                end()


vars(_run)["TheIOManager"] = Waiter


def current() -> Waiter | None:
    """The waiter of this trio run; None outside of trio."""
    if not trio.lowlevel.in_trio_run():
        return None
    found = _run.GLOBAL_RUN_CONTEXT.runner.io_manager
    assert isinstance(found, Waiter), "the run began before this module was loaded"
    return found


async def serve(descriptor: int, step: Step) -> None:
    """Call `step` at once and whenever `descriptor` is readable, until cancelled. Raises what it raises."""
    waiter, task = current(), trio.lowlevel.current_task()
    assert waiter is not None
    within = copy_context().run

    def guarded() -> bool:
        try:
            return within(step)
        except Exception as error:
            waiter.unwatch(descriptor)
            trio.lowlevel.reschedule(task, Error(error))
            return False

    def abort(_: object) -> trio.lowlevel.Abort:
        waiter.unwatch(descriptor)
        return trio.lowlevel.Abort.SUCCEEDED

    waiter.watch(descriptor, guarded)
    await trio.lowlevel.wait_task_rescheduled(abort)

"""The service manager's watchdog: it is told that all is well only while every child answers.

With WATCHDOG_USEC set (systemd's `WatchdogSec=`) each child is asked for a sign four times in that time, and any
message of it counts as one. While every process there is has given one within half of it, WATCHDOG=1 is sent; when one
hangs, it is not, and the service manager ends and starts the whole service. A child that dies is no such case: it is
started again by `child`. While the service ends, the deadlines of each step watch instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from proto.control import Ping
from supervisor.child import Child
from supervisor.notify import Notifier
from supervisor.states import State

VARIABLE = "WATCHDOG_USEC"
PID_VARIABLE = "WATCHDOG_PID"
_WATCHED = (State.STARTING, State.SERVING)


def timeout_s(environment: Mapping[str, str], pid: int) -> float | None:
    """Seconds within which the manager wants a sign of process `pid`; None if it wants none."""
    try:
        microseconds = int(environment.get(VARIABLE, "0"))
        meant = int(environment.get(PID_VARIABLE) or pid)
    except ValueError:
        return None
    return microseconds / 1e6 if microseconds > 0 and meant == pid else None


class Watchdog:
    def __init__(self, timeout_s: float, children: Sequence[Child], notifier: Notifier, logger: Any) -> None:
        self._timeout_s = timeout_s
        self._children = children
        self._notifier = notifier
        self._log = logger
        self._silent: set[str] = set()

    async def run(self, ending: Callable[[], bool]) -> None:
        """Until cancelled. Asking has a task per child: one that does not read must not keep the others from it."""
        async with trio.open_nursery() as nursery:
            for child in self._children:
                nursery.start_soon(self._ask, child)
            while True:
                if ending() or self._all_answer():
                    self._notifier.watchdog()
                await trio.sleep(self._timeout_s / 4)

    async def _ask(self, child: Child) -> None:
        while True:
            if child.state in _WATCHED:
                await child.tell(Ping())
            await trio.sleep(self._timeout_s / 4)

    def _all_answer(self) -> bool:
        now = trio.current_time()
        silent = {
            child.name
            for child in self._children
            if child.state in _WATCHED and now - child.heard_at > self._timeout_s / 2
        }
        for name in sorted(silent - self._silent):
            self._log.error("child_does_not_answer", child=name, action="the service manager's watchdog is not fed")
        if silent != self._silent and silent:
            self._notifier.status("does not answer: " + ", ".join(sorted(silent)))
        self._silent = silent
        return not silent

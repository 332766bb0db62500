"""Watches the children: one that hangs is killed, and the service manager hears that all is well only while it is.

Every child is asked for a sign each tick (`Ping`), which it gives from its event loop; any message of it counts as one.

    a child serves, and has given none for TOPICS_HANG_TIMEOUT_MS       it is killed, and started again as after a crash
    a child starts (reads its log), and has given none for 30 times     the same; its progress counts as a sign
    it ends                                                              not watched here: each step has a deadline

Silence is counted in the supervisor's own ticks, of which each counts twice its length at most. So a pause of the whole
machine, of its container or of the supervisor itself is nobody's silence, and a child always has time to answer after
it.

With WATCHDOG_USEC set (systemd's `WatchdogSec=`) WATCHDOG=1 is sent as long as no child that serves, or was just made,
has been silent for half of that time. So the service manager ends and starts the whole service when the supervisor
itself hangs, when TOPICS_HANG_TIMEOUT_MS=0 leaves a hang to it, or when a child cannot even be killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from proto.ipc.control import Ping
from supervisor.process.child import Child
from supervisor.process.notify import Notifier
from supervisor.process.states import State

VARIABLE = "WATCHDOG_USEC"
PID_VARIABLE = "WATCHDOG_PID"
LONGEST_TICK_S = 1.0
START_FACTOR = 30
"""How much longer a child that starts may be silent: it reads a catalog in one go."""
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
    """`hang_s`: the silence after which a child that serves is killed; `manager_s`: within which the service manager
    wants a sign. None for either: not at all."""

    def __init__(
        self,
        hang_s: float | None,
        manager_s: float | None,
        children: Sequence[Child],
        notifier: Notifier,
        logger: Any,
    ) -> None:
        self._hang_s = hang_s
        self._manager_s = manager_s
        self._children = children
        self._notifier = notifier
        self._log = logger
        self._tick_s = min(LONGEST_TICK_S, *(each / 4 for each in (hang_s, manager_s) if each is not None))
        self._silence = {child.name: 0.0 for child in children}
        self._told: set[str] = set()

    async def run(self, ending: Callable[[], bool]) -> None:
        """Until cancelled. Asking has a task per child: one that does not read must not keep the others from it."""
        async with trio.open_nursery() as nursery:
            for child in self._children:
                nursery.start_soon(self._ask, child)
            last = trio.current_time()
            while True:
                if self._manager_s is not None and (ending() or not self._unwell(self._manager_s / 2)):
                    self._notifier.watchdog()
                await trio.sleep(self._tick_s)
                now = trio.current_time()
                self.look(last, now)
                last = now

    async def _ask(self, child: Child) -> None:
        while True:
            if child.state in _WATCHED:
                await child.tell(Ping())
            await trio.sleep(self._tick_s)

    def look(self, last: float, now: float) -> None:
        """A tick is over, which began at `last`: count silence, and kill what hangs."""
        counted = min(now - last, 2 * self._tick_s)
        for child in self._children:
            if child.state not in _WATCHED or child.heard_at >= last:
                self._silence[child.name] = 0.0
                continue
            silence = self._silence[child.name] = self._silence[child.name] + counted
            factor = 1 if child.state is State.SERVING else START_FACTOR
            if self._hang_s is not None and silence >= self._hang_s * factor:
                self._log.error("child_hung", child=child.name, silent_s=round(silence, 1), action="killed")
                self._silence[child.name] = 0.0
                child.hangs += 1
                child.kill()

    def _unwell(self, limit_s: float) -> bool:
        """Whether a child has been silent for too long for the service manager."""
        silent = {
            child.name
            for child in self._children
            if (child.state is State.SERVING or (child.state is State.STARTING and not child.spoken))
            and self._silence[child.name] >= limit_s
        }
        for name in sorted(silent - self._told):
            self._log.error("child_does_not_answer", child=name, action="the service manager's watchdog is not fed")
        if silent != self._told and silent:
            self._notifier.status("does not answer: " + ", ".join(sorted(silent)))
        self._told = silent
        return bool(silent)

"""Watchdog: kills children that hang, and feeds the service manager's watchdog while all children answer.

Each tick the watchdog sends `Ping` to every child, which answers from its event loop. Any message counts as an answer.

    a child serves, and is silent for TOPICS_HANG_TIMEOUT_MS            it is killed, and restarted as after a crash
    a child starts (reads its log), and is silent 30 times as long      the same; progress messages count as answers
    a gateway retires, and is silent for TOPICS_HANG_TIMEOUT_MS         it is killed; its successor is started
    a child stops                                                       not watched here: each step has a deadline

Silence is counted in the supervisor's own ticks, each of which counts at most twice its length. A pause of the machine,
of its container or of the supervisor therefore does not count as silence, and children have time to answer after it.

With WATCHDOG_USEC set (systemd's `WatchdogSec=`), WATCHDOG=1 is sent unless a child that serves, or was just started,
has been silent for half of that time. The service manager thus restarts the service if the supervisor itself hangs, if
TOPICS_HANG_TIMEOUT_MS=0 disables the kill, or if a child cannot be killed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from proto.ipc.control import Ping
from supervisor.process.child import Child
from supervisor.process.notify import Notifier
from supervisor.process.states import ChildState

VARIABLE = "WATCHDOG_USEC"
PID_VARIABLE = "WATCHDOG_PID"
LONGEST_TICK_S = 1.0
START_FACTOR = 30
"""How many times longer a starting child may be silent, because it reads a catalog without yielding."""
_WATCHED = (ChildState.STARTING, ChildState.SERVING, ChildState.LEAVING)


def timeout_s(environment: Mapping[str, str], pid: int) -> float | None:
    """The service manager's watchdog interval for process `pid`, in seconds; None if it has none."""
    try:
        microseconds = int(environment.get(VARIABLE, "0"))
        meant = int(environment.get(PID_VARIABLE) or pid)
    except ValueError:
        return None
    return microseconds / 1e6 if microseconds > 0 and meant == pid else None


@dataclass(eq=False)
class Watchdog:
    """Watchdog of the `children`, a list that may change. A serving child is killed after `hang_s` of silence; None
    disables this. `manager_s` is the service manager's watchdog interval, None if it has none."""

    hang_s: float | None
    manager_s: float | None
    children: Sequence[Child]
    notifier: Notifier
    log: Any
    _silence: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _told: set[str] = field(default_factory=set)

    @property
    def _tick_s(self) -> float:
        return min([LONGEST_TICK_S, *(each / 4 for each in (self.hang_s, self.manager_s) if each is not None)])

    async def run(self, ending: Callable[[], bool]) -> None:
        """Watch until cancelled."""
        last = trio.current_time()
        while True:
            if self.manager_s is not None and (ending() or not self._unwell(self.manager_s / 2)):
                self.notifier.watchdog()
            await trio.sleep(self._tick_s)
            now = trio.current_time()
            self.look(last, now)
            last = now

    async def ask(self, child: Child) -> None:
        """Send pings to a child until cancelled. A task for each child, because one that does not read blocks its
        sender."""
        while True:
            if child.state in _WATCHED:
                await child.tell(Ping())
            await trio.sleep(self._tick_s)

    def look(self, last: float, now: float) -> None:
        """End the tick that began at `last`: count silence, and kill children that hang."""
        counted = min(now - last, 2 * self._tick_s)
        for child in self.children:
            if child.state not in _WATCHED or child.living.heard_at >= last:
                self._silence[child.name] = 0.0
                continue
            silence = self._silence[child.name] = self._silence[child.name] + counted
            factor = START_FACTOR if child.state is ChildState.STARTING else 1
            if self.hang_s is not None and silence >= self.hang_s * factor:
                self.log.error("child_hung", child=child.name, silent_s=round(silence, 1), action="killed")
                self._silence[child.name] = 0.0
                child.hangs += 1
                child.kill()

    def _unwell(self, limit_s: float) -> bool:
        """Whether a child has been silent for `limit_s`, so that the service manager is not fed."""
        silent = {
            child.name
            for child in self.children
            if (child.state is ChildState.SERVING or (child.state is ChildState.STARTING and not child.living.spoken))
            and self._silence[child.name] >= limit_s
        }
        for name in sorted(silent - self._told):
            self.log.error("child_does_not_answer", child=name, action="the service manager's watchdog is not fed")
        if silent != self._told and silent:
            self.notifier.status("does not answer: " + ", ".join(sorted(silent)))
        self._told = silent
        return bool(silent)

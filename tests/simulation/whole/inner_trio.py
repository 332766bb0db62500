"""Inner parts of trio: the order of tasks, tasks that are held back, and the wait for what comes next. Only this module
uses them."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, TypeVar

import trio
from trio._core import _run
from trio.abc import Clock

from proto.process.waiting import Waiter

T = TypeVar("T")
BEGINS_AT = 1000.0
"""The clock's first time, in s: a time of 0 is often taken for none."""


class ReadyTasks(deque[Any]):
    """The tasks that are ready. Those of which `held` is true stay, and count as waiting."""

    held: Callable[[Any], bool]

    def __iter__(self) -> Iterator[Any]:
        return iter([task for task in super().__iter__() if not self.held(task)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return len(self) > 0

    def clear(self) -> None:
        kept = [task for task in super().__iter__() if self.held(task)]
        super().clear()
        self.extend(kept)

    def all(self) -> deque[Any]:
        return deque(super().__iter__())


def hold(held: Callable[[Any], bool] | None) -> None:
    """Hold back the tasks of which `held` is true from now on; with None, no task."""
    runner: Any = _run.GLOBAL_RUN_CONTEXT.runner
    ready: deque[Any] = runner.runq
    runner.runq = ready.all() if isinstance(ready, ReadyTasks) else deque(ready)
    if held is not None:
        runner.runq = ReadyTasks(runner.runq)
        runner.runq.held = held


class JumpingClock(Clock):
    """A clock that the timeline moves."""

    now = BEGINS_AT

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return max(deadline - self.now, 0.0)


class Timeline(Waiter):
    """Trio's wait: it jumps to the next deadline, or to what is due `at` an earlier time."""

    def __init__(self) -> None:
        super().__init__()
        self._due_at: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def at(self, due: float, happens: Callable[[], object]) -> None:
        """Have `happens` called at a time. It may schedule tasks, and must not wait."""
        heappush(self._due_at, (due, next(self._numbers), happens))

    def get_events(self, timeout: float) -> Any:
        runner: Any = _run.GLOBAL_RUN_CONTEXT.runner
        self._end_turn()
        while not runner.runq:
            due = min(self._due_at[0][0] if self._due_at else inf, runner.deadlines.next_deadline())
            if due == inf:
                return super().get_events(timeout)  # trio wakes itself, by a socket pair, when a run ends
            runner.clock.now = max(due, runner.clock.now)
            while self._due_at and self._due_at[0][0] <= due:
                heappop(self._due_at)[2]()
            self._end_turn()
            if due >= runner.deadlines.next_deadline():
                break
        return []


def here() -> Callable[[], None]:
    """Returns a function that makes another thread see the present run, its clock and its timeline. Only one thread
    may run at a time."""
    runner = _run.GLOBAL_RUN_CONTEXT.runner

    def enter() -> None:
        _run.GLOBAL_RUN_CONTEXT.runner = runner

    return enter


def timeline() -> Timeline:
    """That of the present run."""
    found = _run.GLOBAL_RUN_CONTEXT.runner.io_manager
    assert isinstance(found, Timeline)
    return found


def run(seed: int, main: Callable[[], Awaitable[T]]) -> T:
    """Run `main` under a clock that jumps, with an order of tasks that follows from `seed`. Returns what it returns."""
    state, before = _run._r.getstate(), _run._ALLOW_DETERMINISTIC_SCHEDULING
    manager = vars(_run)["TheIOManager"]
    vars(_run)["_ALLOW_DETERMINISTIC_SCHEDULING"] = True
    vars(_run)["TheIOManager"] = Timeline
    _run._r.seed(seed)
    try:
        return trio.run(main, clock=JumpingClock())
    finally:
        vars(_run)["_ALLOW_DETERMINISTIC_SCHEDULING"] = before
        vars(_run)["TheIOManager"] = manager
        _run._r.setstate(state)

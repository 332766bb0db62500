"""Inner parts of trio: the order of tasks, and tasks that are held back. Only this module uses them."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import trio
from trio._core import _run
from trio.testing import MockClock

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


def run(seed: int, main: Callable[[], Awaitable[T]]) -> T:
    """Run `main` under a clock that jumps, with an order of tasks that follows from `seed`. Returns what it returns."""
    state, before = _run._r.getstate(), _run._ALLOW_DETERMINISTIC_SCHEDULING
    clock = MockClock(autojump_threshold=0)
    clock.jump(BEGINS_AT)
    vars(_run)["_ALLOW_DETERMINISTIC_SCHEDULING"] = True
    _run._r.seed(seed)
    try:
        return trio.run(main, clock=clock)
    finally:
        vars(_run)["_ALLOW_DETERMINISTIC_SCHEDULING"] = before
        _run._r.setstate(state)

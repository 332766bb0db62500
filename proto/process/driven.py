"""Driven coroutines: coroutines that a driver resumes by plain calls, at a fraction of the cost of a trio task.

A coroutine is written once and runs in either way. Awaited functions ask `driven` which of them it is:

    driven        a wait yields a *trap* to the driver, which arranges for the coroutine to be resumed
    in a task     a wait is trio's own

A driven coroutine must await nothing of trio's, because trio would suspend the driver's task in its place. Code that
needs trio (cancel scopes, nurseries, events, threads) awaits `in_task` first: the driver then continues the same
coroutine inside a task. `drive` ends a coroutine that awaits trio all the same.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine, Generator
from enum import Enum
from types import coroutine
from typing import Any, Protocol

from trio.lowlevel import checkpoint, wait_readable, wait_writable


class Want(Enum):
    """A request of a driven coroutine to its driver."""

    INPUT = "input"
    """To be resumed when its socket is readable."""
    ROOM = "room"
    """To be resumed when its socket is writable."""
    TURN = "turn"
    """To be resumed after the others have had a turn."""
    TASK = "task"
    """To be resumed in a task."""
    DRIVER = "driver"
    """To be resumed by the driver again. Only a coroutine in a task asks for it."""


class Outcome(Protocol):
    """Something that arrives later, such as a shard's reply."""

    def wakes(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when it has arrived."""


Trap = Want | Outcome
Driven = Coroutine[Any, None, None]

_driven = False


def driven() -> bool:
    """Whether the current coroutine is driven."""
    return _driven


def drive(each: Driven, error: BaseException | None = None) -> Trap:
    """Resume a coroutine until its next wait, by raising `error` in it if there is one. Returns what it waits for.
    Raises what it raises, and `StopIteration` at its end."""
    global _driven  # noqa: PLW0603 - a thread has one driver, and a variable is the cheapest way to ask for it
    _driven = True
    try:
        trap: Trap = each.send(None) if error is None else each.throw(error)
        while not isinstance(trap, Want) and not hasattr(trap, "wakes"):
            trap = each.throw(RuntimeError(f"a driven coroutine awaits trio: {trap}"))
    finally:
        _driven = False
    return trap


@coroutine
def outcome(awaited: Outcome) -> Generator[Outcome, None, None]:
    """Wait for `awaited` in a driven coroutine."""
    yield awaited


@coroutine
def readable(raw: socket.socket) -> Generator[Any, Any, None]:
    if _driven:
        yield Want.INPUT
    else:
        yield from wait_readable(raw)  # noqa: ASYNC105 - `yield from` awaits it


@coroutine
def writable(raw: socket.socket) -> Generator[Any, Any, None]:
    if _driven:
        yield Want.ROOM
    else:
        yield from wait_writable(raw)  # noqa: ASYNC105 - `yield from` awaits it


@coroutine
def turn() -> Generator[Any, Any, None]:
    """Let others run."""
    if _driven:
        yield Want.TURN
    else:
        yield from checkpoint()  # noqa: ASYNC105 - `yield from` awaits it


@coroutine
def in_task() -> Generator[Want, None, None]:
    """Go on inside a trio task. Does nothing in a task."""
    if _driven:
        yield Want.TASK


@coroutine
def in_driver() -> Generator[Want, None, None]:
    """Go on outside the task that `in_task` began. Does nothing in a driven coroutine."""
    if not _driven:
        yield Want.DRIVER


@coroutine
def carried(each: Driven) -> Generator[Any, Any, bool]:
    """Go on with a driven coroutine inside the current task. Returns False when it has ended, True when it asks for its
    driver again."""
    trap = None
    try:
        trap = each.send(None)
        while trap is not Want.DRIVER:
            try:
                value = yield trap
            except BaseException as error:
                trap = each.throw(error)
            else:
                trap = each.send(value)
    except StopIteration:
        return False
    return True

"""Holds: lanes that copy nothing for a while, so that a checkpoint saves all of their copies.

A hold belongs to the last request that needs it. An earlier one for the same lane was given up: neither its end nor its
age ends the hold.

Copies that are staged when the hold begins are not visible yet, and a checkpoint would not save them. So requests wait
for these first, then for the next checkpoint that begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from proto.model.errors import TopicsError
from shardd.clock import Clock
from shardd.topic.lane import Lane
from shardd.topic.topic import Topic

LONGEST_HOLD_S = 60.0
Waiter = Callable[[TopicsError | None], None]


class Waiting:
    """Callbacks for the next checkpoint."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Sequence[Topic], Waiter]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, topics: Sequence[Topic], waiter: Waiter) -> None:
        """Add a callback. Before its checkpoint begins, no copies of `topics` may be staged."""
        self._waiting.append((topics, waiter))

    @property
    def due(self) -> bool:
        """True if a callback waits for nothing but a checkpoint."""
        return any(map(_ready, self._waiting))

    def take(self) -> list[Waiter]:
        """Remove and return the callbacks of a checkpoint that begins now."""
        taken = [each[1] for each in self._waiting if _ready(each)]
        self._waiting = [each for each in self._waiting if not _ready(each)]
        return taken


def _ready(waiting: tuple[Sequence[Topic], Waiter]) -> bool:
    return not any(topic.copies_staged for topic in waiting[0])


class Holds:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holds: dict[int, tuple[float, Lane, object]] = {}
        """By identity of the lane: when its hold began, in monotonic seconds, and the owner. The oldest comes first."""

    def hold(self, lane: Lane, owner: object) -> None:
        """Puts a lane on hold for `owner` from now on."""
        self._holds.pop(id(lane), None)
        self._holds[id(lane)] = self._clock.monotonic(), lane, owner
        lane.held = True

    def release(self, lane: Lane, owner: object = None) -> None:
        """Ends a lane's hold; with `owner`, only one of that owner."""
        hold = self._holds.get(id(lane))
        if owner is None or (hold is not None and hold[2] is owner):
            self._holds.pop(id(lane), None)
            lane.held = False

    def expire(self) -> None:
        """Ends holds older than `LONGEST_HOLD_S`: the requests they were made for have been given up."""
        oldest = self._clock.monotonic() - LONGEST_HOLD_S
        for since, lane, _ in list(self._holds.values()):
            if since > oldest:
                break
            self.release(lane)

"""Read ahead: a follower that is behind has the next parts of the log fetched several at a time.

A follower reads one part after the other, and the holder creates one after the other. Where the store is slow, neither
is faster, so a follower that is behind would stay so, and a shard is given only to a machine that has caught up. What
is found never changes, so it may be read before it is asked for; what is absent is asked for again.

One that keeps pace finds a part whenever it asks for the next one, and would never know that it reads the end of the
log. A part that was absent when it was fetched tells: then the log ended before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import trio

from shardd.replication.objects import Objects

BEHIND_S = 0.5
"""A follower that has not read the end of the log for so long reads ahead."""
MOST = 4
"""Parts that are fetched, or have been and are not read yet."""


class ReadAhead:
    def __init__(self, objects: Objects, now: Callable[[], float], end_read_at: float = -math.inf) -> None:
        self.end_read_at = end_read_at
        """When everything that was in the log was read last, as far as is known."""
        self._objects = objects
        self._now = now
        self._absent_at: dict[int, float] = {}
        """Number of a part → when it was last asked for in vain."""
        self._fetches: dict[int, trio.Event] = {}
        """Number of a part → set when its fetch has ended."""

    def behind(self, number: int, nursery: trio.Nursery) -> None:
        """Part `number` was read, and there may be many behind it."""
        coming = range(number + 1, number + 1 + MOST)
        self._fetches = {each: ended for each, ended in self._fetches.items() if each in coming}
        for each in coming:
            if each not in self._fetches or (each in self._absent_at and self._fetches[each].is_set()):
                self._fetches[each] = trio.Event()
                nursery.start_soon(self._fetch, each, self._fetches[each])

    async def _fetch(self, number: int, ended: trio.Event) -> None:
        asked_at = self._now()
        if not await trio.to_thread.run_sync(partial(self._objects.fetch, number), abandon_on_cancel=True):
            self._absent_at[number] = asked_at
        ended.set()

    async def fetched(self, number: int) -> None:
        """Wait for the part's fetch, if there is one. If the log is known to have ended before this part, all was read
        then."""
        ended = self._fetches.pop(number, None)
        if ended is not None:
            await ended.wait()
        passed = [each for each in self._absent_at if each <= number]
        self.end_read_at = max(self.end_read_at, *(self._absent_at.pop(each) for each in passed), -math.inf)

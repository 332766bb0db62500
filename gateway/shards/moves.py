"""Moves: how long requests wait for a shard that has no process for them at the moment.

A request waits if it was not sent, or if the shard refused it for the moment and did not carry it out:

    PATIENCE_S   for a process that is being started again, and for a link that is being made again
    MOVING_S     for a shard that moves, counted from the moment at which that was seen: it refused a request as
                 `moving`, or no machine is known to hold it. Later requests wait as much less, and none waits after it

While a shard refuses requests, one of those that wait is sent every `AGAIN_S`. When it is taken, the others follow. A
request that waits keeps its slot, and its bytes of the budget, so what waits is bounded for each key.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from proto.ipc.link import Link
from proto.ipc.links import Links

PATIENCE_S = 1.0
MOVING_S = 5.0
AGAIN_S = 0.1


@dataclass(slots=True)
class _Refusal:
    link: Link | None
    again_at: float
    """When the next request is sent by this link."""


class Moves:
    """Of all shards, as one gateway sees them. Times are trio's."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._served = [False] * len(links.states)
        self._until: dict[int, float] = {}
        """Until when requests wait for each shard that moves."""
        self._refusals: dict[int, _Refusal] = {}
        self._news = trio.Event()

    def look(self) -> None:
        """There is news of the shards: have requests that wait look at it."""
        for index, served in enumerate(self._served):
            if served and self._links.unheld(index):
                self._begun(index)
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def _begun(self, index: int) -> None:
        self._until.setdefault(index, trio.current_time() + MOVING_S)

    def refused(self, index: int) -> None:
        """The shard refused a request that is to be sent again."""
        self._begun(index)
        self._refusals[index] = _Refusal(self._links.current(index), trio.current_time() + AGAIN_S)

    def heard(self, index: int) -> None:
        """A process of the shard serves that did not before."""
        self._served[index] = True
        self.taken(index)

    def taken(self, index: int) -> None:
        """The shard has answered a request."""
        if self._until and self._until.pop(index, None) is not None:
            self._refusals.pop(index, None)
            self._wake()

    def away(self, index: int) -> bool:
        """Whether a request has to wait, and may."""
        return (self._links.returns(index) and self._served[index]) or self._refuses(index)

    def _refuses(self, index: int) -> bool:
        refusal = self._refusals.get(index) if self._refusals else None
        return refusal is not None and refusal.link is self._links.current(index)

    def patient(self, index: int, since: float) -> bool:
        """Whether a request that waits since then may wait on."""
        return trio.current_time() < self._most(index, since)

    def _most(self, index: int, since: float) -> float:
        return min(self._until.get(index, since + PATIENCE_S), since + MOVING_S)

    async def over(self, index: int, since: float) -> None:
        """Wait until a request is to be sent to the shard, or has waited for long enough."""
        while self.away(index) and self.patient(index, since):
            until = self._most(index, since)
            if self._refuses(index):
                refusal, now = self._refusals[index], trio.current_time()
                if now >= refusal.again_at:
                    refusal.again_at = now + AGAIN_S
                    return
                until = min(until, refusal.again_at)
            with trio.move_on_at(until):
                await self._news.wait()

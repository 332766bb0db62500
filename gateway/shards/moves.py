"""Moves: how long requests wait for a shard that has no process for them at the moment.

A request waits if it was not sent, or if the shard refused it for the moment and did not carry it out:

    PATIENCE_S   for a process that is being started again, and for a link that is being made again
    MOVING_S     for a shard that moves, counted from the moment at which that was seen: it refused a request as
                 `moving`, or no machine is known to hold it, as after a move until the process here has looked. Later
                 requests wait as much less, and none waits after it

While a shard refuses requests, it gets a question every `AGAIN_S`. When it answers that, or takes another request, what
waits is sent. No request is sent to find out: its outcome would be unknown if the shard was given away then.

A request that waits keeps its slot, and its bytes of the budget, so what waits is bounded for each key.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import trio

from proto.ipc.link import Link, Outcome
from proto.ipc.links import Links
from proto.ipc.message import Reply
from proto.ipc.operations import Stats
from proto.model.errors import is_passing

PATIENCE_S = 1.0
MOVING_S = 5.0
AGAIN_S = 0.1


@dataclass(slots=True)
class _Refusal:
    link: Link
    ask_at: float
    """When the link gets the next question."""


class Moves:
    """Of all shards, as one gateway sees them. Times are trio's."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._served = [False] * len(links.states)
        self._until: dict[int, float] = {}
        """Until when requests wait for each shard that moves."""
        self._refusals: dict[int, _Refusal] = {}
        self._news = trio.lowlevel.ParkingLot()

    def look(self) -> None:
        """There is news of the shards: have requests that wait look at it."""
        for index, served in enumerate(self._served):
            if served and self._links.unheld(index):
                self._begun(index)
        self._news.unpark_all()

    def _begun(self, index: int) -> None:
        self._until.setdefault(index, trio.current_time() + MOVING_S)

    def refused(self, index: int) -> None:
        """The shard refused a request that is to be sent again."""
        now, last = trio.current_time(), self._refusals.get(index)
        if last is not None and now - last.ask_at > MOVING_S:
            self._until.pop(index, None)  # that was an earlier move
        self._begun(index)
        link = self._links.current(index)
        if link is not None:
            self._refusals[index] = _Refusal(link, now + AGAIN_S)

    def heard(self, index: int) -> None:
        """A process of the shard serves that did not before."""
        self._served[index] = True
        self.taken(index)

    def taken(self, index: int) -> None:
        """The shard has answered a request."""
        if self._until and self._until.pop(index, None) is not None:
            self._refusals.pop(index, None)
            self._news.unpark_all()

    def away(self, index: int) -> bool:
        """Whether a request has to wait, and may."""
        settled = self._links.states[index].phase == "ready" or self._links.reaches(index)
        if settled and not self._refusals and not self._until:
            return False  # almost always
        return (self._served[index] and self._links.returns(index)) or self._refuses(index)

    def _refuses(self, index: int) -> bool:
        refusal = self._refusals.get(index)
        return refusal is not None and refusal.link is self._links.current(index) and not refusal.link.ended

    def patient(self, index: int, since: float) -> bool:
        """Whether a request that waits since then may wait on."""
        return trio.current_time() < self._most(index, since)

    def _most(self, index: int, since: float) -> float:
        return min(self._until.get(index, since + PATIENCE_S), since + MOVING_S)

    async def over(self, index: int, since: float) -> None:
        """Wait until requests are to be sent to the shard, or this one has waited for long enough."""
        while self.away(index) and self.patient(index, since):
            until = self._most(index, since)
            if self._refuses(index):
                refusal, now = self._refusals[index], trio.current_time()
                if now >= refusal.ask_at:
                    refusal.ask_at = now + AGAIN_S
                    refusal.link.ask(Stats(), "", b"").then(partial(self._answered, index, refusal))
                    continue
                until = min(until, refusal.ask_at)
            with trio.move_on_at(until):
                await self._news.park()

    def _answered(self, index: int, refusal: _Refusal, outcome: Outcome) -> None:
        refuses = not isinstance(outcome, Reply) or is_passing(outcome.error, index)
        if not refuses and self._refusals.get(index) is refusal:
            self.taken(index)

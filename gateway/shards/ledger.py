"""What every shard holds and may come to hold: the books behind the caps over all shards.

Every reply of a shard carries its counters. Requests that may add something are booked from the moment they are sent
until their reply is heard, each with the most it can add. So at any moment

    bound(shard) = counters of its latest reply + all that is booked for it  ≥  what it really holds,

because a shard answers in order: what a reply does not count yet has not been answered yet, and is booked.

A request gets `room(shard)` = cap - the bounds of all *other* shards, and its shard refuses it if it would come to hold
more than that. So the cap is never exceeded. Take the last request sent of all that were accepted: when it was sent,
the bounds of the other shards covered all that they may come to hold by requests sent before it, and its own shard
took it knowing exactly what it holds itself. The sum is at most the cap.

What a shard adds by itself (copies of routers, dead letters) it adds out of loans (`gateway.shards.loans`), which are
requests in this sense, too: booked with all that they lend, answered when they are over. A loan is at most `left()` =
cap - the bounds of *all* shards when it is sent, so if it is the last that was accepted, the sum holds by itself. If a
client's request is the last, its shard has counted what it was lent as held (`shardd.changes.allowance`).

What is booked when a shard dies may be in its log: it stays booked until the next incarnation has been heard.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio


@dataclass(frozen=True, slots=True)
class Growth:
    """The most that a request can add."""

    topics: int = 0
    bytes: int = 0


class Ledger:
    def __init__(self, shards: int) -> None:
        self.known: list[tuple[int, int] | None] = [None] * shards
        """Topics and bytes of each shard as it last said; None before it ever spoke."""
        self.absent: set[int] = set()
        """Shards that cannot start. One of them that never spoke is taken to hold its even share of each cap, so that
        the others may go on in what is theirs."""
        self._booked: list[dict[int, Growth]] = [{} for _ in range(shards)]
        self._topics = [0] * shards
        self._bytes = [0] * shards
        self._settled = trio.Event()

    @property
    def complete(self) -> bool:
        """Whether every shard has said what it holds, or cannot."""
        return all(known is not None or index in self.absent for index, known in enumerate(self.known))

    def book(self, shard: int, request: int, growth: Growth) -> None:
        self._booked[shard][request] = growth
        self._topics[shard] += growth.topics
        self._bytes[shard] += growth.bytes

    def heard(self, shard: int, request: int, topics: int, size: int) -> None:
        """A reply, and what the shard held when it was made."""
        self.known[shard] = (topics, size)
        growth = self._booked[shard].pop(request, None)
        if growth is not None:
            self._topics[shard] -= growth.topics
            self._bytes[shard] -= growth.bytes
            self._settled.set()

    def withdraw(self, shard: int, request: int) -> None:
        """A request that was booked is not sent."""
        growth = self._booked[shard].pop(request, None)
        if growth is not None:
            self._topics[shard] -= growth.topics
            self._bytes[shard] -= growth.bytes
            self._settled.set()

    def on_restart(self, shard: int, first_request: int) -> None:
        """The first reply of a new incarnation is here: what the old one left unanswered is counted in it, or lost.
        Requests from `first_request` on were sent to the new one."""
        booked = {request: growth for request, growth in self._booked[shard].items() if request >= first_request}
        self._booked[shard] = booked
        self._topics[shard] = sum(growth.topics for growth in booked.values())
        self._bytes[shard] = sum(growth.bytes for growth in booked.values())
        self._settled.set()

    def room(self, shard: int, max_topics: int, max_bytes: int) -> tuple[int | None, int | None]:
        """Topics and bytes that the shard may hold at most; None for a cap of 0. Nothing may grow before every shard
        has spoken once."""
        if not self.complete:
            return 0 if max_topics else None, 0 if max_bytes else None
        topics, size = max_topics, max_bytes
        for index, known in enumerate(self.known):
            if index != shard:
                held = known or (max_topics // len(self.known), max_bytes // len(self.known))
                topics -= held[0] + self._topics[index]
                size -= held[1] + self._bytes[index]
        return topics if max_topics else None, size if max_bytes else None

    def left(self, max_topics: int, max_bytes: int) -> tuple[int, int]:
        """Topics and bytes that may be lent to any shard: what no shard holds or may come to hold. A cap of 0 lends
        nothing, because nothing needs it."""
        if not self.complete:
            return 0, 0
        topics, size = self.totals()
        free_topics = max_topics - topics - sum(self._topics)
        free_bytes = max_bytes - size - sum(self._bytes)
        return max(free_topics, 0) if max_topics else 0, max(free_bytes, 0) if max_bytes else 0

    def totals(self) -> tuple[int, int]:
        """Topics and bytes of all shards as they last said."""
        heard = [known for known in self.known if known is not None]
        return sum(topics for topics, _ in heard), sum(size for _, size in heard)

    def booked(self, shards: list[int]) -> int:
        """How many requests to these shards are not answered yet."""
        return sum(len(self._booked[shard]) for shard in shards)

    async def change(self) -> None:
        """Return when something that was booked is not booked any more."""
        self._settled = trio.Event()
        await self._settled.wait()

"""The ledger: what every shard holds and may come to hold. The caps over all shards rest on it.

Every packet of a shard carries the shard's counters from when it left. A request that may add something is booked, with
the most it can add, from when it is sent until its reply is received. So at any moment

    bound(shard) = counters of its latest packet + all that is booked for it  ≥  what it really holds,

because packets arrive in order: an addition that the counters do not have was made after the packet left. So its reply
is in a later packet, and its request is booked. The counters of a packet may have more than its own replies added: then
the excess is counted twice, until its bookings end. They never have less, because they are read after the last of these
replies was made. `heard` takes in the counters before it ends a booking, in one step that no request comes between.

A request gets `room(shard)` = cap - the bounds of all *other* shards. Its shard refuses it if the shard would then hold
more than that. So the cap is never exceeded:

1. Take the last request sent among all that were accepted.
2. When it was sent, the bounds of the other shards covered all that requests sent before it can add there.
3. Its own shard accepted it knowing exactly what that shard holds.
4. So the sum is at most the cap.

A shard's own additions (copies of routers, dead letters) come out of loans (`gateway.shards.loans`). Loans are requests
in this sense too: booked with all that they lend, answered when they are over. A loan is at most `left()` = cap - the
bounds of *all* shards when it is sent. So if a loan is the last request accepted, the sum is at most the cap. If a
client's request is the last, its shard has counted its loans as held (`shardd.changes.allowance`).

Requests booked when a shard dies may be in its log, so they stay booked until a packet of the next incarnation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import trio


class Growth(NamedTuple):
    """The most that a request can add."""

    topics: int = 0
    bytes: int = 0


class Ledger:
    def __init__(self, shards: int) -> None:
        self.known: list[tuple[int, int] | None] = [None] * shards
        """Topics and bytes of each shard in its latest packet; None before its first."""
        self.absent: set[int] = set()
        """Shards that cannot start. One without any packet is assumed to hold an even share of each cap, so that the
        other shards may continue within theirs."""
        self._booked: list[dict[int, Growth]] = [{} for _ in range(shards)]
        self._topics = [0] * shards
        self._bytes = [0] * shards
        self._settled = trio.Event()

    @property
    def complete(self) -> bool:
        """Whether every shard has sent a packet or cannot start."""
        if None not in self.known:
            return True
        return all(known is not None or index in self.absent for index, known in enumerate(self.known))

    def book(self, shard: int, request: int, growth: Growth) -> None:
        self._booked[shard][request] = growth
        self._topics[shard] += growth.topics
        self._bytes[shard] += growth.bytes

    def heard(self, shard: int, requests: Sequence[int], topics: int, size: int) -> None:
        """Take in a packet: the shard's counters when it left, and the requests that it answers. Ends their
        bookings."""
        self.known[shard] = (topics, size)
        if self._booked[shard]:
            for request in requests:
                self.withdraw(shard, request)

    def withdraw(self, shard: int, request: int) -> None:
        """End the booking of a request that was answered, or not sent."""
        growth = self._booked[shard].pop(request, None)
        if growth is not None:
            self._topics[shard] -= growth.topics
            self._bytes[shard] -= growth.bytes
            self._settled.set()

    def on_restart(self, shard: int, first_request: int) -> None:
        """Drop the bookings of an earlier incarnation, at the first packet of a new one. Its counters have what they
        added. Requests from `first_request` on were sent to the new incarnation and stay booked."""
        booked = {request: growth for request, growth in self._booked[shard].items() if request >= first_request}
        self._booked[shard] = booked
        self._topics[shard] = sum(growth.topics for growth in booked.values())
        self._bytes[shard] = sum(growth.bytes for growth in booked.values())
        self._settled.set()

    def room(self, shard: int, max_topics: int, max_bytes: int) -> tuple[int | None, int | None]:
        """Return the topics and bytes that the shard may hold at most; None for a cap of 0. Both are 0 until the ledger
        is `complete`."""
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
        """Return the topics and bytes that may be lent: those that no shard holds or may come to hold. A cap of 0 lends
        nothing, because no shard needs a loan then."""
        if not self.complete:
            return 0, 0
        topics, size = self.totals()
        free_topics = max_topics - topics - sum(self._topics)
        free_bytes = max_bytes - size - sum(self._bytes)
        return max(free_topics, 0) if max_topics else 0, max(free_bytes, 0) if max_bytes else 0

    def totals(self) -> tuple[int, int]:
        """Topics and bytes of all shards, by their latest packets."""
        heard = [known for known in self.known if known is not None]
        return sum(topics for topics, _ in heard), sum(size for _, size in heard)

    def booked(self, shards: list[int]) -> int:
        """The number of booked requests to these shards."""
        return sum(len(self._booked[shard]) for shard in shards)

    async def change(self) -> None:
        """Wait until a booking has ended."""
        self._settled = trio.Event()
        await self._settled.wait()

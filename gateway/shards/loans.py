"""Loans: what shards may add by themselves, under the caps over all shards (see `shardd.changes.allowance`).

Each shard has one request `allowance` parked at a time, which lends it so many bytes and topics. It is answered when
the shard wants more, or has not used it for a while; the answer says what it wants, and the next request lends that
if there is room, or what room there is. A shard that wants nothing is lent nothing, so the first wish costs a round
trip and others none.

A loan is booked in the ledger like any request that may add something, from when it is sent until its answer is heard,
and is never larger than the cap less all that is held and booked, its own shard's included. That is all the proof
needs: see `gateway.shards.ledger`.

What is lent and not used must not make the caps refuse a client although there is room. So a request that is tried
alone (`gateway.shards.quota`) has all loans given back first, and nothing is lent until it is over.

If this process dies, its successor lends anew, and by that ends what was lent before. Until then a shard may use what
it has, as with requests that were on their way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import trio

from gateway.shards.client import Shards
from gateway.shards.ledger import Growth
from proto.model.errors import TopicsError
from proto.model.limits import Limits

CHUNK_BYTES = 16 << 20
"""Lent at once, if the cap is large enough."""
SHARE = 64
"""No more than this part of the cap is lent to a shard beyond what it wants."""
AGAIN_S = 0.1
log = structlog.get_logger()


class Allowances:
    def __init__(self, shards: Shards, limits: Limits) -> None:
        self._shards = shards
        self._max_topics = limits.max_topics
        self._max_bytes = limits.max_total_bytes
        self._chunk = min(CHUNK_BYTES, limits.max_total_bytes // SHARE)
        self._lent: set[int] = set()
        """Shards that have been lent something."""
        self._holding = 0
        self._released = trio.Event()

    async def run(self) -> None:
        """Lend until cancelled."""
        if self._max_topics or self._max_bytes:
            async with trio.open_nursery() as nursery:
                for state in self._shards.states:
                    nursery.start_soon(self._supply, state.index)

    async def _supply(self, index: int) -> None:
        want = (0, 0)
        while True:
            while self._holding:
                await self._released.wait()
            try:
                want = await self._lend(index, want)
            except TopicsError:
                want = (0, 0)
                await trio.sleep(AGAIN_S)  # the shard does not serve, or was silent

    async def _lend(self, index: int, want: tuple[int, int]) -> tuple[int, int]:
        """One loan. Returns what the shard wants next."""
        size, topics = self._fitting(want)
        # Nothing may happen between looking at the ledger and booking.
        pending = self._shards.ask(index, "allowance", {"bytes": size, "topics": topics, "asked": want})
        if size or topics:
            self._shards.ledger.book(index, pending.id, Growth(topics, size))
            self._lent.add(index)
        try:
            reply = await pending.reply()
        except BaseException:
            pending.abandon()
            raise
        finally:
            self._lent.discard(index)
        if reply.error is not None:
            raise reply.error
        size, topics = (reply.extra or {}).get("want", (0, 0))
        return size, topics

    def _fitting(self, want: tuple[int, int]) -> tuple[int, int]:
        """What is lent to a shard that wants this."""
        topics, size = self._shards.ledger.left(self._max_topics, self._max_bytes)
        return min(size, max(want[0], self._chunk)) if want[0] else 0, min(topics, want[1])

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Nothing is lent meanwhile. Follow with `recall`."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
            if not self._holding:
                self._released.set()
                self._released = trio.Event()

    async def recall(self) -> None:
        """Have everything given back that is lent and not used."""
        for index in sorted(self._lent):
            try:
                pending = self._shards.ask(index, "allowance_return", {})
            except TopicsError:
                continue  # it does not serve: what it was lent counts as added
            try:
                await pending.reply()
            except TopicsError:
                log.warning("allowance_not_returned", shard=index)
            finally:
                pending.abandon()

"""Loans: bytes and topics that shards may add by themselves under the caps over all shards.

`shardd.changes.allowance` is the shard's side.
Each shard has one `allowance` request parked at a time, which lends it bytes and topics. The shard answers when it
wants more, or has not used the loan for a while. The answer names what the shard wants, and the next request lends
that, or as much as there is room for. A shard that wants nothing is lent nothing, so its first wish costs a round trip
and later ones none.

A loan is booked in the ledger like any request that may add something, from when it is sent until its reply is
received. It is never larger than the cap less all that is held and booked, its own shard included. The proof in
`gateway.shards.ledger` needs no more.

An unused loan must not make the caps refuse a client although there is room. So before a request is tried alone
(`gateway.shards.quota`), all loans are recalled, and nothing is lent until it is over.

If this process dies, its successor sends new loans, which end the earlier ones. Until then a shard may use what it was
lent, as with requests that were on their way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import trio

from gateway.shards.client import Shards
from gateway.shards.ledger import Growth
from proto.ipc.operations import Allowance, AllowanceReturn
from proto.model.errors import TopicsError
from proto.model.limits import Limits

CHUNK_BYTES = 16 << 20
"""Bytes lent at once, if the cap is large enough."""
SHARE = 64
"""A shard is lent at most 1/`SHARE` of the cap beyond what it wants."""
AGAIN_S = 0.1
log = structlog.get_logger()


class Allowances:
    def __init__(self, shards: Shards, limits: Limits) -> None:
        self._shards = shards
        self._max_topics = limits.max_topics
        self._max_bytes = limits.max_total_bytes
        self._chunk = min(CHUNK_BYTES, limits.max_total_bytes // SHARE)
        self._lent: set[int] = set()
        """Shards that hold a loan."""
        self._holding = 0
        self._released = trio.Event()

    async def run(self) -> None:
        """Lend to every shard until cancelled."""
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
                await trio.sleep(AGAIN_S)  # the shard does not serve or did not answer

    async def _lend(self, index: int, want: tuple[int, int]) -> tuple[int, int]:
        """Make one loan and wait for its end. Returns the bytes and topics that the shard wants next."""
        size, topics = self._fitting(want)
        # No other task may run between reading the ledger and booking.
        pending = self._shards.ask(index, Allowance(size, topics, want))
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
        return (0, 0) if reply.extra is None else (reply.extra.bytes, reply.extra.topics)

    def _fitting(self, want: tuple[int, int]) -> tuple[int, int]:
        """Return the bytes and topics to lend to a shard that wants `want`."""
        topics, size = self._shards.ledger.left(self._max_topics, self._max_bytes)
        return min(size, max(want[0], self._chunk)) if want[0] else 0, min(topics, want[1])

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Lend nothing inside the context. Follow with `recall`."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
            if not self._holding:
                self._released.set()
                self._released = trio.Event()

    async def recall(self) -> None:
        """Have the shards return all loans that they have not used; wait for their replies."""
        for index in sorted(self._lent):
            try:
                pending = self._shards.ask(index, AllowanceReturn())
            except TopicsError:
                continue  # the shard does not serve: its loan counts as added
            try:
                await pending.reply()
            except TopicsError:
                log.warning("allowance_not_returned", shard=index)
            finally:
                pending.abandon()

"""The quota: the caps over all shards, `max_topics` and `max_total_bytes`. They are never exceeded, and a request is
refused only when a cap is really reached.

The ledger books for every request the most it may add, so bookings of other requests can hide free room. The quota
therefore checks a shard's refusal again:

1  The shards' latest replies already fill the cap: the request is refused.
2  Otherwise the room is only booked. The quota recalls the loans, waits until no request is in flight and sends the
   request again, alone. That reply is final.

Only requests that were refused once pay for this. Only near a cap do other requests wait for them.
"""

from __future__ import annotations

from time import monotonic
from typing import TypeVar

import msgspec
import trio

from gateway.shards.client import Shards
from gateway.shards.ledger import Growth
from gateway.shards.loans import Allowances
from proto.ipc.link import Pending
from proto.ipc.message import Reply
from proto.ipc.operations import Append, Growing, Stats
from proto.model.errors import ErrorCode, TopicsError, not_ready
from proto.model.limits import RECORD_OVERHEAD, Limits
from proto.process.driven import in_task

A = TypeVar("A")
SETTLE_S = 2.0
"""Longest wait for requests in flight before a request is tried alone."""
STALE_S = 1.0
"""Greatest age of the figures behind a refusal, because bytes also expire without a request."""
_SMALLEST_RECORD = len(b'{"data":1},')


class Quota:
    def __init__(self, shards: Shards, limits: Limits) -> None:
        self._shards = shards
        self._max_topics = limits.max_topics
        self._max_bytes = limits.max_total_bytes
        # A `node` for the whole batch counts for every record of it.
        self._per_record = RECORD_OVERHEAD + limits.max_node_bytes
        self._alone: trio.Event | None = None
        self._turn = trio.Lock()
        self._asked_at = 0.0
        self.allowances = Allowances(shards, limits)

    async def call(self, operation: Growing[A], topic: str, body: bytes) -> Reply[A]:
        """Like `Shards.call`, for requests that may create a topic or add bytes. Waits while another one is tried
        alone."""
        if not self._max_topics and not self._max_bytes:
            return await self._shards.call(operation, topic, body)
        while (alone := self._alone) is not None:
            await in_task()
            await alone.wait()
        reply = await self._send(operation, topic, body)
        if not _refused(reply):
            return reply
        await in_task()
        if not self._shards.ledger.complete:
            raise not_ready("it is not known yet what all shards hold together; retry shortly")
        if await self._full(reply):
            return reply
        async with self._turn:
            mine = self._alone = trio.Event()
            try:
                with self.allowances.held_back():
                    await self.allowances.recall()
                    await self._settle()
                    return await self._send(operation, topic, body)
            finally:
                self._alone = None
                mine.set()

    async def _send(self, operation: Growing[A], topic: str, body: bytes) -> Reply[A]:
        """Send the request with the room of this moment. No other task may run between reading the room and booking."""
        index = self._shards.index_of(topic)
        if self._shards.returns(index):
            await self._shards.returned(index)
        topics, size = self._shards.ledger.room(index, self._max_topics, self._max_bytes)
        growth = Growth(1, self._most(len(body)) if isinstance(operation, Append) else 0)
        capped = msgspec.structs.replace(operation, most_topics=topics, most_bytes=size)
        return await self._shards.call(capped, topic, body, growth=growth)

    def _most(self, body: int) -> int:
        """The most bytes that a write with a body of `body` bytes can add."""
        return body + (body // _SMALLEST_RECORD + 1) * self._per_record

    async def _full(self, reply: Reply) -> bool:
        """Whether the shards hold so much that the cap in `reply` is reached, bookings aside."""
        assert reply.error is not None
        detail = reply.error.detail or {}
        ledger = self._shards.ledger
        if detail.get("limit") == "max_topics":
            return ledger.totals()[0] >= self._max_topics
        needed = int(detail.get("bytes", 0))
        if ledger.totals()[1] + needed > self._max_bytes:
            await self._refresh()
        return ledger.totals()[1] + needed > self._max_bytes

    async def _refresh(self) -> None:
        """Ask every serving shard for its counters, at most once per `STALE_S`."""
        now = monotonic()
        if now - self._asked_at < STALE_S:
            return
        self._asked_at = now
        asked: list[Pending] = []
        try:
            for state in self._shards.states:
                if self._shards.serving(state.index):
                    asked.append(self._shards.ask(state.index, Stats()))
            for pending in asked:
                try:
                    await pending.reply()
                except TopicsError:
                    pass  # the shard stopped serving; its latest counters stay
        finally:
            for pending in asked:
                pending.abandon()

    async def _settle(self) -> None:
        """Wait up to `SETTLE_S` until no request to a serving shard is booked. Requests to other shards stay booked and
        count as added."""
        shards = self._shards
        with trio.move_on_after(SETTLE_S):
            while shards.ledger.booked([state.index for state in shards.states if shards.serving(state.index)]):
                await shards.ledger.change()


def _refused(reply: Reply) -> bool:
    error = reply.error
    return (
        error is not None
        and error.code is ErrorCode.THROTTLED
        and (error.detail or {}).get("limit") in ("max_topics", "max_total_bytes")
    )

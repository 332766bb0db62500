"""The caps over all shards, `max_topics` and `max_total_bytes`: never exceeded, and refused only when truly reached.

The ledger books for every request the most it may add, so what others *may* add can hide room that is there. A shard's
refusal is therefore looked at again:

1  what the shards last said they hold already fills the cap: refused
2  else the room is only booked: have what is lent given back, wait until nothing is in flight, ask again alone, and
   that answer counts

Only requests that were refused once pay for this, and only near a cap do they make others wait.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import trio

from gateway.shards.client import Shards
from gateway.shards.ledger import Growth
from gateway.shards.loans import Allowances
from proto.ipc.link import Pending
from proto.ipc.message import Reply
from proto.model.errors import ErrorCode, TopicsError, not_ready
from proto.model.limits import RECORD_OVERHEAD, Limits

SETTLE_S = 2.0
"""How long requests in flight are waited for before one is tried alone."""
STALE_S = 1.0
"""Bytes also go by themselves, as they age. A refusal rests on figures not older than this."""
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

    async def call(self, op: str, topic: str, options: dict[str, Any], body: bytes) -> Reply:
        """As `Shards.call`, for requests that may create a topic or add bytes."""
        if not self._max_topics and not self._max_bytes:
            return await self._shards.call(op, topic, options, body)
        while self._alone is not None:
            await self._alone.wait()
        reply = await self._send(op, topic, options, body)
        if not _refused(reply):
            return reply
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
                    return await self._send(op, topic, options, body)
            finally:
                self._alone = None
                mine.set()

    async def _send(self, op: str, topic: str, options: dict[str, Any], body: bytes) -> Reply:
        """One try, with the room there is now; nothing may happen between reading that and booking."""
        index = self._shards.index_of(topic)
        topics, size = self._shards.ledger.room(index, self._max_topics, self._max_bytes)
        room = {name: value for name, value in (("room_topics", topics), ("room_bytes", size)) if value is not None}
        growth = Growth(1, self._most(len(body)) if op == "append" else 0)
        return await self._shards.call(op, topic, {**options, **room}, body, growth=growth)

    def _most(self, body: int) -> int:
        """Bytes that a write of `body` bytes can count at most."""
        return body + (body // _SMALLEST_RECORD + 1) * self._per_record

    async def _full(self, reply: Reply) -> bool:
        """Whether the cap that a shard named is reached by what is held, not by what is booked."""
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
        """Have every shard that serves say what it holds."""
        now = monotonic()
        if now - self._asked_at < STALE_S:
            return
        self._asked_at = now
        asked: list[Pending] = []
        try:
            for state in self._shards.states:
                if self._shards.serving(state.index):
                    asked.append(self._shards.ask(state.index, "stats", {"per_topic": 0}))
            for pending in asked:
                try:
                    await pending.reply()
                except TopicsError:
                    pass  # it went away; what it last said stays
        finally:
            for pending in asked:
                pending.abandon()

    async def _settle(self) -> None:
        """Wait until no request to a shard that serves is booked; those to others stay booked, and count as added."""
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

"""The gateway's side of the shards: which of them serve, and how to ask one or all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from gateway.http import ClientGone
from gateway.ledger import Growth, Ledger
from proto.control import ShardState
from proto.errors import TopicsError
from proto.link import Link, Links, Pending
from proto.message import Reply
from proto.names import shard_of

_NO_OPTIONS: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Statistics:
    """`topics`, `records` and `bytes` as of each shard's latest reply, summed; `waiting` counts requests."""

    shards: int
    serving: int
    topics: int
    records: int
    bytes: int
    waiting: int


class Shards:
    """All shards. `run` serves the links; until a shard's link has heard from it, the shard is not `serving`."""

    def __init__(self, shards: int, request_timeout_ms: int) -> None:
        self.counters = [(0, 0, 0)] * shards
        self.ledger = Ledger(shards)
        self.links = Links(shards, request_timeout_ms / 1000, opened=_greet, heard=self._heard_from)
        self._heard: list[Link | None] = [None] * shards
        self.complete = trio.Event()
        """Every shard has served at the same time, once."""
        self.run = self.links.run
        self.update = self.links.update
        self.end_parked = self.links.end_parked

    @property
    def states(self) -> list[ShardState]:
        return self.links.states

    @property
    def progress(self) -> float:
        """Share of the boot that is done, 0.0–1.0."""
        return self.links.progress

    def _heard_from(self, link: Link, reply: Reply) -> None:
        index = link.state.index
        self.counters[index] = reply.counters
        if link is not self._heard[index]:
            self.ledger.reborn(index, link.first_id)
            self._heard[index] = link
            if self.ready:
                self.complete.set()
        self.ledger.heard(index, reply.id, reply.counters[0], reply.counters[2])

    def serving(self, index: int) -> bool:
        link = self.links.current(index)
        return link is not None and link is self._heard[index] and self.states[index].phase == "ready"

    @property
    def ready(self) -> bool:
        return all(map(self.serving, range(len(self.states))))

    def statistics(self) -> Statistics:
        topics, records, size = (sum(column) for column in zip(*self.counters, strict=True))
        return Statistics(
            len(self.states),
            sum(map(self.serving, range(len(self.states)))),
            topics,
            records,
            size,
            sum(len(link.waiting) for link in self.links.open()),
        )

    def index_of(self, topic: str) -> int:
        """The shard that owns a topic."""
        return shard_of(topic, len(self.states))

    def ask(self, index: int, op: str, options: dict[str, Any], topic: str = "", body: bytes = b"") -> Pending:
        """Send a request to a shard and go on; the caller must `wait` for it or `abandon` it. Raises `503`."""
        return self.links.to(index).ask(op, topic, options, body)

    async def ask_all(self, op: str, options: dict[str, Any]) -> list[Reply]:
        """The same request to every shard. Raises `503` unless all of them serve, and any error they reply."""
        pending: list[Pending] = []
        try:
            for index in range(len(self.states)):
                pending.append(self.ask(index, op, options))
            replies = [await each.reply() for each in pending]
        except BaseException:
            for each in pending:
                each.abandon()
            raise
        for reply in replies:
            if reply.error is not None:
                raise reply.error
        return replies

    async def call(
        self,
        op: str,
        topic: str,
        options: dict[str, Any] = _NO_OPTIONS,
        body: bytes = b"",
        gone: Callable[[], Awaitable[None]] | None = None,
        growth: Growth | None = None,
    ) -> Reply:
        """The reply of the topic's shard, which may be an error it replied.

        `gone` returns when the client goes away; it is run only while the shard has the request parked. `growth` is
        booked in the ledger. Raises `503` when the shard does not serve, vanishes or stays silent, and `ClientGone`.
        """
        index = self.index_of(topic)
        pending = self.links.to(index).ask(op, topic, options, body)
        if growth is not None:
            self.ledger.book(index, pending.id, growth)
        try:
            outcome = await pending.wait()
            if isinstance(outcome, Reply):
                return outcome
            if gone is None:
                return await pending.reply()
            return await self._watched(pending, gone)
        except BaseException:
            pending.abandon()
            raise

    async def _watched(self, pending: Pending, gone: Callable[[], Awaitable[None]]) -> Reply:
        reply: Reply | TopicsError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(_until, gone, nursery.cancel_scope))
            try:
                reply = await pending.reply()
            except TopicsError as error:
                reply = error  # not through the nursery, which would wrap it in a group
            nursery.cancel_scope.cancel()
        if reply is None:
            raise ClientGone
        if isinstance(reply, TopicsError):
            raise reply
        return reply


def _greet(link: Link) -> None:
    # Any reply carries the counters, and only a shard that answers counts as serving.
    link.ask("stats", "", {"per_topic": 0}, b"")


async def _until(gone: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
    await gone()
    scope.cancel()

"""The gateway's side of the shards: which of them serve, and how to ask one or all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio

from gateway.http.messages import ClientGone
from gateway.shards.ledger import Growth, Ledger
from proto.ipc.control import ShardState
from proto.ipc.link import ANSWERS_S, Link, Links, Pending
from proto.ipc.message import Reply
from proto.model.errors import TopicsError
from proto.model.memory_shares import DEFAULT_BYTES, window
from proto.model.names import shard_of

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

    def __init__(self, shards: int, request_timeout_ms: int, window_bytes: int = window(DEFAULT_BYTES, 1)) -> None:
        self.counters = [(0, 0, 0)] * shards
        self.quarantined = [0] * shards
        """Topics that each shard has set apart, because their files cannot be read."""
        self.disk_full = [False] * shards
        """Which shards said last that their disk is nearly full."""
        self.ledger = Ledger(shards)
        self.links = Links(
            shards,
            request_timeout_ms / 1000,
            opened=_greet,
            heard=self._heard_from,
            probing=True,
            window_bytes=window_bytes,
            withdrawn=lambda link, ident: self.ledger.withdraw(link.state.index, ident),
        )
        self._heard: list[Link | None] = [None] * shards
        self.complete = trio.Event()
        """Every shard but those that cannot start has served at the same time, once."""
        self.run = self.links.run
        self.end_parked = self.links.end_parked

    def update(self, states: list[ShardState]) -> None:
        """Take over what the supervisor says."""
        self.links.update(states)
        for state in states:
            if state.phase == "failed":
                self.ledger.absent.add(state.index)
        self._look_whether_complete()

    def _look_whether_complete(self) -> None:
        serving = [state.index for state in self.states if self.serving(state.index)]
        if serving and all(state.index in serving or state.phase == "failed" for state in self.states):
            self.complete.set()

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
        self.quarantined[index] = reply.quarantined
        self.disk_full[index] = reply.disk_full
        if link is not self._heard[index]:
            self.ledger.on_restart(index, link.first_id)
            self._heard[index] = link
            self._look_whether_complete()
        self.ledger.heard(index, reply.id, reply.counters[0], reply.counters[2])

    def serving(self, index: int) -> bool:
        link = self.links.current(index)
        return link is not None and link is self._heard[index] and self.states[index].phase == "ready"

    def answering(self, index: int) -> bool:
        """Whether the shard serves, and has answered within the last seconds, if there was anything to answer."""
        link = self.links.current(index)
        return self.serving(index) and (link is None or link.silent_s < ANSWERS_S)

    @property
    def ready(self) -> bool:
        return all(map(self.answering, range(len(self.states))))

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
        parked: Callable[[], None] | None = None,
    ) -> Reply:
        """The reply of the topic's shard, which may be an error it replied.

        `gone` returns when the client goes away; it is run only while the shard has the request parked, which
        `parked` is told before. `growth` is booked in the ledger. Raises `503` when the shard does not serve, vanishes
        or stays silent, and `ClientGone`.
        """
        index = self.index_of(topic)
        pending = self.links.to(index).ask(op, topic, options, body)
        if growth is not None:
            self.ledger.book(index, pending.id, growth)
        try:
            outcome = await pending.wait()
            if isinstance(outcome, Reply):
                return outcome
            if parked is not None:
                parked()
            if gone is None:
                return await pending.reply()
            return await self._watched(pending, gone)
        except BaseException:
            pending.abandon()
            raise

    async def _watched(self, pending: Pending, gone: Callable[[], Awaitable[None]]) -> Reply:
        reply: Reply | TopicsError | None = None
        left = False
        async with trio.open_nursery() as nursery:

            async def until_gone() -> None:
                nonlocal left
                await gone()
                left = True
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_gone)
            try:
                reply = await pending.reply()
            except TopicsError as error:
                reply = error  # not through the nursery, which would wrap it in a group
            nursery.cancel_scope.cancel()
        if left:
            if reply is not None:  # both came at once: jobs that nobody is there to get must not stay leased
                pending.take_back()
            raise ClientGone
        assert reply is not None
        if isinstance(reply, TopicsError):
            raise reply
        return reply


def _greet(link: Link) -> None:
    # Any reply carries the counters, and only a shard that answers counts as serving.
    link.ask("stats", "", {"per_topic": 0}, b"")

"""Peers: requests from this shard to all shards, including itself.

A shard asks another one as the gateway does: a request with an operation, a topic and options, and a reply. A request
to itself takes the same way without the socket, so callers need not know which shard owns a topic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from proto.ipc.control import ShardState
from proto.ipc.link import Links
from proto.ipc.message import Message, Reply, Request
from proto.ipc.operations import Operation
from proto.model.memory_shares import DEFAULT_BYTES, window
from proto.model.names import shard_of
from shardd.shard import Shard

A = TypeVar("A")
_PHASES = ("derive", "ready")
"""Phases in which a shard answers the others: from the moment its own log has been read."""


def links(shards: int, timeout_s: float, window_bytes: int = window(DEFAULT_BYTES, 1)) -> Links:
    """To all shards. They learn which shards there are also while this one is read back."""
    return Links(shards, timeout_s, _PHASES, window_bytes=window_bytes)


class Peers:
    """All shards, as seen by shard `index`. `run` serves the links until cancelled, `update` takes their states."""

    def __init__(self, shard: Shard, index: int, links: Links) -> None:
        self.index = index
        self._shard = shard
        self._links = links
        self.run = links.run
        self.update = links.update

    @property
    def states(self) -> list[ShardState]:
        """All shards, as the supervisor reports them."""
        return self._links.states

    def on_update(self, updated: Callable[[], object]) -> None:
        """Have `updated` called after each report of the supervisor."""
        self._links.updated = updated

    def index_of(self, topic: str) -> int:
        """The shard that owns a topic."""
        return shard_of(topic, len(self._links.states))

    def reachable(self, index: int) -> bool:
        """True if shard `index` answers requests now."""
        return index == self.index or self._links.states[index].phase in _PHASES

    @property
    def one_failed(self) -> bool:
        """True if a shard cannot start, so that the supervisor tries it again only now and then."""
        return any(state.phase == "failed" for state in self._links.states)

    async def request(self, index: int, operation: Operation[A], topic: str, body: bytes = b"") -> Reply[A]:
        """Send a request to shard `index` and wait for its reply. Returns the reply. Raises the error in the reply.
        Raises `503 not_ready` if the shard does not serve, goes away before it answers, or exceeds the timeout; the
        request may then have taken effect."""
        reply = await (
            self._own(operation, topic, body) if index == self.index else self._ask(index, operation, topic, body)
        )
        if reply.error is not None:
            raise reply.error
        return reply

    async def _ask(self, index: int, operation: Operation[A], topic: str, body: bytes) -> Reply[A]:
        pending = self._links.to(index).ask(operation, topic, body)
        try:
            return await pending.reply()
        except BaseException:
            pending.abandon()
            raise

    async def _own(self, operation: Operation[A], topic: str, body: bytes) -> Reply[A]:
        answered = trio.Event()
        replies: list[Reply[A]] = []

        def respond(message: Message) -> None:
            if isinstance(message, Reply):
                replies.append(message)
                answered.set()

        request = Request(next(self._links.ids), operation, topic, body)
        self._shard.handle(request, self, respond)
        self._shard.flush()
        try:
            await answered.wait()
        except trio.Cancelled:
            self._shard.cancel(self, request.id)
            raise
        return replies[0]

"""Peers: requests from this shard to all shards, including itself.

A shard asks another one as the gateway does: a request with an operation, a topic and options, and a reply. A request
to itself takes the same way without the socket, so callers need not know which shard owns a topic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from proto.ipc.control import ShardState
from proto.ipc.in_hand import InHand
from proto.ipc.links import Links
from proto.ipc.message import Message, Reply, Request
from proto.ipc.operations import Operation
from proto.model.names import shard_of
from shardd.shard import Shard

A = TypeVar("A")
_PHASES = ("derive", "ready")
"""Phases in which a shard answers the others: from the moment its own log has been read."""
_STARTING = ("down", "open", "replay", "derive")
PATIENCE_S = 1.0
"""How long a request waits for a shard that is being started again."""


def links(shards: int, timeout_s: float, name: str = "") -> Links:
    """To all shards, under the `name` of this one. They learn which shards there are also while it is read back."""
    return Links(shards, timeout_s, _PHASES, name=name)


class Peers:
    """All shards, as seen by shard `index`. `run` serves the links until cancelled, `update` takes their states."""

    def __init__(self, shard: Shard, index: int, links: Links, in_hand: InHand | None = None) -> None:
        self.index = index
        self._shard = shard
        self._links = links
        self._in_hand = in_hand or InHand()
        self.run = links.run
        self.update = links.update

    @property
    def states(self) -> list[ShardState]:
        """All shards, as the supervisor reports them."""
        return self._links.states

    def on_update(self, updated: Callable[[], object]) -> None:
        """Have `updated` called after each report of the supervisor."""
        self._links.on_update = updated

    def index_of(self, topic: str) -> int:
        """The shard that owns a topic."""
        return shard_of(topic, len(self._links.states))

    def reachable(self, index: int) -> bool:
        """True if shard `index` answers requests now."""
        return index == self.index or self._links.states[index].phase in _PHASES

    @property
    def lives(self) -> tuple[str, ...]:
        """The endpoint of each shard, which is that of one incarnation."""
        return tuple(state.endpoint for state in self._links.states)

    @property
    def incarnation(self) -> int:
        """The number of this shard's process since the start of the service."""
        return self._links.states[self.index].incarnation

    async def returned(self, index: int) -> None:
        """Wait, up to `PATIENCE_S`, until a shard that is being started again is ready."""
        with trio.move_on_after(PATIENCE_S):
            while index != self.index and self._links.states[index].phase in _STARTING:
                await self._links.updated.wait()

    @property
    def one_failed(self) -> bool:
        """True if a shard cannot start, so that the supervisor tries it again only now and then."""
        return any(state.phase == "failed" for state in self._links.states)

    async def request(
        self, index: int, operation: Operation[A], topic: str, body: bytes = b"", deadline_ns: int = 0
    ) -> Reply[A]:
        """Send a request to shard `index` and wait for its reply. Returns the reply. Raises the error in the reply.
        Raises `503 not_ready` if the shard does not serve, goes away before it answers, or exceeds the timeout; the
        request may then have taken effect. `deadline_ns` is a deadline that it has besides, 0 for none."""
        reply = await (
            self._own(operation, topic, body, deadline_ns)
            if index == self.index
            else self._ask(index, operation, topic, body, deadline_ns)
        )
        return reply.checked()

    async def _ask(self, index: int, operation: Operation[A], topic: str, body: bytes, deadline_ns: int) -> Reply[A]:
        pending = self._links.to(index).ask(operation, topic, body, deadline_ns)
        try:
            return await pending.reply()
        except BaseException:
            pending.abandon()
            raise

    async def _own(self, operation: Operation[A], topic: str, body: bytes, deadline_ns: int) -> Reply[A]:
        answered = trio.Event()
        replies: list[Reply[A]] = []

        def respond(message: Message) -> None:
            if isinstance(message, Reply):
                replies.append(message)
                answered.set()

        request = Request(next(self._links.ids), operation, topic, body, deadline_ns=deadline_ns)
        with self._in_hand.step():
            self._shard.handle(request, self, respond)
            self._shard.flush()
        try:
            await answered.wait()
        except trio.Cancelled:
            self._shard.cancel(self, request.id)
            raise
        return replies[0]

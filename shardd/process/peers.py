"""Peers: requests from this shard to all shards, including itself.

A shard asks another one as the gateway does: a request with an operation, a topic and options, and a reply. A request
to itself takes the same way without the socket, so callers need not know which shard owns a topic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from proto.ipc.control import Cluster, ShardState
from proto.ipc.in_hand import InHand
from proto.ipc.links import Links
from proto.ipc.message import Message, Reply, Request
from proto.ipc.operations import Operation
from proto.model.errors import not_ready
from proto.model.names import shard_of
from shardd.shard import Shard

A = TypeVar("A")
_PHASES = ("derive", "ready")
"""Phases in which a shard answers the others: from the moment its own log has been read."""
PATIENCE_S = 1.0
"""How long a request waits for a shard that is being started again."""
MOVING_S = 5.0
"""The same where it may move to another machine."""


def links(shards: int, timeout_s: float, name: str = "", cluster: Cluster | None = None) -> Links:
    """To all shards, under the `name` of this one, also to those that other machines hold if there is a `cluster`. They
    learn which shards there are also while it is read back."""
    return Links(shards, timeout_s, _PHASES, name=name, cluster=cluster)


class Peers:
    """All shards, as seen by shard `index`. `run` serves the links until cancelled, `update` takes their states."""

    def __init__(
        self,
        shard: Shard,
        index: int,
        links: Links,
        in_hand: InHand | None = None,
        *,
        term: int = 0,
        away_s: float = 0.0,
        serving: Callable[[], bool] | None = None,
    ) -> None:
        """Where shards have holders of their own: `term` is this one's, `away_s` after how many seconds a shard that is
        not reached counts as away, and `serving` says at each moment whether this shard may still ask others."""
        self.index = index
        self.term = term
        self._shard = shard
        self._links = links
        self._in_hand = in_hand or InHand()
        self._away_s = away_s
        self._serving = serving
        self._lost_at: list[float | None] = [None] * len(links.states)
        """Since when each shard is not reachable, in monotonic seconds."""
        self.updated: Callable[[], object] = lambda: None
        """Called at news of which shards are there."""
        links.on_update = self._news
        self.run = links.run
        self.update = links.update
        self._news()

    @property
    def states(self) -> list[ShardState]:
        """All shards, as the supervisor reports them."""
        return self._links.states

    def _news(self) -> None:
        now = self._shard.monotonic()
        for index, lost_at in enumerate(self._lost_at):
            self._lost_at[index] = None if self.reachable(index) else now if lost_at is None else lost_at
        self.updated()

    def index_of(self, topic: str) -> int:
        """The shard that owns a topic."""
        return shard_of(topic, len(self._links.states))

    def reachable(self, index: int) -> bool:
        """True if shard `index` answers requests now."""
        return index == self.index or self._links.states[index].phase in _PHASES or self._links.reaches(index)

    def ready(self, index: int) -> bool:
        """True if shard `index` answers all requests now, as far as is known."""
        return self._links.states[index].phase == "ready" or self._links.reaches(index)

    def life(self, index: int) -> int | str:
        return self._links.life(index)

    @property
    def lives(self) -> tuple[int | str, ...]:
        return tuple(map(self.life, range(len(self.states))))

    @property
    def epoch(self) -> int:
        """A number of this shard's process. Later ones have larger numbers, on whichever machine."""
        return self.term or self._links.states[self.index].incarnation

    async def returned(self, index: int) -> None:
        """Wait, up to `PATIENCE_S` or `MOVING_S`, until a shard that is being started again, or moves, is ready."""
        with trio.move_on_after(MOVING_S if self._away_s else PATIENCE_S):
            while index != self.index and self._links.returns(index):
                await self._links.updated.wait()

    def away(self, index: int) -> bool:
        """Whether a shard cannot be waited for: it cannot start, or no machine that holds it was reached for long."""
        if not self._away_s:
            return self._links.states[index].phase == "failed"
        lost_at = self._lost_at[index]
        return lost_at is not None and self._shard.monotonic() - lost_at >= self._away_s

    def lost(self, index: int) -> bool:
        """Whether a shard is `away`, and no machine is known to hold it: what it holds does not grow."""
        return self.away(index) and not (self._away_s and self._links.states[index].holder)

    @property
    def one_away(self) -> bool:
        """Whether any shard is `away`."""
        return any(map(self.away, range(len(self.states))))

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
        if self._serving is not None and not self._serving():
            raise not_ready(
                f"shard {self.index} could not renew its term in the bucket, and asks no other shard",
                reason="term_not_renewed",
                outcome="not_done",
            )
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

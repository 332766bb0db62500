"""The feed of a live topic: one read parked in the shard for each topic and set of options, for all its subscriptions.

The feed hands each batch to every subscription at the batch's beginning, the same bytes object to all. So a batch is
rendered once for any number of streams. Positions decide, never time:

    subscription at the batch's beginning   takes it
    subscription at or beyond its end       has it already, from its own reading
    anything else                           is behind: reads by itself until it reaches the feed's position

A subscription joins the feed when it is not behind it. A subscription that has read further than the feed ignores the
feed's batches until the feed has caught up with it. When the shard goes away, the feed keeps its position and asks
again from there; the streams see only a pause. A gap, a topic deleted and created again, or damage ends the feed. Each
subscription then reads by itself and handles its own gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import trio
from msgspec import Struct

from gateway.admission.body_budget import Budget, Hold, Kind
from gateway.shards.client import Shards
from gateway.streams.watch_request import Options
from proto.ipc import operations
from proto.ipc.message import Reply
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import MAX_WAIT_MS, Limits
from proto.process import trace
from proto.process.faults import faults

FIRST_RETRY_S, LAST_RETRY_S = 0.02, 1.0


class Batch(Struct, eq=False):
    """Records of one topic, rendered. `payload` is b"" if none of them is to be shown. `forms` caches the frames that
    each kind of stream renders from the batch, so that streams of that kind share them."""

    payload: bytes
    from_seq: int
    to_seq: int
    head: int
    hold: Hold
    """Counts the batch's bytes until no stream refers to it."""
    forms: dict[Any, bytes] = {}

    def keep(self, kind: Any, form: bytes) -> None:
        """Cache the frame of a kind of stream, and count its bytes."""
        self.forms[kind] = form
        self.hold.set(self.hold.size + len(form))


class Member(Protocol):
    """A subscription as a feed sees it."""

    epoch: int
    seq: int

    def take(self, batch: Batch) -> None:
        """Take in a batch."""

    def throttled(self, error: TopicsError) -> None:
        """The shard is too busy for this topic: its records come later."""

    def fall_behind(self) -> None:
        """The feed has ended. The member has left it already."""

    def deleted(self) -> None:
        """The topic was deleted. The member has left the feed already."""


def frame_bytes(options: Options, limits: Limits) -> int:
    """Return the most payload bytes of a frame, except for a single larger record. Four frames fit into a stream's
    queue."""
    return max(min(options.budget, limits.watch_queue_bytes // 4), 1)


def asking(options: Options, epoch: int, seq: int, wait_ms: int, budget: int, *, touch: bool) -> operations.Feed:
    """Return the operation of a stream read."""
    return operations.Feed(
        epoch,
        seq,
        wait_ms,
        touch,
        options.limit,
        budget,
        options.nodes,
        options.tags,
        options.meta,
        options.data,
        options.strong,
    )


@dataclass(slots=True, eq=False)
class TopicFeed:
    feeds: TopicFeeds
    topic: str
    options: Options
    epoch: int
    seq: int
    members: dict[Member, None] = field(default_factory=dict)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    async def run(self) -> None:
        trace.begin("")  # the feed serves all its streams, so it must not carry the trace of the first one's request
        try:
            await self._follow()
        except Exception:
            # A bug in one feed must not end the streams of other topics.
            faults.failed("feed")
            self._end(lambda member: member.fall_behind())

    async def _follow(self) -> None:
        retry_s = FIRST_RETRY_S
        most = frame_bytes(self.options, self.feeds.limits)
        with self.scope:
            while True:
                asked = asking(self.options, self.epoch, self.seq, MAX_WAIT_MS, most, touch=False)
                try:
                    reply = (await self.feeds.shards.call(asked, self.topic)).checked()
                except TopicsError as error:
                    if error.code is ErrorCode.TOPIC_NOT_FOUND:
                        self._end(lambda member: member.deleted())
                        return
                    if error.code is ErrorCode.INTERNAL:
                        break
                    if error.code is ErrorCode.THROTTLED:
                        for member in tuple(self.members):
                            member.throttled(error)
                        await trio.sleep((error.retry_after_ms or 0) / 1000)
                        continue
                    await trio.sleep(retry_s)
                    retry_s = min(2 * retry_s, LAST_RETRY_S)
                    continue
                retry_s = FIRST_RETRY_S
                if not self._spread(reply):
                    break
            self._end(lambda member: member.fall_behind())

    def _spread(self, reply: Reply[operations.Fed]) -> bool:
        """Hand a batch to the members. Returns False when the members must read by themselves: after a gap, another
        epoch, or without memory for the batch."""
        extra = reply.extra
        assert extra is not None
        if extra.gap is not None or extra.epoch != self.epoch:
            return False
        hold = self.feeds.budget.hold(Kind.STREAM)
        if not hold.take(len(reply.body)):
            return False  # each member reads the batch once there is memory for it
        batch = Batch(reply.body, self.seq, extra.to, extra.head, hold)
        self.seq = batch.to_seq
        for member in tuple(self.members):
            member.take(batch)
        return True

    def _end(self, tell: Callable[[Member], None]) -> None:
        self.feeds.forget(self)
        members, self.members = self.members, {}
        for member in members:
            tell(member)


class TopicFeeds:
    """The running feeds. `nursery` runs them."""

    def __init__(self, shards: Shards, limits: Limits, budget: Budget) -> None:
        self.shards = shards
        self.limits = limits
        self.budget = budget
        self.nursery: trio.Nursery | None = None
        self._feeds: dict[tuple[str, Options], TopicFeed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def join(self, topic: str, options: Options, member: Member) -> TopicFeed | None:
        """Join the feed of a topic, making it if needed. Returns None if the member is behind the feed."""
        feed = self._feeds.get((topic, options))
        if feed is None:
            assert self.nursery is not None
            feed = self._feeds[topic, options] = TopicFeed(self, topic, options, member.epoch, member.seq)
            self.nursery.start_soon(feed.run)
        elif feed.epoch != member.epoch or feed.seq > member.seq:
            return None
        feed.members[member] = None
        return feed

    def leave(self, feed: TopicFeed, member: Member) -> None:
        """Leave a feed; the last member ends it. Does nothing if the feed has ended."""
        feed.members.pop(member, None)
        if not feed.members:
            self.forget(feed)
            feed.scope.cancel()

    def forget(self, feed: TopicFeed) -> None:
        if self._feeds.get((feed.topic, feed.options)) is feed:
            del self._feeds[feed.topic, feed.options]

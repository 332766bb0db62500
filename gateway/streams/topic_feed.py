"""Live topics: one read waiting in the shard for each topic and set of options, whoever watches.

What comes is handed to every subscription that stands where it begins (the same bytes object to all), so a batch is
rendered once however many watch. Positions decide, never time:

    subscription at the batch's beginning   takes it
    subscription at or beyond its end       has it already, from its own reading
    anything else                           is behind: reads by itself until it stands where the feed does

A subscription joins when it is not behind the feed. If the feed is behind the subscription, the batches in between are
passed over. A shard that goes away leaves the feed where it is: it asks again from there, and the streams see nothing
but a pause. Gaps, a topic made anew, and damage end the feed: each subscription finds out by itself what that means for
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import structlog
import trio

from gateway.admission.body_budget import Budget, Hold, Kind
from gateway.shards.client import Shards
from gateway.streams.watch_request import Options
from proto.ipc.message import Reply
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import MAX_WAIT_MS, Limits
from proto.process import trace

_log: Any = structlog.get_logger()

FIRST_RETRY_S, LAST_RETRY_S = 0.02, 1.0


class Batch:
    """Records of one topic, rendered. `payload` is b"" if none of them was to be shown. `forms` is for those who send
    it: what they made of it, to be shared by all who make the same."""

    __slots__ = ("forms", "from_seq", "head", "hold", "payload", "to_seq")

    def __init__(self, payload: bytes, from_seq: int, to_seq: int, head: int, hold: Hold) -> None:
        self.payload = payload
        self.from_seq = from_seq
        self.to_seq = to_seq
        self.head = head
        self.forms: dict[Any, bytes] = {}
        self.hold = hold
        """Counts it, until no stream has it any more."""

    def keep(self, kind: Any, form: bytes) -> None:
        """Share a form."""
        self.forms[kind] = form
        self.hold.set(self.hold.size + len(form))


class Member(Protocol):
    """A subscription, as a feed sees it."""

    epoch: int
    seq: int

    def take(self, batch: Batch) -> None:
        """A batch came."""

    def paced(self, error: TopicsError) -> None:
        """The shard is too busy for this topic: what there is comes later."""

    def fall_behind(self) -> None:
        """The feed is no more. The member has left already."""

    def deleted(self) -> None:
        """The topic is no more. The member has left already."""


def frame_bytes(options: Options, limits: Limits) -> int:
    """The most payload of a frame, unless a single record has more: four frames fit into what may wait for a stream."""
    return max(min(options.budget, limits.watch_queue_bytes // 4), 1)


def feed_options(options: Options, epoch: int, seq: int, wait_ms: int, budget: int, *, touch: bool) -> dict[str, Any]:
    """The options of a `feed` request."""
    return {**options.as_map(), "budget": budget, "epoch": epoch, "from_seq": seq, "wait_ms": wait_ms, "touch": touch}


class TopicFeed:
    def __init__(self, feeds: TopicFeeds, topic: str, options: Options, epoch: int, seq: int) -> None:
        self.members: dict[Member, None] = {}
        self.scope = trio.CancelScope()
        self.epoch = epoch
        self.seq = seq
        self.topic = topic
        self.options = options
        self._feeds = feeds

    async def run(self) -> None:
        trace.begin("")  # it is for everybody who watches, not for the one who happened to come first
        try:
            await self._follow()
        except Exception:
            # A mistake of ours must not take the streams of other topics along.
            _log.exception("feed_failed")
            self._end(lambda member: member.fall_behind())

    async def _follow(self) -> None:
        retry_s = FIRST_RETRY_S
        most = frame_bytes(self.options, self._feeds.limits)
        with self.scope:
            while True:
                options = feed_options(self.options, self.epoch, self.seq, MAX_WAIT_MS, most, touch=False)
                try:
                    reply = await self._feeds.shards.call("feed", self.topic, options)
                    if reply.error is not None:
                        raise reply.error
                except TopicsError as error:
                    if error.code is ErrorCode.TOPIC_NOT_FOUND:
                        self._end(lambda member: member.deleted())
                        return
                    if error.code is ErrorCode.INTERNAL:
                        self._end(lambda member: member.fall_behind())
                        return
                    if error.code is ErrorCode.THROTTLED:
                        for member in tuple(self.members):
                            member.paced(error)
                        await trio.sleep((error.retry_after_ms or 0) / 1000)
                        continue
                    await trio.sleep(retry_s)
                    retry_s = min(2 * retry_s, LAST_RETRY_S)
                    continue
                retry_s = FIRST_RETRY_S
                if not self._spread(reply):
                    self._end(lambda member: member.fall_behind())
                    return

    def _spread(self, reply: Reply) -> bool:
        """Hand a batch to the members; False for a reply that is more than a batch."""
        extra = reply.extra
        assert extra is not None
        if "gap" in extra or extra["epoch"] != self.epoch:
            return False
        hold = self._feeds.budget.hold(Kind.STREAM)
        if not hold.take(len(reply.body)):
            return False  # each reads it when there is memory for it
        batch = Batch(reply.body, self.seq, extra["to"], extra["head"], hold)
        self.seq = batch.to_seq
        for member in tuple(self.members):
            member.take(batch)
        return True

    def _end(self, tell: Callable[[Member], None]) -> None:
        self._feeds.forget(self)
        members, self.members = self.members, {}
        for member in members:
            tell(member)


class TopicFeeds:
    """The feeds there are. `nursery` runs them."""

    def __init__(self, shards: Shards, limits: Limits, budget: Budget) -> None:
        self.shards = shards
        self.limits = limits
        self.budget = budget
        self.nursery: trio.Nursery | None = None
        self._feeds: dict[tuple[str, Options], TopicFeed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def join(self, topic: str, options: Options, member: Member) -> TopicFeed | None:
        """The feed that brings what follows the member's position; None if the member is behind it."""
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
        """Nothing if the feed ended before."""
        feed.members.pop(member, None)
        if not feed.members:
            self.forget(feed)
            feed.scope.cancel()

    def forget(self, feed: TopicFeed) -> None:
        if self._feeds.get((feed.topic, feed.options)) is feed:
            del self._feeds[feed.topic, feed.options]

"""The subscription: one topic of one stream, its position, and how it gets the next records.

Its states are in `gateway.streams.states`. While it is behind, it reads batches by itself; while it is live, the feed
brings them.

A subscription has two positions: the last record queued, and the last `handed` to the connection, which a session
remembers. A client that loses its connection may not have received all that was handed. A client that returns with
`Last-Event-ID` continues from there. One that returns without it continues after `handed`, and does not get records
that were lost on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from gateway.admission.body_budget import Hold
from gateway.streams.event_ids import TOLD, Position
from gateway.streams.states import SUBSCRIPTION, SubscriptionEvent, SubscriptionState, after
from gateway.streams.topic_feed import FIRST_RETRY_S, LAST_RETRY_S, Batch, TopicFeed, TopicFeeds
from gateway.streams.watch_request import Options
from proto.ipc.message import Reply
from proto.ipc.operations import Fed
from proto.model.errors import ErrorCode, TopicsError


class Throttle(NamedTuple):
    """What a client hears of a throttled topic."""

    message: str
    retry_after_ms: int | None


class Carrier(Protocol):
    """A stream, as its subscriptions see it."""

    feeds: TopicFeeds
    generation: int
    """Counts the topics of the session that ended or were made again."""
    throttled: dict[str, Throttle]
    """Topics whose records come later, with the reason."""

    def deleted(self, subscription: Subscription) -> None:
        """The subscription's topic was deleted, and the client told."""

    def behind(self, subscription: Subscription) -> None:
        """Read for the subscription, because its feed cannot bring what comes next."""

    def offer(self, item: Item) -> bool:
        """Queue an item that can be read again later. Returns False if there is no room for it."""

    def put(self, item: Item) -> None:
        """Queue an item in any case."""

    def problem(
        self, code: int, message: str, topics: list[str] | None = None, retry_after_ms: int | None = None
    ) -> Item:
        """Return an error frame as an item."""


class Item(NamedTuple):
    """A queued item. `kind` is record, tombstone, caught-up, topic-deleted; position, one without a frame; or raw,
    which belongs to no subscription. `what` is a `Batch`, the payload's fields, or bytes."""

    kind: str
    subscription: Subscription | None
    what: Any
    after: Position | None
    size: int


@dataclass(slots=True, eq=False)
class Subscription:
    stream: Carrier
    name: str
    options: Options
    handed: Position
    epoch: int = field(init=False)
    seq: int = field(init=False)
    born: int = field(init=False)
    head: int = 0
    state: SubscriptionState = SubscriptionState.BEHIND
    first: bool = True
    """Whether the subscription has read nothing on this connection yet."""
    feed: TopicFeed | None = None
    retry_at: float = 0.0
    retry_s: float = FIRST_RETRY_S

    def __post_init__(self) -> None:
        self.epoch, self.seq, self.born = self.handed

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.seq, self.born)

    # What the feed calls

    def take(self, batch: Batch) -> None:
        if batch.from_seq == self.seq:
            if not batch.payload and batch.to_seq == self.seq:
                self.head = batch.head  # the feed's read ended without news
                return
            after = Position(self.epoch, batch.to_seq, self.born)
            kind = "record" if batch.payload else "position"
            if self.stream.offer(Item(kind, self, batch, after, len(batch.payload))):
                self.seq = batch.to_seq
                self.head = batch.head
                return
        elif batch.to_seq <= self.seq:
            return
        self._leave()
        self.stream.behind(self)

    def throttled(self, error: TopicsError) -> None:
        # Not the error itself: its traceback keeps the frame that read, and the memory that the read held.
        self.stream.throttled[self.name] = Throttle(error.message, error.retry_after_ms)

    def fall_behind(self) -> None:
        self.feed = None
        self.stream.behind(self)

    def deleted(self) -> None:
        """End the subscription and tell the client, once per session. The position's epoch `TOLD` marks that the
        session has been told."""
        self.feed = None
        self.over()
        if self.epoch != TOLD:
            head = max(self.head, self.seq if self.epoch > 0 else 0)
            fields = {"topic": self.name, "head_seq": head, "reason": "deleted"}
            self.stream.generation += 1
            after = Position(TOLD, self.seq, self.stream.generation)
            self.stream.put(Item("topic-deleted", self, fields, after, 0))
        self.stream.deleted(self)

    # What the stream does with it

    def _leave(self) -> None:
        if self.feed is not None:
            self.stream.feeds.leave(self.feed, self)
            self.feed = None

    def over(self) -> None:
        self._leave()
        self.note(SubscriptionEvent.END)

    def note(self, event: SubscriptionEvent) -> None:
        self.state = after(SUBSCRIPTION, self.state, event)

    def back_to_handed(self) -> None:
        """Move back to the position handed to the connection, because the queue was dropped."""
        self._leave()
        self.epoch, self.seq, self.born = self.handed

    def read(self, reply: Reply[Fed], hold: Hold) -> None:
        """Take in the reply to the subscription's own read. `hold` counts its bytes."""
        extra = reply.extra
        assert extra is not None
        head, earliest = extra.head, extra.earliest
        self.head = head
        if (gap := extra.gap) is not None:
            self._lost(gap, extra.epoch, earliest, head)
        self.epoch = extra.epoch
        hold.set(len(reply.body))
        batch = Batch(reply.body, self.seq, extra.to, head, hold)
        if batch.payload or batch.to_seq > self.seq:
            self.seq = max(batch.to_seq, self.seq)
            kind = "record" if batch.payload else "position"
            self.stream.put(Item(kind, self, batch, self.position, len(batch.payload)))
        self.first = False
        self.retry_s = FIRST_RETRY_S
        if batch.to_seq >= head:
            self.feed = self.stream.feeds.join(self.name, self.options, self)
        if self.feed is None:
            self.stream.behind(self)
        else:
            self.note(SubscriptionEvent.CATCH_UP)
            self.stream.put(Item("caught-up", self, {"topic": self.name, "head_seq": head}, self.position, 0))

    def _lost(self, gap: tuple[int, int, str, str | None], epoch: int, earliest: int, head: int) -> None:
        gap_from, gap_to, reason, cause = gap
        if reason == "recreated":
            self.stream.generation += 1
            self.born = self.stream.generation
        elif self.first and reason != "source_trim":
            reason = "from_seq_too_old"
        # Other gaps may be in the middle, with older records before them.
        self.epoch, self.seq = epoch, earliest - 1 if reason == "recreated" else gap_to
        fields = {
            "topic": self.name,
            "reason": reason,
            "gap_from": gap_from,
            "gap_to": gap_to,
            "earliest_seq": earliest,
            "head_seq": head,
        }
        if cause is not None:
            fields["cause"] = cause
        self.stream.put(Item("tombstone", self, fields, self.position, 0))

    def failed(self, error: TopicsError, now: float) -> None:
        """Take in the error of the subscription's own read. Does nothing if it is not behind any more."""
        if self.state is not SubscriptionState.BEHIND:
            return
        if error.code is ErrorCode.TOPIC_NOT_FOUND:
            self.deleted()
        elif error.code is ErrorCode.INTERNAL:
            self.over()
            self.stream.put(self.stream.problem(500, error.message, [self.name]))
        elif error.code is ErrorCode.THROTTLED:
            self.throttled(error)
            self.retry_at = now + (error.retry_after_ms or 0) / 1000
            self.stream.behind(self)
        else:
            self.retry_at = now + self.retry_s
            self.retry_s = min(2 * self.retry_s, LAST_RETRY_S)
            self.stream.behind(self)

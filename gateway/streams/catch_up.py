"""The catch-up of one stream: the reads for its subscriptions that are behind, some at a time, in turn.

It waits while the stream's queue is over half full. A read begins once there is memory for the frame that it may bring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

import trio

from gateway.admission.body_budget import Hold, Kind
from gateway.streams.event_ids import Position
from gateway.streams.states import SubscriptionEvent, SubscriptionState
from gateway.streams.subscription import Subscription
from gateway.streams.topic_feed import TopicFeeds, asking, frame_bytes
from proto.ipc.link import Pending
from proto.model.errors import TopicsError
from proto.model.keys import Key

MOST_READS = 16
"""Reads that a stream with subscriptions behind sends at a time."""


class CatchUp:
    def __init__(self, feeds: TopicFeeds, key: Key, room: Callable[[], int]) -> None:
        """`room` returns how many bytes the reads may bring now; after 0 it is asked again when `roomy` is set."""
        self._feeds = feeds
        self._key = key
        self._room = room
        self._behind: deque[Subscription] = deque()
        self._running = False
        self.nursery: trio.Nursery | None = None
        """Runs the reads; None while the stream is not served."""
        self.roomy = trio.Event()

    def add(self, subscription: Subscription) -> None:
        """Have a subscription fall behind, and read for it."""
        subscription.note(SubscriptionEvent.FALL_BEHIND)
        if subscription.state is SubscriptionState.OVER:
            return
        self._behind.append(subscription)
        self.begin()

    def begin(self) -> None:
        """Read, if a subscription is behind."""
        if self._behind and not self._running and self.nursery is not None:
            self._running = True
            self.nursery.start_soon(self._run)

    async def _run(self) -> None:
        try:
            while self._behind:
                while not (room := self._room()):
                    self.roomy = trio.Event()
                    await self.roomy.wait()
                now = monotonic()
                if chosen := self._chosen(room, now):
                    await self._read(chosen, now)
                else:
                    earliest = min((subscription.retry_at for subscription in self._behind), default=0.0)
                    await trio.sleep(max(earliest - monotonic(), 0))
        finally:
            self._running = False

    def _chosen(self, room: int, now: float) -> list[Subscription]:
        """Take out the next few subscriptions that may be read. There is none if all of them wait to be read again."""
        chosen: list[Subscription] = []
        most = MOST_READS
        for _ in range(len(self._behind)):
            subscription = self._behind.popleft()
            if subscription.state is not SubscriptionState.BEHIND:
                continue
            if subscription.retry_at > now:
                self._behind.append(subscription)
                continue
            chosen.append(subscription)
            most = min(most, max(room // frame_bytes(subscription.options, self._feeds.limits), 1))
            if len(chosen) >= most:
                break
        return chosen

    async def _read(self, chosen: list[Subscription], now: float) -> None:
        """Send one read for each of the subscriptions and take in the replies."""
        asked: list[tuple[Subscription, Position, Pending, Hold]] = []
        try:
            for at, subscription in enumerate(chosen):
                most = frame_bytes(subscription.options, self._feeds.limits)
                hold = self._feeds.budget.hold(Kind.STREAM, self._key)
                try:
                    if not asked:
                        await hold.grow(most)
                    elif not hold.take(most):
                        # Streams that hold memory while they wait for more would wait for each other.
                        self._behind.extendleft(reversed(chosen[at:]))
                        break
                    if subscription.state is SubscriptionState.BEHIND:
                        asked.append((subscription, subscription.position, self._ask(subscription, most), hold))
                except TopicsError as error:
                    subscription.failed(error, now)
            for subscription, position, pending, hold in asked:
                try:
                    reply = (await pending.reply()).checked()
                except TopicsError as error:
                    subscription.failed(error, monotonic())
                else:
                    if subscription.state is SubscriptionState.BEHIND and subscription.position == position:
                        subscription.read(reply, hold)
                    else:  # the queue was dropped meanwhile, so this reply is too
                        self.add(subscription)
        finally:
            for _, _, pending, _ in asked:
                pending.abandon()

    def _ask(self, subscription: Subscription, most: int) -> Pending:
        shards, name = self._feeds.shards, subscription.name
        wanted = asking(subscription.options, subscription.epoch, subscription.seq, 0, most, touch=subscription.first)
        return shards.ask(shards.index_of(name), wanted, name)

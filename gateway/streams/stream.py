"""The stream of one client: its subscriptions, the queue of frames to send, and the task that sends them.

Live batches go into a bounded queue. When it is full, a subscription falls behind: no batches are kept for it, and once
there is room it reads larger batches by itself. So a slow client costs at most its queue, and delays no other client.

The ladder for a client that does not read, with times from when the queue was full or a write blocked:

    at once                     subscriptions fall behind; they read missed records again, or send a tombstone
    buffer_grace_ms             the queue is dropped too: its records can be read again
    slow_consumer_timeout_ms    the stream ends, with a last `error` frame if that can still be written
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from time import monotonic
from typing import Protocol

import trio

from gateway.admission.body_budget import Hold
from gateway.contract.auth import Keyring, key_is_gone
from gateway.http.messages import ClientGone, Gone
from gateway.streams.catch_up import CatchUp
from gateway.streams.event_ids import Position
from gateway.streams.prefix_feeds import PrefixFeeds
from gateway.streams.states import OPEN, STREAM, StreamEvent, StreamState, SubscriptionState, after
from gateway.streams.subscription import Item, Subscription, Throttle
from gateway.streams.topic_feed import TopicFeeds
from gateway.streams.watch_request import Options
from gateway.streams.wildcard import Wildcard
from proto.model.keys import Key
from proto.model.limits import Limits

LAST_WORD_S = 1.0
"""How long an ending stream has for its last frame."""


class Shown(Protocol):
    """The parts of the hub that a stream needs."""

    feeds: TopicFeeds
    names: PrefixFeeds
    keyring: Keyring
    limits: Limits
    streams: dict[Stream, None]

    def admit(self, stream: Stream) -> None:
        """End a stream that begins while the service drains. To be called before it runs."""


class Stream(ABC):
    """A stream without a transport. A subclass renders and sends the frames."""

    def __init__(self, live: Shown, key: Key, *, most_items: int, generation: int = 0) -> None:
        self.key = key
        """The client's key."""
        self.feeds = live.feeds
        self.names = live.names
        self.subscriptions: dict[str, Subscription] = {}
        self.wildcards: dict[str, Wildcard] = {}
        self.throttled: dict[str, Throttle] = {}
        """Topics whose records come later, with the reason; the client has not been told yet."""
        self.generation = generation
        self._live = live
        self._limits = live.limits
        self.most = most_items
        self.queue: deque[Item] = deque()
        self._queued_bytes = 0
        self._sending_bytes = 0
        self._in_hand: list[Hold] = []
        """Holds of the batches being sent."""
        self._catch_up = CatchUp(live.feeds, key, self._free_bytes)
        self._scope = trio.CancelScope()
        self._sender: trio.lowlevel.Task | None = None
        self._full_since: float | None = None
        self._sending_since: float | None = None
        self.state = StreamState.SERVING
        self._last_item: Item | None = None
        self._end_by = 0.0
        self.sent_at = monotonic()
        """When an event stream last sent bytes, in seconds on the monotonic clock."""
        self.service_stops = False
        """Whether it ends because the service stops, and can be opened again at its successor."""
        self.ended = trio.Event()

    # How it looks

    @abstractmethod
    async def send(self) -> None:
        """Send the rest of an item that was handed over, and items from the front of `queue`, each removed with
        `taken`. Raises OSError or `ClientGone` when the client is gone."""

    @abstractmethod
    def problem(
        self, code: int, message: str, topics: list[str] | None = None, retry_after_ms: int | None = None
    ) -> Item:
        """Return an error frame as an item."""

    async def owed(self) -> list[Item]:
        """Return what an ending stream sends before its last frame. Waits for it for a bounded time."""
        return []

    def tick(self, now: float) -> None:
        """Tell the client of throttled topics, and apply the ladder for slow clients. Called every `TICK_S`."""
        if self.throttled and not self.sending:
            throttled, self.throttled = self.throttled, {}
            message, retry_after_ms = next(iter(throttled.values()))
            self.put(self.problem(429, message, sorted(throttled), retry_after_ms))
        for wildcard in self.wildcards.values():
            if not self.sending and (what := wildcard.news()):
                self.put(self.problem(429, *what))
        if self.state not in OPEN:
            if now >= self._end_by:
                self.abort()
            return
        since = min((t for t in (self._full_since, self._sending_since) if t is not None), default=now)
        stalled_ms = (now - since) * 1000
        if stalled_ms >= self._limits.slow_consumer_timeout_ms:
            self.end(self.problem(408, "the client reads too slowly; connect again to go on where it is"))
        elif stalled_ms >= self._limits.buffer_grace_ms and self.state is StreamState.SERVING:
            self._note(StreamEvent.STALLED)
            self._forget_queue()

    # Subscriptions

    def add(self, name: str, options: Options, position: Position) -> Subscription:
        """Begin to watch a topic. Replaces an earlier subscription of it."""
        self.drop(name)
        subscription = self.subscriptions[name] = Subscription(self, name, options, position)
        self.behind(subscription)
        return subscription

    def drop(self, name: str) -> bool:
        """Stop watching a topic and drop its queued frames. Returns False if it was not watched."""
        self.throttled.pop(name, None)
        subscription = self.subscriptions.pop(name, None)
        if subscription is None:
            return False
        subscription.over()
        self.queue = deque(item for item in self.queue if item.subscription is not subscription)
        self._queued_bytes = sum(item.size for item in self.queue)
        return True

    # Prefixes

    def add_prefix(self, prefix: str, options: Options, unknown: frozenset[bytes] = frozenset()) -> None:
        """Begin to watch the topics of a prefix that are not watched yet. Replaces the options of an earlier one.
        `unknown` are the marks of topics that the client knows and the session does not."""
        if prefix in self.wildcards:
            self.wildcards.pop(prefix).end()
        wildcard = self.wildcards[prefix] = Wildcard(self, prefix, options, unknown)
        if self._catch_up.nursery is not None:
            wildcard.begin()

    def drop_prefix(self, prefix: str) -> list[str]:
        """Stop watching the topics of a prefix that no other prefix covers, and return their names."""
        wildcard = self.wildcards.pop(prefix, None)
        if wildcard is None:
            return []
        wildcard.end()
        dropped = [name for name in self.subscriptions if name.startswith(prefix) and not self.covered(name)]
        return [name for name in dropped if self.drop(name)]

    def covered(self, name: str) -> str | None:
        """Return a watched prefix of a name."""
        return next((prefix for prefix in self.wildcards if name.startswith(prefix)), None)

    def follows(self, name: str) -> bool:
        """Whether a topic is watched and not deleted."""
        subscription = self.subscriptions.get(name)
        return subscription is not None and subscription.state is not SubscriptionState.OVER

    def watching(self) -> int:
        """Return the number of topics that are watched and not deleted."""
        return sum(subscription.state is not SubscriptionState.OVER for subscription in self.subscriptions.values())

    def join(self, name: str, options: Options, epoch: int) -> None:
        """Begin to watch a topic of a prefix, or its new instance, with its first record. Queued frames stay."""
        position = Position(epoch, 0, self.generation)
        subscription = self.subscriptions[name] = Subscription(self, name, options, position)
        self.behind(subscription)

    def deleted(self, subscription: Subscription) -> None:
        room = self._limits.max_watch_topics - self.watching() if self.wildcards else 0
        for wildcard in self.wildcards.values():
            room -= wildcard.deleted(subscription, room)

    def forget(self, name: str) -> None:
        """Forget a deleted topic of a prefix. A subclass with a session may keep it for now."""
        del self.subscriptions[name]

    def forgotten(self) -> None:
        """Called when the client knows a topic that is neither known here nor exists. Only sessions have such ids."""
        return

    def behind(self, subscription: Subscription) -> None:
        self._catch_up.add(subscription)

    # The queue

    def offer(self, item: Item) -> bool:
        """Queue an item that can be read again later. Returns False if there is no room for it."""
        if len(self.queue) >= self.most or (
            self._held_bytes and self._held_bytes + item.size > self._limits.watch_queue_bytes
        ):
            if self._full_since is None:
                self._full_since = monotonic()
            return False
        self.put(item)
        return True

    def put(self, item: Item) -> None:
        if self.state not in OPEN:
            return
        if self._sender is None or not self._hand_over(item):
            self.queue.append(item)
            self._queued_bytes += item.size
            self._wake()

    def _hand_over(self, item: Item) -> bool:
        """Hand an item to the connection without waiting. Returns False if the connection does not take it now. Nothing
        may be queued or in the sender's hands."""
        return False

    def handed_over(self, item: Item, *, unsent: bool) -> None:
        """Note that the connection has taken an item. `unsent`: the sender has to send the rest of it."""
        if item.subscription is not None and item.after is not None:
            item.subscription.handed = item.after
            self.progressed(item.subscription)
        if item.kind != "position":
            self.sent_at = monotonic()
        if unsent:
            self._sending_since = self.sent_at
            self._sending_bytes = item.size
            if item.kind == "record":
                self._in_hand.append(item.what.hold)
            self._wake()

    def _wake(self) -> None:
        if self._sender is not None:
            trio.lowlevel.reschedule(self._sender)
            self._sender = None

    def taken(self) -> Item:
        """Remove the front of the queue and return it. The caller hands it to the connection."""
        item = self.queue.popleft()
        self._queued_bytes -= item.size
        self._sending_bytes += item.size
        if item.kind == "record":
            self._in_hand.append(item.what.hold)
        if item.subscription is not None and item.after is not None:
            item.subscription.handed = item.after
            self.progressed(item.subscription)
        self._look_for_room()
        return item

    @property
    def _held_bytes(self) -> int:
        return self._queued_bytes + self._sending_bytes

    def _free_bytes(self) -> int:
        """Return how many bytes reads may bring: none while the queue is over half full, or once it takes no more."""
        most, held = self._limits.watch_queue_bytes, self._held_bytes
        return most - held if self.state in OPEN and len(self.queue) <= self.most // 2 and held <= most // 2 else 0

    def _look_for_room(self) -> None:
        if self._free_bytes():
            self._full_since = None
            self._catch_up.roomy.set()

    def progressed(self, subscription: Subscription) -> None:
        """Called when a subscription's `handed` has changed. A subclass with a session saves it."""
        return

    def _forget_queue(self) -> None:
        """Drop the queued frames; their subscriptions read the records again. Frames that cannot be read again stay."""
        kept = [
            item
            for item in self.queue
            if item.kind in ("topic-deleted", "raw")
            or (item.kind == "caught-up" and item.subscription is not None and item.after == item.subscription.handed)
        ]
        self.queue.clear()
        self.queue.extend(kept)
        self._queued_bytes = sum(item.size for item in kept)
        for subscription in self.subscriptions.values():
            if subscription.position != subscription.handed and subscription.state is not SubscriptionState.OVER:
                waiting = subscription.state is SubscriptionState.BEHIND
                subscription.back_to_handed()
                if not waiting:
                    self.behind(subscription)
        self._catch_up.roomy.set()

    # Life

    def revoke(self) -> None:
        """End the stream because its key is gone."""
        error = key_is_gone()
        self.end(self.problem(error.status, error.message))

    def _note(self, event: StreamEvent) -> None:
        self.state = after(STREAM, self.state, event)

    @property
    def ending(self) -> bool:
        """Whether the stream takes no more frames."""
        return self.state not in OPEN

    @property
    def gone(self) -> bool:
        """Whether the client left."""
        return self.state is StreamState.GONE

    @property
    def sending(self) -> bool:
        return self._sending_since is not None or bool(self.queue)

    def end(self, last: Item) -> None:
        """Send one last frame and end. Does not wait."""
        if self.state in OPEN:
            self._last_item = last
            self._end_by = monotonic() + LAST_WORD_S
            self._note(StreamEvent.END)
            self._wake()

    def abort(self) -> None:
        """End without a last frame."""
        self._note(StreamEvent.LEAVE)
        self._scope.cancel()

    async def run(self, gone: Gone | None) -> None:
        """Serve the stream until it ends or `gone` returns because the client left. Then release all that it holds."""
        self._live.streams[self] = None
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._catch_up.nursery = nursery
                    if gone is not None:
                        nursery.start_soon(self._until, gone)
                    self._catch_up.begin()
                    for wildcard in self.wildcards.values():
                        wildcard.begin()
                    try:
                        with self._live.keyring.while_known(self.key, self.revoke):
                            await self._send_all()
                    finally:
                        # Before the nursery closes, because feeds may still call subscriptions.
                        self._catch_up.nursery = None
                    nursery.cancel_scope.cancel()
        finally:
            for wildcard in self.wildcards.values():
                wildcard.end()
            for subscription in self.subscriptions.values():
                subscription.over()
            del self._live.streams[self]
            # Streams and subscriptions refer to each other, so only the garbage collector would free their memory.
            self.queue.clear()
            self._in_hand.clear()
            self.ended.set()

    async def _until(self, gone: Gone) -> None:
        await gone()
        self.abort()

    async def _send_all(self) -> None:
        try:
            while self.state in OPEN:
                if not self.queue and self._sending_since is None:
                    self._sender = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(self._abort)
                    continue
                self._sending_since = self._sending_since or monotonic()
                await self.send()
                # The connection has taken all items removed with `taken`.
                self._in_hand.clear()
                self._sending_bytes = 0
                self._look_for_room()
                self._sending_since = None
                if self.state is StreamState.DROPPED:
                    self._note(StreamEvent.SENT)
            if self._last_item is None:
                return
            self.queue = deque([*await self.owed(), self._last_item])
            self._in_hand.clear()
            while self.queue:
                await self.send()
        except (OSError, ClientGone):
            self._note(StreamEvent.LEAVE)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._sender = None
        return trio.lowlevel.Abort.SUCCEEDED

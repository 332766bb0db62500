"""The wildcard: one prefix of one stream. It decides which of the listed topics the stream watches.

watched, or deleted with this epoch      nothing
not watched, and there is room           watched from the first record
not watched, and there is no room        left out: the client gets an error, and it is taken in when there is room
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from gateway.streams.event_ids import TOLD, mark
from gateway.streams.prefix_feed import PrefixFeed
from gateway.streams.prefix_feeds import PrefixFeeds
from gateway.streams.states import SubscriptionState
from gateway.streams.subscription import Subscription
from gateway.streams.watch_request import Options
from proto.model.keys import Key

MOST_NAMED = 100
"""Topics that one advisory frame names."""


class Watching(Protocol):
    """A stream, as its wildcards see it."""

    key: Key
    names: PrefixFeeds
    subscriptions: dict[str, Subscription]

    def watching(self) -> int:
        """Return the number of topics that are watched and not deleted."""

    def join(self, name: str, options: Options, epoch: int) -> None:
        """Begin to watch a topic with its first record."""

    def forget(self, name: str) -> None:
        """Forget a deleted topic."""

    def forgotten(self) -> None:
        """The client knows a topic that the session does not, and it no longer exists."""


class Wildcard:
    def __init__(self, stream: Watching, prefix: str, options: Options, unknown: frozenset[bytes]) -> None:
        self.prefix = prefix
        self.key = stream.key
        self._stream = stream
        self._options = options
        self._unknown = unknown
        self._feed: PrefixFeed | None = None
        self._most = stream.names.limits.max_watch_topics
        self._left_out: set[str] = set()
        self._untold: set[str] = set()

    def begin(self) -> None:
        """Follow the prefix."""
        self._feed = self._stream.names.join(self.prefix, self)
        self.listed(self._feed.epochs(), ())

    def end(self) -> None:
        if self._feed is not None:
            self._stream.names.leave(self._feed, self)
            self._feed = None

    def listed(self, epochs: Mapping[str, int], gone: Iterable[str]) -> int:
        """Take in the topics that are new in the list, or were made again, and those that are no longer in it. Returns
        the number of topics that are watched now and were not."""
        assert self._feed is not None
        fresh = [name for name, epoch in sorted(epochs.items()) if self._is_new(name, epoch)]
        room = self._most - self._stream.watching() if fresh else 0
        joined = fresh[: max(room, 0)]
        for left_out in (self._left_out, self._untold):
            left_out.difference_update(gone, joined)
        for name in joined:
            self._stream.join(name, self._options, epochs[name])
        self._leave_out(fresh[len(joined) :])
        if len(self._stream.subscriptions) > 2 * self._most:
            # Forget the deleted topics that the list no longer has and whose clients know it.
            for name, known in tuple(self._stream.subscriptions.items()):
                over = known.state is SubscriptionState.OVER and known.handed.epoch == TOLD
                if over and self._feed.epoch(name) is None:
                    self._stream.forget(name)
        if self._unknown and self._feed.complete:
            unknown, self._unknown = self._unknown - set(map(mark, self._feed.epochs())), frozenset()
            if unknown:
                self._stream.forgotten()
        return len(joined)

    def deleted(self, subscription: Subscription, room: int) -> int:
        """A watched topic was deleted: its new instance may be listed already, and there may be room for another one.
        `room` is the number of topics that the stream may begin to watch. Returns how many of them it does."""
        if self._feed is None:
            return 0
        name = subscription.name
        epoch = self._feed.epoch(name)
        if epoch is not None and self._is_new(name, epoch):
            self._leave_out([name])
        joined = 0
        while joined < room and self._left_out:
            name = min(self._left_out)
            self._left_out.discard(name)
            self._untold.discard(name)
            epoch = self._feed.epoch(name)
            if epoch is not None and self._is_new(name, epoch):
                self._stream.join(name, self._options, epoch)
                joined += 1
        return joined

    def _is_new(self, name: str, epoch: int) -> bool:
        """Whether a listed topic is to be watched: it is not watched, and the client was not told that it ended."""
        known = self._stream.subscriptions.get(name)
        return known is None or (known.state is SubscriptionState.OVER and known.epoch != epoch)

    def _leave_out(self, names: Iterable[str]) -> None:
        """Leave topics out, and tell the client of those that were not left out before."""
        new = set(names) - self._left_out
        self._left_out |= new
        self._untold |= new

    def news(self) -> tuple[str, list[str]] | None:
        """Return an error message and topics that were left out since the last call, None without any."""
        if not self._untold:
            return None
        named = sorted(self._untold)[:MOST_NAMED]
        self._untold.clear()
        return (
            f'more topics begin with "{self.prefix}" than can be watched at once, {self._most}: these and any behind '
            "them are not watched until others are deleted",
            named,
        )

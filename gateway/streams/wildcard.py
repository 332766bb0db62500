"""The wildcard: one prefix of one stream. It decides which of the listed topics the stream watches.

watched, or deleted with this epoch      nothing
not watched, and there is room           watched from the first record
not watched, and there is no room        left out: the client is told, and it is taken in when there is room
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from gateway.streams.event_ids import TOLD, mark
from gateway.streams.prefix_feed import PrefixFeed, PrefixFeeds
from gateway.streams.states import State
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
        self._stream = stream
        self._options = options
        self._unknown = unknown
        self._feed: PrefixFeed | None = None
        self._most = stream.names.limits.max_watch_topics
        self._left_out: set[str] = set()
        self._untold: set[str] = set()

    def begin(self) -> None:
        """Follow the prefix."""
        self._feed = self._stream.names.join(self.prefix, self._stream.key.prefixes, self)
        self.listed(self._feed.epochs(), ())

    def end(self) -> None:
        if self._feed is not None:
            self._stream.names.leave(self._feed, self)
            self._feed = None

    def listed(self, epochs: Mapping[str, int], gone: Iterable[str]) -> None:
        """Take in the topics that are new in the list, or were made again, and those that are no longer in it."""
        assert self._feed is not None
        self._left_out.difference_update(gone)
        self._untold.difference_update(gone)
        room = self._most - self._stream.watching()
        subscriptions = self._stream.subscriptions
        for name, epoch in sorted(epochs.items()):
            known = subscriptions.get(name)
            if known is not None and (known.state is not State.OVER or known.epoch == epoch):
                continue
            if room > 0:
                room -= 1
                self._left_out.discard(name)
                self._untold.discard(name)
                self._stream.join(name, self._options, epoch)
            elif name not in self._left_out:
                self._left_out.add(name)
                self._untold.add(name)
        if len(subscriptions) > 2 * self._most:
            self._tidy(self._feed)
        if self._unknown and self._feed.complete:
            unknown, self._unknown = self._unknown - set(map(mark, self._feed.epochs())), frozenset()
            if unknown:
                self._stream.forgotten()

    def deleted(self, subscription: Subscription) -> None:
        """A watched topic was deleted: its new instance may be listed already, and there is room for another one."""
        if self._feed is None:
            return
        if self._left_out:
            self.listed(self._feed.epochs(), ())
        elif (epoch := self._feed.epoch(subscription.name)) is not None:
            self.listed({subscription.name: epoch}, ())

    def _tidy(self, feed: PrefixFeed) -> None:
        """Forget the deleted topics that the list no longer has and whose clients were told."""
        for name, known in tuple(self._stream.subscriptions.items()):
            if known.state is State.OVER and known.handed.epoch == TOLD and feed.epoch(name) is None:
                self._stream.forget(name)

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

"""The feed of a prefix: the topics whose names begin with it, from a request parked in each shard.

The reply of a shard is the list of the first topics, with their epochs. The feed keeps the lists and hands what is new
in them to its members. A shard that is away or restarts changes nothing: the list that it had holds until it gives
another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import structlog
import trio

from gateway.shards.client import Shards
from gateway.streams.topic_feed import FIRST_RETRY_S, LAST_RETRY_S
from proto.ipc.operations import Listed, WatchNames
from proto.model.errors import TopicsError
from proto.model.limits import Limits
from proto.process import trace

GATHER_S = 0.02
"""The pause between two requests to a shard, so that topics made at the same time come in one list."""

_log: Any = structlog.get_logger()


class Member(Protocol):
    def listed(self, epochs: Mapping[str, int], gone: Iterable[str]) -> None:
        """Take in the topics that are new in the list, or were made again, and those that are no longer in it."""


class PrefixFeed:
    def __init__(self, feeds: PrefixFeeds, prefix: str, prefixes: tuple[str, ...]) -> None:
        self.members: dict[Member, None] = {}
        self.scope = trio.CancelScope()
        self.key = (prefix, prefixes)
        self._feeds = feeds
        self._lists: list[dict[str, int] | None] = [None] * len(feeds.shards.states)

    @property
    def complete(self) -> bool:
        """Whether each shard has given its list."""
        return None not in self._lists

    def epochs(self) -> dict[str, int]:
        """Return the listed topics with their epochs, in the order of their names."""
        return dict(sorted(each for found in self._lists if found for each in found.items()))

    def epoch(self, name: str) -> int | None:
        found = self._lists[self._feeds.shards.index_of(name)]
        return None if found is None else found.get(name)

    async def run(self) -> None:
        trace.begin("")  # the feed serves all its streams, so it must not carry the trace of the first one's request
        with self.scope:
            async with trio.open_nursery() as nursery:
                for index in range(len(self._lists)):
                    nursery.start_soon(self._follow, index)

    async def _follow(self, index: int) -> None:
        retry_s = FIRST_RETRY_S
        most = self._feeds.limits.max_watch_topics + 1
        known: int | None = None
        while True:
            try:
                pending = self._feeds.shards.ask(index, WatchNames(*self.key, most, known))
                try:
                    reply = await pending.reply()
                finally:
                    pending.abandon()
                if reply.error is not None:
                    raise reply.error
            except TopicsError:
                await trio.sleep(retry_s)
                retry_s = min(2 * retry_s, LAST_RETRY_S)
                continue
            retry_s = FIRST_RETRY_S
            assert reply.extra is not None
            known = reply.extra.digest
            self._spread(index, reply.extra)
            await trio.sleep(GATHER_S)

    def _spread(self, index: int, found: Listed) -> None:
        before = self._lists[index] or {}
        self._lists[index] = found.epochs
        fresh = dict(found.epochs.items() - before.items())
        gone = before.keys() - found.epochs.keys()
        for member in tuple(self.members):
            try:
                member.listed(fresh, gone)
            except Exception:
                # A bug in one stream must not keep topics from the others.
                _log.exception("prefix_feed_failed")


class PrefixFeeds:
    """The running feeds, by prefix and the prefixes of the key. `nursery` runs them."""

    def __init__(self, shards: Shards, limits: Limits) -> None:
        self.shards = shards
        self.limits = limits
        self.nursery: trio.Nursery | None = None
        self._feeds: dict[tuple[str, tuple[str, ...]], PrefixFeed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def join(self, prefix: str, prefixes: tuple[str, ...], member: Member) -> PrefixFeed:
        """Join the feed of a prefix, making it if needed."""
        feed = self._feeds.get((prefix, prefixes))
        if feed is None:
            assert self.nursery is not None
            feed = self._feeds[prefix, prefixes] = PrefixFeed(self, prefix, prefixes)
            self.nursery.start_soon(feed.run)
        feed.members[member] = None
        return feed

    def leave(self, feed: PrefixFeed, member: Member) -> None:
        """Leave a feed; the last member ends it."""
        feed.members.pop(member, None)
        if not feed.members and self._feeds.get(feed.key) is feed:
            del self._feeds[feed.key]
            feed.scope.cancel()

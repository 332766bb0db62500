"""The running feeds of prefixes, and what they ask the shards.

    shard ─ changed names ─► feeds whose prefixes the names begin with ─ pending ─► their members, in turns

One request for changes is parked in each shard, for all feeds. A changed name is looked up by each of its beginnings.
So a change costs nothing for prefixes that it does not begin with, and never a list. If the shard has forgotten the
version that the gateway knows, or is another process, every feed asks for its list again. A shard that is away changes
nothing: the list that it had holds until it gives another one.

**Turns.** A new name waits for a turn of its member; there is one each `TURN_S`, and others run between two. A
turn serves a few names of one member after the other, of each key in turn, until `SHARE` is spent. So a key with many
members delays its own members. A name that changes meanwhile is handed once, as it is then. Lists are asked for one
after the other, of each key in turn, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import trio

from gateway.shards.client import Shards
from gateway.streams.name_list import asked
from gateway.streams.prefix_feed import Member, PrefixFeed
from gateway.streams.topic_feed import FIRST_RETRY_S, LAST_RETRY_S
from gateway.streams.turns import Turns
from proto.ipc.operations import ChangedNames, NameChanges, Operation, WatchNames
from proto.model.errors import TopicsError
from proto.model.limits import Limits
from proto.process import trace
from proto.process.faults import faults

GATHER_S = 0.02
"""The pause between two requests for changes, so that topics made at the same time come together."""
TURN_S = 0.02
SHARE = 320
"""The greatest cost of a turn. A member costs 1, and each name that it looks at."""
JOINED = 20
"""Cost of a topic that a member begins to watch: a read and two frames."""
NAMES = SHARE // JOINED
"""Names that a member is handed at a time."""

A = TypeVar("A")


class PrefixFeeds:
    """The feeds with members. `nursery` runs what serves them."""

    def __init__(self, shards: Shards, limits: Limits) -> None:
        self.shards = shards
        self.limits = limits
        self.nursery: trio.Nursery | None = None
        self.touched = 0
        """How often a changed name concerned a feed, since the start."""
        count = len(shards.states)
        self._feeds: dict[str, dict[tuple[str, ...], PrefixFeed]] = {}
        """By prefix, and the prefixes of the key."""
        self._longest = 0
        """Characters of the longest prefix."""
        self._scope = trio.CancelScope()
        self._versions: list[int | None] = [None] * count
        self._losses = [0] * count
        """How often each shard did not know the version that it was asked for."""
        self._followed = [trio.Event() for _ in range(count)]
        self._unlisted: list[Turns[PrefixFeed]] = [Turns() for _ in range(count)]
        self._turns: Turns[tuple[PrefixFeed, Member]] = Turns()

    def __len__(self) -> int:
        return sum(map(len, self._feeds.values()))

    def join(self, prefix: str, member: Member) -> PrefixFeed:
        """Join the feed of a prefix, making it if needed."""
        key = member.key
        if not self._feeds:
            assert self.nursery is not None
            self._scope = trio.CancelScope()
            self.nursery.start_soon(self._run, self._scope)
        same = self._feeds.setdefault(prefix, {})
        feed = same.get(key.prefixes)
        if feed is None:
            count, most = len(self._versions), self.limits.max_watch_topics
            feed = same[key.prefixes] = PrefixFeed(prefix, key, count, most, self.shards.index_of)
            self._longest = max(self._longest, len(prefix))
            for unlisted in self._unlisted:
                unlisted.add(feed.digest, feed)
        feed.members[member] = {}
        return feed

    def leave(self, feed: PrefixFeed, member: Member) -> None:
        """Leave a feed; the last member ends it."""
        feed.members.pop(member, None)
        self._turns.remove(member.key.digest, (feed, member))
        same = self._feeds.get(feed.prefix, {})
        if feed.members or same.get(feed.prefixes) is not feed:
            return
        del same[feed.prefixes]
        if not same:
            del self._feeds[feed.prefix]
        for unlisted in self._unlisted:
            unlisted.remove(feed.digest, feed)
        if not self._feeds:
            self._longest = 0
            self._scope.cancel()

    async def _run(self, scope: trio.CancelScope) -> None:
        trace.begin("")  # it serves all streams, so it must not carry the trace of the first one's request
        count = len(self._versions)
        self._versions = [None] * count
        self._followed = [trio.Event() for _ in range(count)]
        with scope:
            async with trio.open_nursery() as nursery:
                for index in range(count):
                    nursery.start_soon(self._follow, index)
                    nursery.start_soon(self._list, index)
                while True:
                    await self._turns.some()
                    self.hand()
                    await trio.sleep(TURN_S)

    async def _ask(self, index: int, operation: Operation[A]) -> A:
        """Ask a shard until it answers."""
        retry_s = FIRST_RETRY_S
        while True:
            try:
                pending = self.shards.ask(index, operation)
                try:
                    return (await pending.reply()).found()
                finally:
                    pending.abandon()
            except TopicsError:
                await trio.sleep(retry_s)
                retry_s = min(2 * retry_s, LAST_RETRY_S)

    async def _follow(self, index: int) -> None:
        while True:
            self.changed(index, await self._ask(index, NameChanges(self._versions[index])))
            await trio.sleep(GATHER_S)

    async def _list(self, index: int) -> None:
        unlisted = self._unlisted[index]
        most = asked(self.limits.max_watch_topics)
        while True:
            await unlisted.some()
            await self._followed[index].wait()
            feed = unlisted.take()
            if feed is None:
                continue
            losses = self._losses[index]
            feed.asked(index)
            found = await self._ask(index, WatchNames(feed.prefix, feed.prefixes, most))
            if losses == self._losses[index]:  # else the feed waits for its list again
                feed.listed(index, found)
                self._wait(feed)

    def changed(self, index: int, found: ChangedNames) -> None:
        """Take in the changes of a shard."""
        self._versions[index] = found.version
        self._followed[index].set()
        if not found.known:
            self._losses[index] += 1
            for same in self._feeds.values():
                for feed in same.values():
                    self._unlisted[index].add(feed.digest, feed)
            return
        touched: dict[PrefixFeed, None] = {}
        for name, epoch in found.epochs.items():
            for feed in self._concerned(name):
                self.touched += 1
                if feed.change(index, name, epoch, found.version):
                    touched[feed] = None
        for feed in touched:
            self._wait(feed)
            if feed.short(index):
                self._unlisted[index].add(feed.digest, feed)

    def _concerned(self, name: str) -> Iterator[PrefixFeed]:
        for size in range(min(len(name), self._longest) + 1):
            yield from self._feeds.get(name[:size], {}).values()

    def _wait(self, feed: PrefixFeed) -> None:
        """Let the members of a feed wait for their turns."""
        for member in feed.members:
            self._turns.add(member.key.digest, (feed, member))

    def hand(self) -> None:
        """Serve a turn."""
        spent = 0
        while spent < SHARE and (waiting := self._turns.take()) is not None:
            spent += self._tell(*waiting)

    def _tell(self, feed: PrefixFeed, member: Member) -> int:
        """Hand a member the first of what waits for it. Returns what that cost."""
        pending = feed.members.get(member)
        if pending is None:
            return 0  # it has left, and its client had changed its key meanwhile
        names = sorted(pending)
        changes = {name: pending.pop(name) for name in names[:NAMES]}
        if pending:
            self._turns.add(member.key.digest, (feed, member))
        gone = [name for name, epoch in changes.items() if not epoch]
        try:
            joined = member.listed({name: epoch for name, epoch in changes.items() if epoch}, gone)
        except Exception:
            # A bug in one stream must not keep topics from the others.
            faults.failed("prefix_feed")
            joined = 0
        return 1 + len(names) + JOINED * joined

"""The directory: the shard's topics by name and by id, and their total records and bytes.

It has two views. `visible` has the names that readers see. `assigned` has the names as they will be when everything
staged has committed; only writes use it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from proto.model.durability import Durability
from proto.model.errors import topic_not_found
from shardd.topic import name_ranges
from shardd.topic.records import Totals
from shardd.topic.topic import Topic, hold
from shardd.topic.watch_session import Sessions


class Directory:
    def __init__(self) -> None:
        self.assigned: dict[str, Topic] = {}
        self.leaving = 0
        """Number of topics whose deletion is staged."""
        self.visible: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.totals = Totals()
        self.sessions = Sessions()
        self._names: list[str] = []
        self.next_id = 1
        self.id_sum = 0
        """Of the ids of the visible topics, counted as they come and go."""
        self.graveyard: list[Topic] = []
        """Deleted topics whose files may still exist."""
        self.logs: dict[str, int] = {}
        """Rog logs: number of partitions by name."""
        self.renamed: Callable[[str], None] = lambda name: None
        """Called with the name of each topic that becomes visible, or ceases to be."""
        self.jumps = 0
        """How often the clock was set ahead. Until a checkpoint has them, the times that moved are in memory only."""

    def new_id(self) -> int:
        """A new topic id. Ids are in the log, so none is used twice, also across restarts. A topic's first id is also
        its epoch."""
        ident = self.next_id
        self.next_id += 1
        return ident

    def used_id(self, ident: int) -> None:
        self.next_id = max(self.next_id, ident + 1)

    def recovered(self, now_ms: int, boot_id: str | None) -> None:
        """Called when everything is read back: ends what a restart ends, and makes the topics writable. With `boot_id`
        None, the shard was not restarted: it continues elsewhere."""
        for topic in self.visible.values():
            if topic.unloaded is not None:
                continue
            if topic.deferred:
                hold(topic)
            elif topic.lane is None or topic.lane.settled:
                self.complete(topic, now_ms, boot_id)
            topic.position.on_device(topic.records.head_seq)
        self.sessions.woken(now_ms)
        self.assigned = dict(self.visible)
        self.totals.written = 0

    def complete(self, topic: Topic, now_ms: int, boot_id: str | None) -> bool:
        """Called when a topic's frames are all read back. Returns True if seqs were given up that lost records may have
        had."""
        head = topic.records.head_seq
        if boot_id is None:
            pass
        elif not topic.config.durability.lasts:
            topic.lose_tail(topic.position.ceiling)
            topic.position.logged_upto(topic.records.head_seq)
        elif topic.config.durability.reserves_per_boot and topic.position.reserved_in not in ("", boot_id):
            topic.skip(topic.position.ceiling + 1)
        topic.position.used(topic.records.head_seq)
        topic.position.on_device(topic.records.head_seq)
        if topic.queue is not None:
            topic.queue.settle(topic.records.floor, -1, topic.records.alive)  # rows may be older than deletions
            rows_at = topic.queue.rows_at
            if rows_at > now_ms:
                topic.queue.ahead = rows_at, rows_at - now_ms
                topic.queue.set_back(rows_at, rows_at - now_ms, now_ms)
        topic.position.clock_set(now_ms)
        self.expire_topic(topic, now_ms)
        return topic.records.head_seq > head

    def show(self, topic: Topic) -> None:
        self.visible[topic.name] = topic
        self.by_id[topic.id] = topic
        self.id_sum += topic.id
        topic.records.count_in(self.totals)
        insort(self._names, topic.name)
        self.renamed(topic.name)

    def hide(self, topic: Topic) -> None:
        del self.visible[topic.name]
        del self.by_id[topic.id]
        self.id_sum -= topic.id
        at = bisect_left(self._names, topic.name)
        assert self._names[at] == topic.name
        del self._names[at]
        self.renamed(topic.name)
        topic.records.count_in(Totals())
        self.graveyard.append(topic)

    def replace(self, topic: Topic, other: Topic) -> None:
        """Replace the object of a topic by another one."""
        self.hide(topic)
        self.graveyard.remove(topic)
        self.show(other)
        if self.assigned.get(topic.name) is topic:
            self.assigned[topic.name] = other

    def find(self, name: str) -> Topic:
        """The visible topic. Raises `404 topic_not_found`."""
        topic = self.visible.get(name)
        if topic is None:
            raise topic_not_found(name)
        return topic

    def changing(self, name: str) -> Topic:
        """The topic as `find` gives it, for a change. Raises `404 topic_not_found` also while a deletion is staged: no
        frame of the topic may follow its deletion in the log."""
        topic = self.find(name)
        if self.assigned.get(name) is not topic:
            raise topic_not_found(name)
        return topic

    def page(self, prefix: str, after: str, size: int, prefixes: Sequence[str] = ()) -> tuple[list[Topic], bool]:
        """Up to `size` topics in order of names, and whether there are more. Names follow `after` and begin with
        `prefix`; if `prefixes` is not empty, they also begin with one of those."""
        return self.range_of(name_ranges.distinct(prefix, prefixes), size, after)

    def range_of(self, prefixes: Sequence[str], size: int, after: str = "") -> tuple[list[Topic], bool]:
        """As `page`, for the result of `name_ranges.distinct`."""
        names, more = name_ranges.page(self._names, prefixes, after, size)
        return [self.visible[name] for name in names], more

    def onwards(self, prefix: str, first: str, prefixes: Sequence[str] = ()) -> Iterator[Topic]:
        """The topics that `page` gives after `first`, and before them `first`, if its name begins so too."""
        ranges = name_ranges.distinct(prefix, prefixes)
        if first in self.visible and first.startswith(tuple(ranges)):
            yield self.visible[first]
        yield from map(self.visible.__getitem__, name_ranges.page(self._names, ranges, first, len(self._names))[0])

    def counters(self) -> tuple[int, int, int]:
        """Number of topics, live records and live bytes."""
        return len(self.visible), self.totals.records, self.totals.bytes

    def by_class(self) -> dict[str, int]:
        counts = Counter(topic.config.durability for topic in self.visible.values())
        return {durability.value: counts[durability] for durability in Durability}

    def expire(self, now_ms: int) -> None:
        """Expire records older than their topic's TTL, and keys older than its idempotency window, in all topics."""
        for topic in self.visible.values():
            if topic.config.ttl_ms or topic.keys:
                self.expire_topic(topic, now_ms)

    def jumped(self, ms: int) -> None:
        """The clock was set ahead by `ms`. Moves leases, delays, keys and sessions with it, so that they last as long
        as before."""
        for topic in self.visible.values():
            topic.keys.shift(topic.position.clock_jumped(ms))
            topic.catalogued = None
            if topic.queue is not None:
                topic.queue.shift(ms)
        self.sessions.shift(ms)
        self.jumps += 1

    def expire_topic(self, topic: Topic, now_ms: int) -> None:
        topic.expire(now_ms)
        if topic.keys:
            topic.keys.expire(now_ms + topic.position.ahead_ms - topic.config.idempotency_window_ms)

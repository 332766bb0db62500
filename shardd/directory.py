"""The shard's topics by name and by id, and what they hold together.

Two views: `assigned` is what the names will be once everything staged has committed, and only writes look at it;
`visible` is what readers see.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter

from proto.errors import topic_not_found
from proto.frame import Buffer, Columns
from shardd.config import CLASSES
from shardd.topic import Topic


class Directory:
    def __init__(self) -> None:
        self.assigned: dict[str, Topic] = {}
        self.visible: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.records = 0
        self.bytes = 0
        self._names: list[str] = []
        self._next_id = 1

    def new_id(self) -> int:
        """Ids are never used twice, also across restarts: they are in the log. The first one doubles as epoch."""
        ident = self._next_id
        self._next_id += 1
        return ident

    def used_id(self, ident: int) -> None:
        self._next_id = max(self._next_id, ident + 1)

    def show(self, topic: Topic) -> None:
        self.visible[topic.name] = topic
        self.by_id[topic.id] = topic
        insort(self._names, topic.name)

    def hide(self, topic: Topic) -> None:
        del self.visible[topic.name]
        del self.by_id[topic.id]
        del self._names[bisect_left(self._names, topic.name)]
        self.records -= topic.records
        self.bytes -= topic.bytes

    def add(self, topic: Topic, buffer: Buffer, first_seq: int, columns: Columns) -> None:
        """Make a batch visible."""
        batch = topic.add(buffer, first_seq, columns)
        self.records += batch.count
        self.bytes += batch.size

    def find(self, name: str) -> Topic:
        """The visible topic, or `404 topic_not_found`."""
        topic = self.visible.get(name)
        if topic is None:
            raise topic_not_found(name)
        return topic

    def page(self, prefix: str, after: str, size: int) -> tuple[list[Topic], bool]:
        """Up to `size` topics with the prefix whose names follow `after`, in order; and whether there are more."""
        start = max(bisect_left(self._names, prefix), bisect_right(self._names, after))
        names = self._names[start : start + size + 1]
        if prefix:
            names = [name for name in names if name.startswith(prefix)]
        return [self.visible[name] for name in names[:size]], len(names) > size

    def counters(self) -> tuple[int, int, int]:
        """Topics, live records, live bytes."""
        return len(self.visible), self.records, self.bytes

    def by_class(self) -> dict[str, int]:
        counts = Counter(topic.config.durability for topic in self.visible.values())
        return {name: counts.get(name, 0) for name in CLASSES}

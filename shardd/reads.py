"""Diff requests: answered at once, or parked until there is something to answer with.

asked ──► answered                    records, a tombstone, or nothing and `wait_ms` 0
  │
  └────► parked ──► answered          records came, or the time is up
              ├───► 404               the topic was deleted
              └───► dropped           the caller went away
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from itertools import count

import msgspec

from proto.errors import topic_not_found
from proto.limits import Limits
from proto.message import Message, Parked, Reply, Request
from shardd.clock import Clock
from shardd.cursors import cursor_not_found
from shardd.diff import Answer, Read, answer, parse_diff
from shardd.topic import Topic

Respond = Callable[[Message], None]


class _Waiting:
    """A parked read. `topic` is None once it is over; its entry in the heap of deadlines may outlive it."""

    __slots__ = ("ident", "key", "read", "respond", "topic")

    def __init__(self, topic: Topic, read: Read, key: Hashable, ident: int, respond: Respond) -> None:
        self.topic: Topic | None = topic
        self.read = read
        self.key = key
        self.ident = ident
        self.respond = respond


class Reads:
    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._clock = clock
        self._limits = limits
        self._parked: dict[Hashable, _Waiting] = {}
        self._by_topic: dict[int, dict[Hashable, _Waiting]] = {}
        self._deadlines: list[tuple[float, int, _Waiting]] = []
        self._order = count()
        self._grown: dict[int, Topic] = {}

    def __len__(self) -> int:
        """Parked reads."""
        return len(self._parked)

    @property
    def next_deadline(self) -> float | None:
        """When `expire` next has something to do, in monotonic seconds."""
        return self._deadlines[0][0] if self._deadlines else None

    def diff(self, topic: Topic, request: Request, caller: Hashable, respond: Respond) -> None:
        """Answer a diff, or park it. `caller` names the peer."""
        read = parse_diff(request.body, self._limits)
        now = self._clock.now_ms()
        if read.cursor is not None:
            cursor = topic.cursors.get(read.cursor)
            if cursor is None:
                raise cursor_not_found(topic.name, read.cursor)
            read = msgspec.structs.replace(read, from_seq=cursor.seq)
        topic.last_read_ts = now
        topic.expire(now)
        found = answer(topic, read)
        if not found.empty or not read.wait_ms or found.next_from_seq < topic.head_seq:
            respond(_reply(request.id, found))
            return
        key = (caller, request.id)
        read = msgspec.structs.replace(read, from_seq=found.next_from_seq)
        waiting = _Waiting(topic, read, key, request.id, respond)
        self._parked[key] = waiting
        self._by_topic.setdefault(topic.id, {})[key] = waiting
        deadline = self._clock.monotonic() + read.wait_ms / 1000
        heappush(self._deadlines, (deadline, next(self._order), waiting))
        respond(Parked(request.id))

    def grown(self, topic: Topic) -> None:
        """Records became visible. Whoever waits for them is served by the next `wake`."""
        if topic.id in self._by_topic:
            self._grown[topic.id] = topic

    def wake(self) -> None:
        if not self._grown:
            return
        grown, self._grown = self._grown, {}
        for topic in grown.values():
            topic.expire(self._clock.now_ms())
            # Those who ask for the same get the same bytes: rendered once, however many wait.
            rendered: dict[Read, Answer] = {}
            for waiting in list(self._by_topic.get(topic.id, {}).values()):
                read = waiting.read
                found = rendered.get(read)
                if found is None:
                    found = rendered[read] = answer(topic, read)
                if found.empty and found.next_from_seq == topic.head_seq:
                    waiting.read = msgspec.structs.replace(read, from_seq=found.next_from_seq)
                else:
                    self._over(waiting)
                    waiting.respond(_reply(waiting.ident, found))

    def expire(self) -> None:
        """Answer the parked reads whose time is up with what there is."""
        now = self._clock.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            waiting = heappop(self._deadlines)[2]
            topic = waiting.topic
            if topic is not None:
                self._over(waiting)
                topic.expire(self._clock.now_ms())
                waiting.respond(_reply(waiting.ident, answer(topic, waiting.read)))

    def topic_deleted(self, topic: Topic) -> None:
        for waiting in list(self._by_topic.get(topic.id, {}).values()):
            self._over(waiting)
            waiting.respond(Reply(waiting.ident, error=topic_not_found(topic.name)))

    def cancel(self, caller: Hashable, ident: int) -> None:
        """The caller went away. Nothing if the read is not parked (any more)."""
        waiting = self._parked.get((caller, ident))
        if waiting is not None:
            self._over(waiting)

    def _over(self, waiting: _Waiting) -> None:
        topic, waiting.topic = waiting.topic, None
        assert topic is not None
        del self._parked[waiting.key]
        of_topic = self._by_topic[topic.id]
        del of_topic[waiting.key]
        if not of_topic:
            del self._by_topic[topic.id]
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * len(self._parked):
            # Most deadlines are of reads that are over: drop them, or cancelled long polls would pile up.
            self._deadlines = sorted(entry for entry in self._deadlines if entry[2].topic is not None)


def _reply(ident: int, found: Answer) -> Reply:
    return Reply(ident, found.body, performance={"records_scanned": found.scanned})

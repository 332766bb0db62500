"""Parked reads: diffs and reads of streams, answered at once or parked until records come.

asked ──► answered                    records, a tombstone, or nothing and `wait_ms` 0
  │
  └────► parked ──► answered          records came, or `wait_ms` has passed
              ├───► 404               the topic was deleted
              ├───► 429               a stream's read, while pressure holds the topic; the stream tells its client
              └───► dropped           the caller disconnected

`shardd.delivery.scheduler` decides which topic's readers are answered first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from itertools import count

import msgspec
from msgspec import Struct

from proto.ipc.message import Message, Parked, Reply, Request
from proto.ipc.operations import Diff, Feed
from proto.model.errors import TopicsError
from proto.model.limits import MAX_WAIT_MS, Limits
from proto.process.faults import faults
from shardd.clock import Clock
from shardd.delivery.diff import Answer, Read, answer, parse_diff
from shardd.delivery.scheduler import Scheduler
from shardd.delivery.stream_reads import stream_answer
from shardd.delivery.strong_reads import Unsynced
from shardd.storage.errors import SegmentError, damaged
from shardd.storage.indivisible import indivisible
from shardd.topic.cursors import check_name, cursor_not_found
from shardd.topic.topic import Topic

Respond = Callable[[Message], None]
AnyRead = Read | Feed
FULL_RETRY_S = 0.5
_Key = tuple[Hashable, int]


class _Waiting(Struct, eq=False):
    """A parked read. `topic` is None once the read is over; its entry may stay in the heap of deadlines."""

    topic: Topic | None
    read: AnyRead
    key: _Key
    respond: Respond
    since: float


class Reads:
    def __init__(
        self, clock: Clock, limits: Limits, scheduler: Scheduler, unsynced: Unsynced, urge: Callable[[], None]
    ) -> None:
        """`urge` is called when a strong read waits for the sync of records that are visible."""
        self._clock = clock
        self._urge = urge
        self._unsynced = unsynced
        self._ahead: dict[int, Topic] = {}
        """Topics whose visible records a strong read could not return yet, because no sync covers them."""
        self._limits = limits
        self._parked: dict[Hashable, _Waiting] = {}
        self._by_topic: dict[int, dict[Hashable, _Waiting]] = {}
        self._deadlines: list[tuple[float, int, _Waiting]] = []
        self.full: Callable[[Hashable], bool] = lambda caller: False
        """Whether a caller's unread replies fill its window. Its reads stay parked until `window_free`."""
        self._order = count()
        self._scheduler = scheduler

    def __len__(self) -> int:
        """Number of parked reads."""
        return len(self._parked)

    @property
    def next_deadline(self) -> float | None:
        """When `expire` next has work, in monotonic seconds; None without parked reads."""
        return self._deadlines[0][0] if self._deadlines else None

    def diff(self, topic: Topic, request: Request[Diff], caller: Hashable, respond: Respond) -> None:
        """Answers a diff, or parks it. `caller` names the peer. Raises `400` for a cursor name that cannot exist, and
        `404` for an unknown cursor."""
        read = parse_diff(request, self._limits)
        if read.cursor is not None:
            cursor = topic.cursors.get(check_name(read.cursor))
            if cursor is None:
                raise cursor_not_found(topic.name, read.cursor)
            read = msgspec.structs.replace(read, from_seq=cursor.seq)
        self._take(topic, read, request, caller, respond, touch=True)

    def feed(self, topic: Topic, request: Request[Feed], caller: Hashable, respond: Respond) -> None:
        """Answers or parks a read of `shardd.delivery.stream_reads`. Raises `429` if pressure holds the topic."""
        read = request.options
        if self._scheduler.holds(topic) and read.from_seq < topic.records.head_seq:
            raise self._scheduler.pressure.throttled()
        self._take(topic, read, request, caller, respond, touch=read.touch)

    def _take(
        self, topic: Topic, read: AnyRead, request: Request, caller: Hashable, respond: Respond, *, touch: bool
    ) -> None:
        now = self._clock.now_ms()
        topic.expire(now)
        found = self._answer(topic, read)
        if touch or not found.empty:
            topic.last_read_ts = now
        if not found.empty or not read.wait_ms or found.next_from_seq < found.head:
            respond(_reply(request.id, found))
            return
        key = (caller, request.id)
        read = _further(read, found)
        since = self._clock.monotonic()
        waiting = _Waiting(topic, read, key, respond, since)
        with indivisible:
            self._parked[key] = waiting
            of_topic = self._by_topic.get(topic.id)
            if of_topic is None:
                of_topic = self._by_topic[topic.id] = {}
                self._scheduler.attach(topic, self._serve)
            of_topic[key] = waiting
            heappush(self._deadlines, (since + min(read.wait_ms, MAX_WAIT_MS) / 1000, next(self._order), waiting))
        if self._deadlines[0][2] is waiting:
            self._scheduler.more()
        respond(Parked(request.id))

    def _answer(self, topic: Topic, read: AnyRead) -> Answer:
        if not isinstance(read, Feed):
            return answer(topic, read)
        head = topic.records.head_seq
        if read.strong:
            head = self._unsynced.head(topic)
            if head < topic.records.head_seq:
                self._ahead[topic.id] = topic
                self._urge()
        return stream_answer(topic, read, head)

    def synced(self) -> None:
        """Schedules the topics whose strong reads waited for a sync; one has just ended."""
        ahead, self._ahead = self._ahead, {}
        for topic in ahead.values():
            self._scheduler.ready(topic)

    def _serve(self, topic: Topic, since: float) -> int:
        """Answers the topic's parked reads that have something to return. Returns the number of rendered answers."""
        now = self._clock.now_ms()
        topic.expire(now)
        # Equal reads share one rendered answer, so the cost does not grow with the number of readers.
        rendered: dict[AnyRead, Answer | TopicsError] = {}
        for waiting in list(self._by_topic[topic.id].values()):
            if self.full(waiting.key[0]):
                continue
            read = waiting.read
            found = rendered.get(read)
            if found is None:
                found = rendered[read] = self._look(topic, read)
            if isinstance(found, Answer) and found.empty and found.next_from_seq >= found.head:
                waiting.read = _further(read, found)
            else:
                topic.last_read_ts = now
                self._over(waiting)
                waiting.respond(_reply(waiting.key[1], found, self._clock.monotonic() - max(since, waiting.since)))
        return len(rendered)

    def refuse_held(self) -> None:
        """Refuses the streams' reads of held topics with `429`. The streams tell their clients and ask again later.
        Diffs stay parked until their `wait_ms` has passed."""
        for topic in self._scheduler.held_topics():
            for waiting in list(self._by_topic.get(topic.id, {}).values()):
                if isinstance(waiting.read, Feed):
                    self._over(waiting)
                    waiting.respond(Reply(waiting.key[1], error=self._scheduler.pressure.throttled()))

    def expire(self) -> None:
        """Answers the parked reads whose `wait_ms` has passed, even without records. A full caller's read waits on."""
        now = self._clock.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            waiting = heappop(self._deadlines)[2]
            topic = waiting.topic
            if topic is not None and self.full(waiting.key[0]):
                heappush(self._deadlines, (now + FULL_RETRY_S, next(self._order), waiting))
            elif topic is not None:
                throttled = min(self._scheduler.waited(topic), now - waiting.since)
                self._over(waiting)
                topic.expire(self._clock.now_ms())
                waiting.respond(_reply(waiting.key[1], self._look(topic, waiting.read), throttled))

    def window_free(self, caller: Hashable) -> None:
        """Schedules the topics of the caller's parked reads: the caller is no longer full."""
        for topic in {waiting.topic.id: waiting.topic for waiting in self._of(caller) if waiting.topic}.values():
            self._scheduler.ready(topic)

    def _of(self, caller: Hashable) -> list[_Waiting]:
        return [waiting for waiting in self._parked.values() if waiting.key[0] == caller]

    def refuse(self, topic: Topic, error: TopicsError) -> None:
        """Answers all parked reads of the topic with `error`."""
        for waiting in list(self._by_topic.get(topic.id, {}).values()):
            self._over(waiting)
            waiting.respond(Reply(waiting.key[1], error=error))

    def _look(self, topic: Topic, read: AnyRead) -> Answer | TopicsError:
        """The read's answer, or its error: a damaged file concerns only the reads that need this file, and a fault only
        the reads that are equal to this one."""
        try:
            return self._answer(topic, read)
        except SegmentError as error:
            return damaged(error)
        except Exception:
            if indivisible.broken:
                raise
            return faults.failed("feed" if isinstance(read, Feed) else "diff")

    def cancel(self, caller: Hashable, ident: int) -> None:
        """Drops a parked read whose caller disconnected. Does nothing if the read is not parked."""
        waiting = self._parked.get((caller, ident))
        if waiting is not None:
            self._over(waiting)

    def forget(self, caller: Hashable) -> None:
        """Drops the parked reads of a caller that is gone."""
        for waiting in self._of(caller):
            self._over(waiting)

    def _over(self, waiting: _Waiting) -> None:
        with indivisible:
            topic, waiting.topic = waiting.topic, None
            assert topic is not None
            del self._parked[waiting.key]
            of_topic = self._by_topic[topic.id]
            del of_topic[waiting.key]
            if not of_topic:
                del self._by_topic[topic.id]
                self._scheduler.detach(topic, self._serve)
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * len(self._parked):
            # Most deadlines belong to reads that are over. Without this, cancelled long polls would pile up.
            self._deadlines = sorted(entry for entry in self._deadlines if entry[2].topic is not None)


def _further(read: AnyRead, found: Answer) -> AnyRead:
    """The read that continues where `found` ended."""
    if isinstance(read, Feed):
        assert found.extra is not None
        return msgspec.structs.replace(read, from_seq=found.next_from_seq, epoch=found.extra.epoch)
    return msgspec.structs.replace(read, from_seq=found.next_from_seq)


def _reply(ident: int, found: Answer | TopicsError, throttled_s: float = 0.0) -> Reply:
    """The reply for an answer or an error. `throttled_s` is how long the answer waited for the topic's turn."""
    figures = {"throttle_wait_ms": round(throttled_s * 1000, 3)}
    if isinstance(found, TopicsError):
        return Reply(ident, performance=figures, error=found)
    return Reply(ident, found.body, performance={"records_scanned": found.scanned, **figures}, extra=found.extra)

"""Tag indexing: builds a large tag index a few batches at a time, as work of the scheduler, so that it blocks nothing.

A topic's first deletion by tag needs the tags of all records, which takes a second for five million. The first deletion
by a prefix needs the tags sorted. Such a deletion waits until the index is ready, with the topic's later ones behind
it, while the shard serves other requests. The index is not on disk. If the process dies, the waiting deletion was
neither answered nor carried out. A damaged frame is found before anything is logged.
"""

from __future__ import annotations

from collections.abc import Callable

from proto.model.errors import TopicsError, topic_not_found
from proto.process.faults import faults
from shardd.delivery.scheduler import Scheduler
from shardd.storage.errors import SegmentError, damaged
from shardd.topic.directory import Directory
from shardd.topic.tag_index import Match
from shardd.topic.topic import Topic

AT_ONCE = 16_384
"""Up to this many records are indexed, or tags sorted, at once: about 3 ms."""
STEP = 8
"""Batches per step, of about a thousand records each."""

Waiting = tuple[str, Callable[[], None], Callable[[TopicsError], None]]
"""The kind of match, and the callbacks for when the index is ready for it, or has failed."""


class Indexing:
    def __init__(self, directory: Directory, scheduler: Scheduler) -> None:
        self._directory = directory
        self._scheduler = scheduler
        self._waiting: dict[int, list[Waiting]] = {}

    def after(
        self, topic: Topic, match: Match, then: Callable[[], None], failed: Callable[[TopicsError], None]
    ) -> bool:
        """Calls `then` when the tag index covers the topic. Returns whether that was at once; if not, `failed` may be
        called instead. Raises `SegmentError`."""
        op, _ = match
        if topic.id not in self._waiting:
            if topic.records.unindexed(op) <= AT_ONCE:
                topic.records.index()
                then()
                return True
            self._waiting[topic.id] = []
            self._scheduler.attach(topic, self._step)
            self._scheduler.ready(topic)
        self._waiting[topic.id].append((op, then, failed))
        return False

    def _step(self, topic: Topic, since: float) -> int:
        """Indexes one step for the first waiting deletion, then runs in order the deletions whose index is ready."""
        waiting = self._waiting[topic.id]
        error = self._go_on(topic, waiting[0][0])
        while waiting and (error is not None or not topic.records.unindexed(waiting[0][0])):
            _, then, failed = waiting.pop(0)
            if error is None:
                then()
            else:
                failed(error)
        if waiting:
            self._scheduler.ready(topic)
        else:
            del self._waiting[topic.id]
            self._scheduler.detach(topic, self._step)
        return STEP

    def _go_on(self, topic: Topic, op: str) -> TopicsError | None:
        if self._directory.assigned.get(topic.name) is not topic:  # deleted, or its deletion is staged
            return topic_not_found(topic.name)
        try:
            topic.records.index(STEP if topic.records.unindexed(op) > AT_ONCE else None, op)
        except SegmentError as error:
            return damaged(error)
        except Exception:
            return faults.failed("delete_records")
        return None

"""Making a large tag index without keeping everybody waiting: a few batches at a time, as the scheduler's work.

The first deletion by tag of a topic needs the tags of all its records, which takes a second for five million. So it
waits until the index is there, others of the same topic behind it, and the shard goes on meanwhile. So does the first
deletion by a prefix, which needs the tags sorted. Nothing of this is on disk: if the process dies, the deletion was
never answered and has not happened. A frame that is damaged is found before anything is logged.
"""

from __future__ import annotations

from collections.abc import Callable

from proto.model.errors import TopicsError, topic_not_found
from shardd.delivery.scheduler import Scheduler
from shardd.storage.errors import SegmentError, damaged
from shardd.topic.directory import Directory
from shardd.topic.tag_index import Match
from shardd.topic.topic import Topic

AT_ONCE = 16_384
"""So many records are indexed, or tags sorted, on the spot: about 3 ms."""
STEP = 8
"""Batches of about a thousand records."""

Waiting = tuple[str, Callable[[], None], Callable[[TopicsError], None]]
"""The kind of match, and what to do when the index is made for it, or cannot be."""


class Indexing:
    def __init__(self, directory: Directory, scheduler: Scheduler) -> None:
        self._directory = directory
        self._scheduler = scheduler
        self._waiting: dict[int, list[Waiting]] = {}

    def after(
        self, topic: Topic, match: Match, then: Callable[[], None], failed: Callable[[TopicsError], None]
    ) -> bool:
        """Call `then` when the tag index has all of the topic; returns whether that was at once. If not, `failed` may
        be called instead. Raises `SegmentError`."""
        op, _ = match
        if topic.id not in self._waiting:
            if topic.unindexed(op) <= AT_ONCE:
                topic.index()
                then()
                return True
            self._waiting[topic.id] = []
            self._scheduler.attach(topic, self._step)
            self._scheduler.ready(topic)
        self._waiting[topic.id].append((op, then, failed))
        return False

    def _step(self, topic: Topic, since: float) -> int:
        """A little more for the first who waits; then whoever needs no more has his turn, in order."""
        waiting = self._waiting[topic.id]
        error = self._go_on(topic, waiting[0][0])
        while waiting and (error is not None or not topic.unindexed(waiting[0][0])):
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
        if self._directory.assigned.get(topic.name) is not topic:  # deleted, or about to be
            return topic_not_found(topic.name)
        try:
            topic.index(STEP if topic.unindexed(op) > AT_ONCE else None, op)
        except SegmentError as error:
            return damaged(error)
        return None

"""Making a large tag index without keeping everybody waiting: a few batches at a time, as the scheduler's work.

The first deletion by tag of a topic needs the tags of all its records, which takes a second for five million. So it
waits until the index is there, others of the same topic behind it, and the shard goes on meanwhile. Nothing of this is
on disk: if the process dies, the deletion was never answered and has not happened. A frame that is damaged is found
before anything is logged.
"""

from __future__ import annotations

from collections.abc import Callable

from proto.errors import TopicsError, topic_not_found
from shardd.directory import Directory
from shardd.scheduler import Scheduler
from shardd.segment import SegmentError, damaged
from shardd.topic import Topic

AT_ONCE = 16_384
"""So many records are indexed on the spot: about 3 ms."""
STEP = 8
"""Batches of about a thousand records."""

Waiting = tuple[Callable[[], None], Callable[[TopicsError], None]]


class Indexing:
    def __init__(self, directory: Directory, scheduler: Scheduler) -> None:
        self._directory = directory
        self._scheduler = scheduler
        self._waiting: dict[int, list[Waiting]] = {}

    def after(self, topic: Topic, then: Callable[[], None], failed: Callable[[TopicsError], None]) -> bool:
        """Call `then` when the tag index has all of the topic; returns whether that was at once. If not, `failed` may
        be called instead. Raises `SegmentError`."""
        if topic.id not in self._waiting and topic.unindexed <= AT_ONCE:
            topic.index()
            then()
            return True
        if topic.id not in self._waiting:
            self._waiting[topic.id] = []
            self._scheduler.attach(topic, self._step)
            self._scheduler.ready(topic)
        self._waiting[topic.id].append((then, failed))
        return False

    def _step(self, topic: Topic, since: float) -> int:
        error = None
        if self._directory.assigned.get(topic.name) is not topic:  # deleted, or about to be
            error = topic_not_found(topic.name)
        else:
            try:
                topic.index(STEP)
            except SegmentError as found:
                error = damaged(found)
        if error is None and topic.unindexed:
            self._scheduler.ready(topic)
        else:
            self._scheduler.detach(topic, self._step)
            for then, failed in self._waiting.pop(topic.id):
                if error is None:
                    then()
                else:
                    failed(error)
        return STEP

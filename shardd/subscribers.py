"""Subscribers of topic events: parked reads and streams, routers that copy from the topic, claimers of its jobs."""

from __future__ import annotations

from proto.model.errors import topic_not_found
from shardd.delivery.parked_reads import Reads
from shardd.delivery.scheduler import Scheduler
from shardd.queues.claims import Claims
from shardd.routers.source import Pulls
from shardd.topic.topic import Topic


class Subscribers:
    """See `shardd.changes.transactions.TopicEvents`."""

    claims: Claims
    """Set before any topic changes. Claims are constructed last, because they stage changes themselves."""

    def __init__(self, scheduler: Scheduler, reads: Reads, pulls: Pulls) -> None:
        self._scheduler = scheduler
        self._reads = reads
        self._pulls = pulls

    def written(self, topic: Topic) -> None:
        self._scheduler.ready(topic)
        self._pulls.grown(topic)
        if topic.queue is not None:
            self.claims.changed(topic)

    def copied(self, topic: Topic, head_before: int) -> None:
        self._scheduler.ready(topic)
        if topic.queue is not None:
            self.claims.changed(topic)
        self._pulls.copied(topic, head_before)

    def restored(self, topic: Topic) -> None:
        self._pulls.ready(topic)

    def jobs_changed(self, topic: Topic) -> None:
        self.claims.changed(topic)

    def deleted(self, topic: Topic) -> None:
        self._reads.refuse(topic, topic_not_found(topic.name))
        self.claims.changed(topic)
        self._pulls.topic_deleted(topic)

"""Job deletion: deletes records by their seqs, namely acked jobs and transfers that have arrived at their target.

A deletion is one RECORD_DELETE frame with the `seqs`, as durable as the topic's class. If the process dies before the
frame is written, nothing was deleted and nothing answered. If it dies later, the records are gone, answered or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proto.model.errors import TopicsError
from shardd.changes.transactions import Staging, TopicChange
from shardd.frames import RecordsDeleted
from shardd.storage.change import Timing

Saved = dict[int, tuple[Any, ...] | None]
"""By seq, a job's state before a change (see `Job.saved`); None for a job that was fresh."""


class JobsDeleted(TopicChange, eq=False):
    """The deletion of records by their seqs, which ascend. Jobs among them are DELETING or ARRIVED; `before` is their
    state before that."""

    staging: Staging
    seqs: list[int]
    before: Saved
    done: Callable[[Timing], None]
    """Called when the records are gone."""
    failed: Callable[[TopicsError], None]
    """Called when they stay."""
    dead_lettered: int = 0
    """How many of them have arrived at a dead-letter topic."""
    now: int = 0
    acks_synced: bool = False
    """Whether the answer reports the time of a sync: `disk` promises none."""

    def apply(self, timing: Timing) -> None:
        topic, queue = self.topic, self.topic.queue
        topic.held_at.popleft()
        topic.expire(self.now)
        topic.records.delete_seqs(self.seqs)
        topic.outbox.gone(self.seqs)
        if queue is not None:
            queue.dead_lettered_soon -= self.dead_lettered
            queue.dead_lettered += self.dead_lettered
            for seq in self.seqs:
                queue.drop(seq)
            self.staging.events.jobs_changed(topic)
        self.done(timing if self.acks_synced else Timing(timing.write_ms))

    def undo(self, error: TopicsError) -> None:
        queue = self.topic.queue
        self.topic.held_at.pop()
        if queue is not None:
            queue.dead_lettered_soon -= self.dead_lettered
            for seq, saved in self.before.items():
                queue.undo(seq, saved)
        self.failed(error)
        if queue is not None:
            self.staging.events.jobs_changed(self.topic)  # jobs whose leases had ended are ready again


def remove(change: JobsDeleted) -> None:
    """Stages a deletion. It waits for a sync if it requires one, or if the topic's class does."""
    topic, queue, staging = change.topic, change.topic.queue, change.staging
    durability = topic.assigned_config.durability
    change.now = staging.clock.now_ms()
    topic.held_at.append(change.now)
    if queue is not None:
        queue.dead_lettered_soon += change.dead_lettered
    if durability.logged or topic.records.floor <= topic.position.logged_seq:
        body = RecordsDeleted(None, None, topic.records.head_seq + 1, change.now + topic.position.ahead_ms, change.seqs)
        if change.dead_lettered and queue is not None:
            body.dead_lettered = queue.dead_lettered + queue.dead_lettered_soon
        change.body = body
    change.acks_synced = durability.acks_synced
    change.requires_sync = change.requires_sync or durability.acks_synced
    staging.stage(change)

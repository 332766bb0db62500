"""Job deletion: deletes records by their seqs, namely acked jobs and transfers that have arrived at their target.

A deletion is one RECORD_DELETE frame with the `seqs`, as durable as the topic's class. If the process dies before the
frame is written, nothing was deleted and nothing answered. If it dies later, the records are gone, answered or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proto.format.frame import Kind
from proto.model.errors import TopicsError
from shardd.changes.transactions import Closures, Staging
from shardd.storage.change import Timing
from shardd.topic.topic import Topic

Saved = dict[int, tuple[Any, ...] | None]
"""By seq, a job's state before a change (see `Job.saved`); None for a job that was fresh."""


def remove(
    staging: Staging,
    topic: Topic,
    seqs: list[int],
    before: Saved,
    done: Callable[[Timing], None],
    failed: Callable[[TopicsError], None],
    *,
    dead_lettered: int = 0,
    requires_sync: bool = False,
) -> None:
    """Stages the deletion of records; `seqs` ascend. Calls `done` or `failed` once.

    Jobs among them are DELETING; `before` is their state before that, for undo. `dead_lettered` is added to the queue's
    counter. With `requires_sync`, the deletion waits for a sync in any class."""
    queue = topic.queue
    durability = topic.assigned_config.durability
    now = staging.clock.now_ms()
    topic.held_at.append(now)
    if queue is not None:
        queue.dead_lettered += dead_lettered

    def commit(timing: Timing) -> None:
        topic.held_at.popleft()
        topic.expire(now)
        topic.delete_seqs(seqs)
        topic.outbox.gone(seqs)
        if queue is not None:
            for seq in seqs:
                queue.drop(seq)
            staging.events.jobs_changed(topic)
        # `disk` promises no sync, so an answer does not report the time of one.
        done(timing if durability.acks_synced else Timing(timing.write_ms))

    def undo(error: TopicsError) -> None:
        topic.held_at.pop()
        if queue is not None:
            queue.dead_lettered -= dead_lettered
            for seq, saved in before.items():
                queue.undo(seq, saved)
        failed(error)

    frame = None
    if durability.logged or topic.floor <= topic.logged_seq:
        fields = {"before": None, "match": None, "bound": topic.head_seq + 1, "now": now + topic.ahead_ms, "seqs": seqs}
        if dead_lettered and queue is not None:
            fields["dead_lettered"] = queue.dead_lettered
        frame = staging.control_frame(Kind.RECORD_DELETE, topic.id, fields)
    staging.stage(Closures(topic, frame, commit, undo, requires_sync=requires_sync or durability.acks_synced))

"""Deletion of records by their seqs: jobs that are acked, and whatever has arrived elsewhere.

One RECORD_DELETE frame with the `seqs`, as durable as the topic's class says. If the process dies before the frame is
written, nothing happened and nobody was told; after it, the records are gone whether or not the answer got out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proto.format.frame import Kind
from proto.model.errors import TopicsError
from shardd.changes.transactions import Staging
from shardd.storage.group_commit import Timing
from shardd.topic.topic import Topic

Saved = dict[int, tuple[Any, ...] | None]
"""By seq, what a job was before its state changed (see `Job.saved`); None for one that was fresh."""


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
    """Delete records, ascending seqs. Jobs among them are DELETING, and were what `before` says. `dead_lettered` of
    them are counted as such. `requires_sync`: wait for the device also where the class does not."""
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
        # `disk` promises no sync: that this change had to wait for one is not the client's affair.
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
    staging.stage(topic, frame, requires_sync=requires_sync or durability.acks_synced, commit=commit, undo=undo)

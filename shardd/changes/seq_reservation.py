"""Seq reservation: no seq names two records, even if the first record is lost (class `memory` does not promise this).

Two classes acknowledge records that a stop may lose. `ephemeral` loses them on any stop. `disk` loses them if the
machine stops before the next sync. Topics of these classes reserve seqs ahead in the log. After such a stop, reserved
seqs count as used.

An ephemeral topic logs a *ceiling* and continues after it. A `disk` topic logs the ceiling with the machine's boot id.
The ceiling counts only in another boot: while the machine runs, the kernel keeps all that was written. A checkpoint
drops the reservation of a topic whose frames are all synced; the topic's next write makes a new one.

    process dies     same boot: a `disk` topic continues where its log ends
    machine dies     the topic continues after the ceiling. The next reservation logs the jump (`next_seq`); until
                     then every start computes the same jump
    orderly stop     nothing is reserved any more: no jump, for any class

An ephemeral topic may hold records from a time when it had another class (those up to `Topic.logged_seq`). They are in
log and files, and stay. Ephemeral records after them count towards the caps and evict them. A replay does not see the
ephemeral records, so the eviction is logged (a *floor*), and the evicted records do not come back. Floors are logged
until no such record is left, or until the topic is logged again and a checkpoint holds all of them.
"""

from __future__ import annotations

from typing import Any

from proto.format.frame import Kind
from proto.model.errors import TopicsError
from proto.model.topic_config import TopicConfig
from shardd.changes.transactions import Staging
from shardd.storage.group_commit import Timing
from shardd.topic.topic import Topic

BLOCK = 65_536
"""Seqs per reservation."""


def first(topic: Topic, staging: Staging) -> dict[str, Any]:
    """Reserves the first block of a new topic. Returns the fields for its TOPIC_CREATE frame; none unless `disk`."""
    if not topic.config.durability.reserves_per_boot:
        return {}
    topic.ceiling, topic.reserved_in = BLOCK, staging.boot_id
    return {"ceiling": topic.ceiling, "boot": topic.reserved_in}


def ahead(topic: Topic, count: int, staging: Staging) -> None:
    """Reserves the topic's next `count` seqs, if its class needs that.

    If they are not reserved yet, the reservation waits for a sync, and so do the topic's later changes. To avoid that
    wait, a topic of class `disk` reserves the next block in the background when half of the present one is used.
    """
    durability = topic.assigned_config.durability
    if not durability.reserves_seqs:
        return
    boot = staging.boot_id if durability.reserves_per_boot else ""
    last = topic.next_seq - 1 + count
    if last > topic.ceiling or topic.reserved_in != boot:
        _reserve_first(topic, last + BLOCK, boot, staging)
    elif boot and last > topic.ceiling - BLOCK // 2 and not topic.reserving:
        _reserve_meanwhile(topic, last + BLOCK, boot, staging)


def pushed_out(topic: Topic, staging: Staging) -> None:
    """Logs the floor if staged records evict logged ones that a replay would bring back. Call it after staging.

    The floor follows the evicting change in the log. If the machine stops between the two, logged records come back
    and the records that evicted them do not exist. In the opposite order, logged records would be lost for nothing."""
    if topic.floor > topic.logged_seq:
        return
    floor = floor_after(topic, topic.assigned_config)
    if floor > topic.floor:
        fields = {"floor": floor, "now": staging.clock.now_ms()}
        frame = staging.control_frame(Kind.CEILING, topic.id, fields)
        staging.stage(topic, frame, requires_sync=False, commit=lambda timing: None, undo=lambda error: None)


def floor_after(topic: Topic, config: TopicConfig) -> int:
    """The topic's floor once everything staged is visible, limited to one past the last logged record."""
    if topic.floor > topic.logged_seq:
        return topic.floor
    return min(topic.floor_after(config, topic.pending_records, topic.pending_bytes), topic.logged_seq + 1)


def _reserve_first(topic: Topic, ceiling: int, boot: str, staging: Staging) -> None:
    before = topic.ceiling, topic.reserved_in
    topic.ceiling, topic.reserved_in = ceiling, boot

    def commit(timing: Timing) -> None:
        pass

    def undo(error: TopicsError) -> None:
        topic.ceiling, topic.reserved_in = before

    frame = staging.control_frame(Kind.CEILING, topic.id, _fields(topic, ceiling, boot))
    staging.stage(topic, frame, requires_sync=True, commit=commit, undo=undo)


def _reserve_meanwhile(topic: Topic, ceiling: int, boot: str, staging: Staging) -> None:
    topic.reserving = True

    def commit(timing: Timing) -> None:
        topic.reserving = False
        topic.catalogued = None
        if topic.reserved_in == boot:
            topic.ceiling = max(topic.ceiling, ceiling)

    def undo(error: TopicsError) -> None:
        topic.reserving = False

    frame = staging.control_frame(Kind.CEILING, topic.id, _fields(topic, ceiling, boot))
    staging.pin_copies(topic)
    # Not through `staging.stage`: the topic's later changes need not wait for this sync.
    staging.commits.stage(frame, requires_sync=True, commit=commit, undo=undo)


def _fields(topic: Topic, ceiling: int, boot: str) -> dict[str, Any]:
    return {"seq": ceiling, "boot": boot, "next_seq": topic.next_seq}

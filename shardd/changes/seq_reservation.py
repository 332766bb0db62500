"""Seqs are never used twice, also when the records that had them are gone (`memory` makes no such promise).

Two classes acknowledge records that a stop may take: `ephemeral` on any stop, `disk` when the machine itself stops
before the sync that follows. So their topics reserve seqs ahead in the log, and what is reserved counts as used after
such a stop.

An ephemeral topic logs a *ceiling* and goes on after it. A `disk` topic logs it with the boot of the machine it was
made in, and only another boot makes a difference: as long as the machine is up, the kernel has all that was written. A
checkpoint forgets the reservation of a topic of which everything is synced; the topic's next write makes a new one.

    process dies            the boot is the same: the topic goes on where its log ends
    machine dies            it goes on after the ceiling; the jump is logged (`next_seq`) with the next reservation,
                            and until then each start comes to it again
    stopped in an orderly way    nothing is reserved any more: no jump, whatever the class

Records that an ephemeral topic has from a time when its class was another (those up to `Topic.logged_seq`) are in log
and files, and stay. The ephemeral ones behind them count towards the caps, too, and push them out. A replay does not
know of those, so what is pushed out is logged (a *floor*): it does not come back. This ends when none of the former are
left, or when the topic is logged again and a checkpoint has them all.
"""

from __future__ import annotations

from typing import Any

from proto.format.frame import Kind
from proto.model.errors import TopicsError
from shardd.changes.transactions import Staging
from shardd.storage.group_commit import Timing
from shardd.topic.config import TopicConfig
from shardd.topic.topic import Topic

BLOCK = 65_536
"""Seqs reserved at a time."""


def first(topic: Topic, staging: Staging) -> dict[str, Any]:
    """The reservation that a new topic is created with: fields for its frame."""
    if not topic.config.durability.reserves_per_boot:
        return {}
    topic.ceiling, topic.reserved_in = BLOCK, staging.boot_id
    return {"ceiling": topic.ceiling, "boot": topic.reserved_in}


def ahead(topic: Topic, count: int, staging: Staging) -> None:
    """See to it that the next `count` seqs are reserved, where the topic's class needs that.

    What has to be reserved first waits for a sync, with everything that follows on the topic. A topic of class `disk`
    therefore reserves the next block when half of one is used, which keeps nobody waiting.
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
    """After something was staged: log which lasting records it pushes out, if a replay would find them again.

    It follows what pushes them out in the log. If a machine stops between the two, records are back that nothing had
    to make room for; the other way round, they would be gone for nothing."""
    if topic.floor > topic.logged_seq:
        return
    floor = floor_after(topic, topic.assigned_config)
    if floor > topic.floor:
        fields = {"floor": floor, "now": staging.clock.now_ms()}
        frame = staging.control_frame(Kind.CEILING, topic.id, fields)
        staging.stage(topic, frame, requires_sync=False, commit=lambda timing: None, undo=lambda error: None)


def floor_after(topic: Topic, config: TopicConfig) -> int:
    """The floor once all that is staged has come, as far as lasting records go for it."""
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
    # Not through `staging.stage`: what follows on the topic need not wait for this.
    staging.commits.stage(frame, requires_sync=True, commit=commit, undo=undo)


def _fields(topic: Topic, ceiling: int, boot: str) -> dict[str, Any]:
    return {"seq": ceiling, "boot": boot, "next_seq": topic.next_seq}

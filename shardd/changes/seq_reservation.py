"""Seq reservation: no seq names two records, even if the first record is lost (class `memory` does not promise this).

Two classes acknowledge records that a stop may lose. `ephemeral` loses them on any stop. `disk` loses them if the
machine stops before the next sync. Topics of these classes reserve seqs ahead in the log. After such a stop, reserved
seqs count as used.

A stop of an ephemeral topic reports the rest of its block as lost. So its first block is small, and each next one twice
as large. A busy topic waits for ten syncs more so, once in a process.

An ephemeral topic logs a *ceiling* and continues after it. A `disk` topic logs the ceiling with the machine's boot id.
The ceiling counts only in another boot: while the machine runs, the kernel keeps all that was written. A checkpoint
drops the reservation of a topic whose frames are all synced; the topic's next write makes a new one. The
checkpoint of a standby keeps it: the shard continues elsewhere. So does that of a salvage, for a topic whose copies
are still to be made again: it has not given up the seqs of what it lost.

    process dies     same boot: a `disk` topic continues where its log ends
    machine dies     the topic continues after the ceiling. The next reservation logs the jump (`next_seq`); until
                     then every start computes the same jump
    orderly stop     nothing is reserved any more: no jump, for any class

A machine that takes over from one that did not wait for the bucket lacks records of any class. Each topic then counts
the next `TAKEOVER` seqs as used, and logs that in the same way.

An ephemeral topic may hold records from a time when it had another class: those up to `LogPosition.logged_seq`. They
are in log and files, and stay. Ephemeral records after them count towards the caps and evict them. A replay does not
see the ephemeral records, so the eviction is logged (a *floor*), and the evicted records do not come back. Floors are
logged until no such record is left, or until the topic is logged again and a checkpoint holds all of them.
"""

from __future__ import annotations

from proto.model.errors import TopicsError
from proto.model.topic_config import TopicConfig
from shardd.changes.transactions import Staging, TopicChange
from shardd.frames import Ceiling, Floor, TopicCreated
from shardd.storage.change import Timing
from shardd.topic.topic import Topic

BLOCK = 65_536
"""Seqs per reservation, at most."""
FIRST_BLOCK = 64
"""Seqs of the first reservation of an ephemeral topic in a process. Each next one is twice as large, up to `BLOCK`."""
TAKEOVER = 1 << 20
"""Seqs that a topic gives up when its records may have been written by a machine that is lost. More than what is
written to one topic in the time that a part is under way."""


def first(topic: Topic, created: TopicCreated, staging: Staging) -> None:
    """Reserves the first block of a new topic of class `disk`, in the frame that creates it."""
    if topic.config.durability.reserves_per_boot:
        created.ceiling, created.boot = BLOCK, staging.boot_id
        topic.position.reserve(BLOCK, staging.boot_id)


def ahead(topic: Topic, count: int, staging: Staging) -> None:
    """Reserves the topic's next `count` seqs, if its class needs that.

    If they are not reserved yet, the reservation waits for a sync, and so do the topic's later changes. To avoid that
    wait, a topic of class `disk` reserves the next block in the background when half of the present one is used.
    """
    durability = topic.assigned_config.durability
    if not durability.reserves_seqs:
        return
    boot = staging.boot_id if durability.reserves_per_boot else ""
    position = topic.position
    last = position.next_seq - 1 + count
    if last > position.ceiling or position.reserved_in != boot:
        block = BLOCK if boot else min(max(2 * position.block, FIRST_BLOCK), BLOCK)
        body = Ceiling(last + block, boot, position.next_seq)
        before = position.ceiling, position.reserved_in
        position.reserve(body.seq, boot, block)
        staging.stage(_Reserved(topic, before, body=body, requires_sync=True))
    elif boot and last > position.ceiling - BLOCK // 2 and not position.reserving:
        body = Ceiling(last + BLOCK, boot, position.next_seq)
        position.reserve_meanwhile(True)
        staging.pin_copies(topic)
        staging.stage_apart(_ReservedMeanwhile(topic, body, body=body, requires_sync=True))


def give_up(topic: Topic, staging: Staging) -> GivenUp:
    """Counts the topic's next `TAKEOVER` seqs as used. Call it before anything else of the topic is staged."""
    staging.pin_copies(topic)
    durability, ceiling = topic.config.durability, topic.position.ceiling
    upto = max(topic.position.next_seq - 1, ceiling if durability.reserves_seqs else 0) + TAKEOVER
    if durability.lasts:
        topic.skip(upto + 1)
    else:
        topic.lose_tail(upto)
        topic.position.logged_upto(topic.records.head_seq)
    topic.position.on_device(topic.records.head_seq)
    boot = staging.boot_id if durability.lasts else ""
    topic.position.reserve(upto, boot)
    change = GivenUp(topic, body=Ceiling(upto, boot, topic.position.next_seq), requires_sync=True)
    staging.stage(change)
    return change


def repeat(topic: Topic, staging: Staging) -> None:
    """Logs the topic's reservation as it is, which changes nothing."""
    body = Ceiling(topic.position.ceiling, topic.position.reserved_in, topic.position.next_seq)
    staging.stage(TopicChange(topic, body=body, requires_sync=True))


def pushed_out(topic: Topic, staging: Staging) -> None:
    """Logs the floor if staged records evict logged ones that a replay would bring back. Call it after staging.

    The floor follows the evicting change in the log. If the machine stops between the two, logged records come back
    and the records that evicted them do not exist. In the opposite order, logged records would be lost for nothing."""
    if topic.records.floor > topic.position.logged_seq:
        return
    floor = floor_after(topic, topic.assigned_config)
    if floor > topic.records.floor:
        staging.stage(TopicChange(topic, body=Floor(floor, staging.clock.now_ms()), requires_sync=False))


def floor_after(topic: Topic, config: TopicConfig) -> int:
    """The topic's floor once everything staged is visible, limited to one past the last logged record."""
    records, logged_seq = topic.records, topic.position.logged_seq
    return records.floor if records.floor > logged_seq else min(records.floor_after(config), logged_seq + 1)


class GivenUp(TopicChange, eq=False):
    done: bool = False

    def apply(self, timing: Timing) -> None:
        self.done = True


class _Reserved(TopicChange, eq=False):
    before: tuple[int, str]
    """The topic's reservation until now."""

    def undo(self, error: TopicsError) -> None:
        self.topic.position.reserve(*self.before)


class _ReservedMeanwhile(TopicChange, eq=False):
    ceiling: Ceiling

    def apply(self, timing: Timing) -> None:
        position, boot = self.topic.position, self.ceiling.boot
        position.reserve_meanwhile(False)
        if position.reserved_in == boot:
            position.reserve(max(position.ceiling, self.ceiling.seq), boot)

    def undo(self, error: TopicsError) -> None:
        self.topic.position.reserve_meanwhile(False)

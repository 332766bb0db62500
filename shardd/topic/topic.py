"""One topic in memory: its configuration, its records, the position of its writes, and what is kept with them.

A write gets its seqs before it is visible, so there are two positions: `LogPosition.next_seq` is the first seq of the
next write, and `Records.head_seq` the last seq that readers may see. Both own their fields. This module has what
depends on both, or on the configuration.
"""

from __future__ import annotations

from collections import deque

from proto.format.buffer import Buffer
from proto.format.columns import Columns
from proto.format.frame import Header
from proto.model.topic_config import TopicConfig
from shardd.storage.batch import Batch
from shardd.storage.segment import Segment
from shardd.topic.cursors import Cursor, Moving
from shardd.topic.damage import Damage, Unloaded
from shardd.topic.idempotency import Keys
from shardd.topic.job_table import Queue
from shardd.topic.lane import Lane
from shardd.topic.log_position import LogPosition
from shardd.topic.outbox import Arrivals, Outbox
from shardd.topic.records import Records
from shardd.topic.tombstones import RESTART

Deferred = tuple[Header, Buffer]


class Topic:
    def __init__(self, name: str, ident: int, epoch: int, config: TopicConfig) -> None:
        self.name = name
        self.id = ident
        self.epoch = epoch
        self.config = config
        self.assigned_config = config
        """The config as it will be when everything staged is committed."""
        self.records = Records(ident)
        self.position = LogPosition()
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None
        self.lane: Lane | None = None
        """The lane as it will be when everything staged is committed; None if the topic never had a router."""
        self.lane_visible: Lane | None = None
        self.copies_staged = 0
        """Number of staged changes that are copies, of this lane and of those before it."""
        self.deferred: deque[Deferred] = deque()
        """Frames of the log that must be replayed after copies that are not made again yet. Empty once the shard is
        ready."""
        self.keys = Keys()
        self.cursors: dict[str, Cursor] = {}
        self.moving = Moving()
        self.queue = Queue() if config.type == "queue" else None
        self.outbox = Outbox()
        self.arrivals = Arrivals()
        self.catalogued: object = None
        """This topic's encoded entry in the newest catalog, or the plan of a checkpoint in progress. None if the topic
        has changed since: every change of a field that the catalog has must set it to None
        (`shardd.checkpoint.checkpoint`)."""
        self.counted_in = -1
        """Number of the checkpoint for which space for this topic's files is counted (`shardd.storage.free_space`)."""
        self.damage: Damage | None = None
        """Why this topic is quarantined; None while its files are sound."""
        self.unchecked = False
        """True while the batches are those of the catalog, and the files have not been checked yet; see
        `shardd.checkpoint.segment_summary`."""
        self.unloaded: Unloaded | None = None
        """State of a topic whose files could not be read at the start; else None."""
        self.held_at: deque[int] = deque()
        """Request times of the configurations and deletions that are staged, in ms. Records expire only up to the first
        of these times, else a replay would give another result. It would find expired records again that the new
        configuration keeps for longer, and would treat lost records as deleted."""

    @property
    def segments(self) -> list[Segment]:
        return self.records.segments

    @property
    def lasting_seq(self) -> int:
        """The last visible seq that survives a restart. The later records of an ephemeral topic are in memory only."""
        head = self.records.head_seq
        return head if self.config.durability.lasts else min(self.position.logged_seq, head)

    @property
    def unrestored(self) -> bool:
        """True if copies that the topic had at the last stop are still to be made again. No frame of the topic may be
        logged before that."""
        return self.unloaded is None and (bool(self.deferred) or (self.lane is not None and not self.lane.settled))

    def add(self, buffer: Buffer, first_seq: int, columns: Columns, flags: bytes | None = None) -> Batch:
        """Make the records of a batch frame visible, then evict what the caps do not allow. `flags` tells which of them
        are deleted."""
        batch = self.records.add(buffer, first_seq, columns, flags)
        self.records.evict(self.config)
        return batch

    def expire(self, now_ms: int) -> None:
        """Remove the records that are older than the topic's TTL, as losses."""
        ttl = self.config.ttl_ms
        if not ttl:
            return
        if self.held_at:
            now_ms = min(now_ms, self.held_at[0])
        if self.records.expire(now_ms + self.position.ahead_ms - ttl):
            self.catalogued = None

    def skip(self, next_seq: int) -> None:
        """Count all seqs below `next_seq` as used, whether or not they have records."""
        if next_seq > self.position.next_seq:
            self.records.leave_out(next_seq - 1 - self.records.head_seq, None)
            self.position.used(next_seq - 1)

    def lose_tail(self, upto: int) -> None:
        """Count the seqs after the head up to `upto` as lost at a restart: their records were in memory only."""
        self.records.part()
        if upto > self.records.head_seq:
            self.records.leave_out(upto - self.records.head_seq, RESTART)
            self.position.used(upto)

    def restored(self, head_seq: int, floor: int) -> None:
        """Set the positions after all batches have been restored."""
        self.records.restored(head_seq, floor)
        self.position.used(head_seq)


def hold(topic: Topic) -> None:
    """Stop expiry of a topic while frames are deferred: they may keep records for longer."""
    topic.held_at.clear()
    topic.held_at.append(0)

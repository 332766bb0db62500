"""One topic in memory: its batches, floors, positions and commit times.

A write gets its seqs before it is visible, so there are two positions. `next_seq` is the first seq of the next write.
`head_seq` is the last seq that readers may see.

Records leave from the front, by cap, age or `before_seq`, or from anywhere, by tag. Commit times never decrease with
seq, so expired records are at the front too. Expiring costs one comparison when nothing has expired.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from proto.format.buffer import Buffer
from proto.format.columns import Columns
from proto.format.frame import Header
from proto.model.topic_config import TopicConfig
from shardd.storage.batch import Batch
from shardd.storage.indivisible import indivisible
from shardd.storage.segment import Segment
from shardd.topic.batch_sequence import BatchSequence, Slice
from shardd.topic.cursors import Cursor, Moving
from shardd.topic.damage import Damage, Unloaded
from shardd.topic.gaps import Gaps
from shardd.topic.idempotency import Keys
from shardd.topic.job_table import Queue
from shardd.topic.lane import Lane
from shardd.topic.outbox import Arrivals, Outbox
from shardd.topic.piece import Piece
from shardd.topic.promises import Promise, Promises
from shardd.topic.tag_index import Match, TagIndex, carriers
from shardd.topic.tombstones import RESTART, Losses

Deferred = tuple[Header, Buffer]


@dataclass(slots=True)
class Totals:
    """Sum of live records and bytes of many topics."""

    records: int = 0
    bytes: int = 0
    written: int = 0
    """Records that became visible since everything was read back, also those that are gone."""


class Topic:
    assigned_config: TopicConfig
    """The config as it will be when everything staged is committed."""
    totals: Totals
    """The totals that include this topic's records while it is visible."""
    ahead_ms: int
    """Ms by which the topic's time is ahead of the clock, because the clock was ahead at earlier writes."""
    sync_required_no: int
    """Number of the newest frame of this topic that had to wait for a sync."""
    lane: Lane | None
    """The lane as it will be when everything staged is committed; None if the topic never had a router."""
    deferred: deque[Deferred]
    """Frames of the log that must be replayed after copies that are not made again yet. Empty once the shard is
    ready."""
    durable_head: int
    """Last seq that is on the device for certain. For classes whose records are visible before a sync; see
    `shardd.routers.source`."""
    floor: int
    """All records before this seq are gone. Never decreases."""
    holes: int
    """Incremented by every deletion that may have removed records from the middle."""
    pending_bytes: int
    """Records and bytes that have seqs but are not visible yet."""
    ceiling: int
    """Seqs up to this one may be used without a further reservation in the log: see
    `shardd.changes.seq_reservation`."""
    block: int
    """Size of the last reservation of seqs in this process; 0 before the first."""
    reserved_in: str
    """Boot id of the machine when `ceiling` was reserved; empty if a crash of the machine loses no records."""
    catalogued: object
    """This topic's encoded entry in the newest catalog, or the plan of a checkpoint in progress. None if the topic has
    changed since: every change of a field that the catalog has must set it to None (`shardd.checkpoint.checkpoint`)."""
    as_of: int
    """Frame number up to which the catalog that this topic was loaded from has all its frames."""
    counted_in: int
    """Number of the checkpoint for which space for this topic's files is counted: see `shardd.storage.free_space`."""
    logged_no: int
    """Number of the newest frame of this topic that this process has logged."""
    logged_seq: int
    """The last seq that is not in memory only. A stop loses the records after it that were written while the topic was
    ephemeral. It counts while the topic is ephemeral, and afterwards until a checkpoint has these records."""
    damage: Damage | None
    """Why this topic is quarantined; None while its files are sound."""
    unchecked: bool
    """True while the batches are those of the catalog, and the files have not been checked yet; see
    `shardd.checkpoint.segment_summary`."""
    unloaded: Unloaded | None
    """State of a topic whose files could not be read at the start; else None."""
    held_at: deque[int]
    """Request times of the configurations and deletions that are staged, in ms. Records expire only up to the first of
    these times, else a replay would give another result. It would find expired records again that the new configuration
    keeps for longer, and would treat lost records as deleted."""

    def __init__(self, name: str, ident: int, epoch: int, config: TopicConfig, totals: Totals | None = None) -> None:
        self.name = name
        self.id = ident
        self.epoch = epoch
        self.config = config
        self.assigned_config = config
        self.next_seq = 1
        self.head_seq = 0
        self.totals = totals or Totals()
        self.records = 0
        self.bytes = 0
        self.last_ts = 0
        self.ahead_ms = 0
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None
        self.sync_required_no = 0
        self.losses = Losses()
        self.gaps = Gaps()
        self.lane = None
        self.lane_visible: Lane | None = None
        self.deferred = deque()
        self.durable_head = 0
        self.floor = 1
        self._sequence = BatchSequence()
        self.batches: Sequence[Batch] = self._sequence.batches
        self._tags: TagIndex | None = None
        self.keys = Keys()
        self.cursors: dict[str, Cursor] = {}
        self.queue = Queue() if config.type == "queue" else None
        self.outbox = Outbox()
        self.arrivals = Arrivals()
        self.holes = 0
        self.moving = Moving()
        self.segments: list[Segment] = []
        self.pending_records = 0
        self.pending_bytes = 0
        self.promise: Promise | None = None
        self.ceiling = 0
        self.block = 0
        self.reserved_in = ""
        self.reserving = False
        self.catalogued = None
        self.as_of = 0
        self.counted_in = -1
        self.logged_no = 0
        self.logged_seq = 0
        self.damage = None
        self.unchecked = False
        self.unloaded = None
        self.held_at = deque()

    @property
    def earliest_seq(self) -> int:
        """Seq of the first live record; `head_seq + 1` if there is none."""
        return self.floor

    @property
    def evict_floor(self) -> int:
        return self.losses.evict_floor

    @property
    def lasting_seq(self) -> int:
        """The last visible seq that survives a restart. The later records of an ephemeral topic are in memory only."""
        return self.head_seq if self.config.durability.lasts else min(self.logged_seq, self.head_seq)

    @property
    def last_live(self) -> int:
        """Seq of the last live record; 0 if there is none."""
        return next((last for b in reversed(self.batches) if (last := b.last_live) is not None), 0)

    @property
    def unrestored(self) -> bool:
        """True if copies that the topic had at the last stop are still to be made again. No frame of the topic may be
        logged before that."""
        return self.unloaded is None and (bool(self.deferred) or (self.lane is not None and not self.lane.settled))

    def commit_time(self, now_ms: int) -> int:
        """`$ts` of a write made now, in ms: the time of the clock, but never less than that of an earlier write."""
        self.last_ts = max(self.last_ts, now_ms + self.ahead_ms)
        return self.last_ts

    # Adding records

    def add(self, buffer: Buffer, first_seq: int, columns: Columns, flags: bytes | None = None) -> Batch:
        """Make the records of a batch frame visible, then evict what the caps do not allow. `flags` tells which of them
        are deleted."""
        assert first_seq == self.head_seq + 1
        batch = Batch(buffer, first_seq, columns)
        if flags is not None:
            batch.flag(flags)
        self.restore(batch)
        self.totals.written += batch.count
        self._sequence.merge_newest(batch.level, self.id)
        self.evict()
        return batch

    def leave_out(self, count: int, reason: str | None) -> None:
        """Leave the next `count` seqs without records. `reason` is for readers; None stands for a deletion."""
        first = self.head_seq + 1
        self.head_seq += count
        self.catalogued = None
        self._sequence.part()  # only neighbouring batches may be merged
        if reason is not None:
            self.gaps.add(first, self.head_seq, reason)
        if not self.batches:
            self._move_floor()

    def restore(self, batch: Batch) -> None:
        """Append a batch as it is, without merging or eviction."""
        self._sequence.append(batch)
        self.head_seq = batch.last_seq
        self._count(batch.live, batch.live_size)

    def flag(self, deleted: dict[int, bytes]) -> list[tuple[Batch, bytes]]:
        """Apply delete flags to restored batches. `deleted` maps the first seq of a batch to its flags. Returns the
        batches found, with their flags."""
        flagged = []
        for batch in self.batches:
            flags = deleted.get(batch.first_seq)
            if flags is not None:
                self._count(-batch.live, -batch.live_size)
                batch.flag(flags)
                self._count(batch.live, batch.live_size)
                flagged.append((batch, flags))
        return flagged

    def restored(self, head_seq: int, floor: int) -> None:
        """Set the positions of a topic after all its batches have been restored."""
        self.head_seq = head_seq
        self.next_seq = head_seq + 1
        while self.batches and self.batches[0].first_seq < floor:
            front = self.batches[0]
            self._cut(front, min(floor - front.first_seq, front.count))
            if self.batches and self.batches[0] is front:
                break
        self.floor = max(floor, self.batches[0].first_live or 0) if self.batches else head_seq + 1

    def skip(self, next_seq: int) -> None:
        """Count all seqs below `next_seq` as used, whether or not they have records."""
        if next_seq <= self.next_seq:
            return
        self.catalogued = None
        self.head_seq, self.next_seq = next_seq - 1, next_seq
        self._sequence.part()  # only neighbouring batches may be merged
        self._move_floor()

    def reserve_nothing(self) -> None:
        """Drop the reservation when the topic leaves class `disk`: the change syncs all its records."""
        self.ceiling, self.reserved_in = 0, ""

    def _count(self, records: int, size: int) -> None:
        self.catalogued = None
        self.records += records
        self.bytes += size
        self.totals.records += records
        self.totals.bytes += size
        if self.promise is not None:
            self.promise.changed(size)

    def promised(self, promises: Promises, needed: int, apart: bool) -> None:
        """Book `needed` bytes more than the topic's promise, for records that are about to be staged."""
        if self.promise is None:
            self.promise = Promise(promises, self.bytes)
        self.promise.add(self.bytes, needed, apart)

    def kept(self, apart: bool) -> None:
        """Records that were promised are visible or undone."""
        if self.promise is not None and not self.promise.end(self.bytes, self.pending_bytes, apart):
            self.promise = None

    def drop_dead(self) -> list[Segment]:
        """Remove the batches without live records. Removes and returns the segments that have no other batches."""
        used = {id(b.stored.segment) for b in self.batches if b.stored is not None and b.live}
        if any(not batch.live for batch in self.batches):
            # A dead batch in a used segment stays until the file has its flags: else a restart would bring it back.
            self._sequence.keep(
                b
                for b in list(self.batches)
                if b.live or (b.stored is not None and id(b.stored.segment) in used and b.deleted != b.written)
            )
        dead = [segment for segment in self.segments if id(segment) not in used]
        self.segments = [segment for segment in self.segments if id(segment) in used]
        return dead

    def unstored(self) -> list[Batch]:
        """The batches up to `lasting_seq` that no segment has yet. Merges small ones first."""
        return self._sequence.unstored(self.lasting_seq, self.id)

    # Removing records

    def expire(self, now_ms: int) -> None:
        """Remove the records that are older than the topic's TTL, as losses."""
        ttl = self.config.ttl_ms
        if self.held_at:
            now_ms = min(now_ms, self.held_at[0])
        now_ms += self.ahead_ms
        while ttl and self.batches:
            front = self.batches[0]
            gone = front.expired(now_ms - ttl)
            if not gone:
                return
            with indivisible:
                self._lose(front, gone, "ttl")
            if gone < front.count:
                return

    def evict(self) -> None:
        """Remove the oldest records beyond the topic's caps, as losses. The newest record always stays.

        A topic with `discard` "reject" evicts no records, also when a cap is lowered below its contents.
        """
        cap_records, cap_bytes = self.config.cap_records, self.config.cap_bytes
        if self.config.discard == "reject" or (not cap_records and not cap_bytes):
            return
        while self.batches:
            records = self.records - cap_records if cap_records else 0
            size = self.bytes - cap_bytes if cap_bytes else 0
            if self.records <= 1 or (records <= 0 and size <= 0):
                return
            front = self.batches[0]
            gone = front.start_to_lose(records, size)
            if front.live == self.records and gone >= front.count:
                newest = front.last_live
                assert newest is not None
                gone = newest - front.first_seq
            if gone <= front.start:
                return
            self._lose(front, gone, "cap")

    def _lose(self, front: Batch, start: int, reason: str) -> None:
        """Remove the records of the first batch before position `start`, as losses."""
        lost = last_live_before(front, start)
        if lost is not None:
            self.losses.add(lost, reason)
        self._cut(front, start)

    def _cut(self, front: Batch, start: int) -> None:
        self._count(-front.live, -front.live_size)
        front.cut(start)
        self._count(front.live, front.live_size)
        self._move_floor()

    def _move_floor(self) -> None:
        """Drop dead batches at the front and move the floor to the first live record."""
        self.catalogued = None
        dead = 0
        while dead < len(self.batches) and not self.batches[dead].live:
            dead += 1
        if dead:
            self._sequence.drop_front(dead)
        if self.batches:
            first = self.batches[0].first_live
            assert first is not None
            self.floor = max(self.floor, first)
        else:
            self.floor = self.head_seq + 1
            self._sequence.part()
        for upto, reason in self.gaps.below(self.floor):
            self.losses.add(upto, reason)
        if self._tags is not None and self._tags.entries > 2 * self.records + 10_000:
            self._tags = None

    def lose_below(self, floor: int, reason: str) -> None:
        """Remove the records before `floor`, as losses."""
        while self.batches and self.batches[0].first_seq < floor:
            front = self.batches[0]
            self._lose(front, min(floor - front.first_seq, front.count), reason)
            if self.batches and self.batches[0] is front:
                break

    def lose_tail(self, upto: int) -> None:
        """Count the seqs after the head up to `upto` as lost at a restart: their records were in memory only."""
        self.part()
        if upto > self.head_seq:
            self.leave_out(upto - self.head_seq, RESTART)
            self.next_seq = max(self.next_seq, self.head_seq + 1)

    def part(self) -> None:
        """Keep the present batches from being merged with later ones: one may be lost without the other."""
        self._sequence.part()

    def floor_after(self, config: TopicConfig, records: int, size: int) -> int:
        """A lower bound of the floor after `records` with `size` bytes have been added: the caps evict what is before
        it. The newest record stays, as in `evict`."""
        floor = self.floor
        if config.discard == "reject":
            return floor
        over = self.records + records - config.cap_records if config.cap_records else 0
        over_size = self.bytes + size - config.cap_bytes if config.cap_bytes else 0
        for front in self.batches:
            if over <= 0 and over_size <= 0:
                break
            gone = front.start_to_lose(over, over_size)
            floor = max(floor, front.first_seq + gone)
            if gone < front.count:
                break
            over -= front.live
            over_size -= front.live_size
        return floor if records else max(self.floor, min(floor, self.last_live))

    def evicted_by(self, config: TopicConfig, records: int, size: int) -> tuple[int, int, int]:
        """Bytes of live records that the caps evict once `records` with `size` bytes have been added, the newest of
        which stay. Also the numbers of records and bytes that the caps would evict of the added ones."""
        over = self.records + records - config.cap_records if config.cap_records else 0
        over_size = self.bytes + size - config.cap_bytes if config.cap_bytes else 0
        lost = 0
        for front in self.batches:
            if over <= 0 and over_size <= 0:
                break
            gone = front.start_to_lose(over, over_size)
            if gone < front.count:
                return lost + front.live_size_before(gone), 0, 0
            lost += front.live_size
            over -= front.live
            over_size -= front.live_size
        return lost, max(over, 0), max(over_size, 0)

    def delete(self, before_seq: int | None, match: Match | None, bound: int) -> int:
        """Remove the live records with seq < `before_seq` and < `bound` and a matching tag; None sets no condition.
        Returns their number. Raises `SegmentError`."""
        before = self.records
        end = bound if before_seq is None else min(bound, before_seq)
        if match is None:
            while self.batches and self.batches[0].first_seq < end:
                front = self.batches[0]
                self._cut(front, min(end - front.first_seq, front.count))
                if self.batches and self.batches[0] is front:
                    break
        else:
            self._delete_matching(match, end)
        return before - self.records

    def _delete_matching(self, match: Match, end: int) -> None:
        index = self.index()
        self.holes += 1
        op, text = match
        tags = index.equal(text) if op == "Eq" else index.starting_with(text)
        done = 0
        for seq in index.places(tags):
            place = self._sequence.place(seq)
            if place < 0 or not done < seq < end or self.batches[place].last_seq < seq:
                continue  # its batch was removed, was merged with the one before, or comes later
            batch = self.batches[place]
            done = batch.last_seq
            chosen = carriers(batch.columns(), tags, batch.start, min(batch.count, end - batch.first_seq))
            if chosen:
                self._count(-batch.live, -batch.live_size)
                batch.delete(chosen)
                self._count(batch.live, batch.live_size)
        if end > index.upto:
            index.forget(tags)
        self._move_floor()

    def delete_seqs(self, seqs: Sequence[int]) -> None:
        """Remove the records with these seqs, which are ascending and distinct. Seqs that are gone change nothing."""
        at = 0
        while at < len(seqs):
            place = max(self._sequence.place(seqs[at]), 0)
            if place >= len(self.batches):
                break
            batch = self.batches[place]
            before = at
            start, at = bisect_left(seqs, batch.first_seq, at), bisect_right(seqs, batch.last_seq, at)
            if start == at:  # in no batch: the batch was removed
                at = max(at, before + 1)
                continue
            self._count(-batch.live, -batch.live_size)
            batch.delete([seq - batch.first_seq for seq in seqs[start:at]])
            self._count(batch.live, batch.live_size)
        self._move_floor()

    def delete_after(self, seq: int) -> int:
        """Remove the live records after `seq`. Their seqs stay used. Returns their number."""
        before = self.records
        for batch in reversed(self.batches):
            if batch.last_seq <= seq:
                break
            self._count(-batch.live, -batch.live_size)
            batch.delete_from(max(seq + 1 - batch.first_seq, 0))
            self._count(batch.live, batch.live_size)
        self._move_floor()
        return before - self.records

    def alive(self, seq: int) -> bool:
        """True if the record with this seq is live."""
        place = self._sequence.place(seq)
        if place < 0 or seq > self.batches[place].last_seq:
            return False
        batch, position = self.batches[place], seq - self.batches[place].first_seq
        return position >= batch.start and batch.mask(position, position + 1) == b"\1"

    def written_at(self, seq: int) -> int:
        """Commit time of the record with this seq, in ms. The record must be alive. Raises `SegmentError`."""
        batch = self.batches[self._sequence.place(seq)]
        if batch.first_ts == batch.last_ts:
            return batch.first_ts
        columns, places = batch.records([seq - batch.first_seq])
        return next(iter(columns.times_at(places)))

    def unindexed(self, op: str) -> int:
        """Number of seqs that the tag index does not have yet. If it has all: number of tags that a match with `op`
        must sort."""
        index = self._tags
        seqs = self.head_seq - max(index.upto if index is not None else 0, self.floor - 1)
        return index.unsorted if index is not None and not seqs and op == "Glob" else seqs

    def index(self, batches: int | None = None, op: str = "Eq") -> TagIndex:
        """Add up to `batches` batches to the tag index; None adds all that are missing. If none is missing and `op` is
        "Glob", sort some of the tags instead."""
        try:
            return self._indexed(batches, op)
        except Exception:
            self._tags = None  # it may lack a part of a batch; the next use makes another
            raise

    def _indexed(self, batches: int | None, op: str) -> TagIndex:
        if self._tags is None:
            self._tags = TagIndex()
        index = self._tags
        if op == "Glob" and index.upto == self.head_seq and index.unsorted:
            index.sort()
            return index
        first = max(self._sequence.place(index.upto), 0)
        end = len(self.batches) if batches is None else min(first + 1 + batches, len(self.batches))
        for batch in self.batches[first:end]:
            start = max(index.upto + 1 - batch.first_seq, batch.start)
            if start < batch.count:
                mask = None if batch.flags is None else batch.mask(start, batch.count)
                index.add(batch.first_seq, batch.columns(), start, mask)
        # Seqs without records and batches without live ones count as indexed, too.
        index.upto = self.head_seq if end == len(self.batches) else self.batches[end - 1].last_seq
        return index

    # Reading

    def window(self, start_seq: int, limit: int, budget: int, upto: int | None = None) -> tuple[list[Slice], int]:
        """Up to `limit` live records from `start_seq` to `upto` (None: the head), and the last seq that was examined.

        The records have at most `budget` bytes of payload, but at least one is returned if there is any. Ends before
        the next gap. Raises `SegmentError`.
        """
        upto = self.head_seq if upto is None else min(upto, self.head_seq)
        gap = self.gaps.next_after(start_seq)
        if gap is not None:
            upto = min(upto, gap - 1)
        return self._sequence.window(start_seq, limit, budget, upto)

    def chosen(self, seqs: Sequence[int]) -> list[Slice]:
        """The live ones of the records with these seqs, which are ascending and distinct. Raises `SegmentError`."""
        return self._sequence.chosen(seqs)

    def pieces(self, start_seq: int, upto: int, limit: int, budget: int) -> tuple[list[Piece], int]:
        """Records from `start_seq` to `upto` as their batches have them, deleted ones with their flags.

        Returns about `limit` records and `budget` bytes at most, but at least one record if there is any; and the last
        seq that was examined. Raises `SegmentError`.
        """
        return self._sequence.pieces(start_seq, upto, limit, budget)


def last_live_before(front: Batch, start: int) -> int | None:
    """Seq of the last live record of `front` before position `start`; None if there is none."""
    mask = front.mask(front.start, min(start, front.count))
    last = mask.rfind(1)
    return None if last < 0 else front.first_seq + front.start + last


def hold(topic: Topic) -> None:
    """Stop expiry of a topic while frames are deferred: they may keep records for longer."""
    topic.held_at.clear()
    topic.held_at.append(0)

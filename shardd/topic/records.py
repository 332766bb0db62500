"""The records of one topic: its batches, how many records are live, and which were lost and why.

Records leave from the front, by cap, age or `before_seq`, or from anywhere, by tag. Commit times never decrease with
seq, so expired records are at the front too. Expiring costs one comparison when nothing has expired.

Only this module writes the fields of `Records`. `shardd.topic.log_position` has the seqs of writes that are staged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

from proto.format.buffer import Buffer
from proto.format.columns import Columns
from proto.model.topic_config import TopicConfig
from shardd.storage.batch import Batch
from shardd.storage.indivisible import indivisible
from shardd.storage.segment import Segment
from shardd.topic.batch_sequence import BatchSequence, Slice
from shardd.topic.gaps import Gaps
from shardd.topic.promises import Promise, Promises
from shardd.topic.tag_index import Match, TagIndex, carriers
from shardd.topic.tombstones import Losses

_Value = TypeVar("_Value")


@dataclass(slots=True)
class Totals:
    """Sum of live records and bytes of many topics."""

    records: int = 0
    bytes: int = 0
    written: int = 0
    """Records that became visible since everything was read back, also those that are gone."""


class Records:
    def __init__(self, topic_id: int) -> None:
        self._topic_id = topic_id
        self.count = 0
        """Number of live records."""
        self.bytes = 0
        self.pending_count = 0
        """Records and bytes that have seqs but are not visible yet."""
        self.pending_bytes = 0
        self.promise: Promise | None = None
        self.totals = Totals()
        """The totals that include these records: those of the directory while the topic is visible."""
        self.head_seq = 0
        """The last seq that readers may see."""
        self.floor = 1
        """Seq of the first live record, `head_seq + 1` if there is none: all before it are gone. Never decreases."""
        self.losses = Losses()
        self.gaps = Gaps()
        self.holes = 0
        """Incremented by every deletion that may have removed records from the middle."""
        self.segments: list[Segment] = []
        self.sequence = BatchSequence()
        """Readers find batches and records in it. Only this module changes it."""
        self.batches: Sequence[Batch] = self.sequence.batches
        self._tags: TagIndex | None = None

    @property
    def last_live(self) -> int:
        """Seq of the last live record; 0 if there is none."""
        return next((last for b in reversed(self.batches) if (last := b.last_live) is not None), 0)

    def absent(self, first: int) -> list[tuple[int, int]]:
        """Ranges of seqs from `first` to the head that neither a batch nor a gap has. Both ends are included."""
        found = []
        there = [(batch.first_seq, batch.last_seq) for batch in self.batches]
        for start, last in sorted([*there, *(gap[:2] for gap in self.gaps.ranges), (self.head_seq + 1,) * 2]):
            if first < start:
                found.append((first, start - 1))
            first = max(first, last + 1)
        return found

    def count_in(self, totals: Totals) -> None:
        """Count the records in other totals from now on."""
        self.totals.records -= self.count
        self.totals.bytes -= self.bytes
        self.totals = totals
        totals.records += self.count
        totals.bytes += self.bytes

    # Adding

    def add(self, buffer: Buffer, first_seq: int, columns: Columns, flags: bytes | None) -> Batch:
        """Make the records of a batch frame visible. `flags` tells which of them are deleted."""
        assert first_seq == self.head_seq + 1, "records become visible in seq order"
        batch = Batch(buffer, first_seq, columns)
        if flags is not None:
            batch.flag(flags)
        self.restore(batch)
        self.totals.written += batch.count
        self.sequence.merge_newest(batch.level, self._topic_id)
        return batch

    def leave_out(self, count: int, reason: str | None) -> None:
        """Leave the next `count` seqs without records. `reason` is for readers; None stands for a deletion."""
        first = self.head_seq + 1
        self.head_seq += count
        self.part()
        if reason is not None:
            self.gaps.add(first, self.head_seq, reason)
        if not self.batches:
            self._move_floor()

    def restore(self, batch: Batch) -> None:
        """Append a batch as it is, without merging."""
        self.sequence.append(batch)
        self.head_seq = batch.first_seq + batch.count - 1
        self._count(batch.live, batch.live_size)

    def flag(self, deleted: dict[int, bytes]) -> list[tuple[Batch, bytes]]:
        """Apply delete flags to restored batches. `deleted` maps the first seq of a batch to its flags. Returns the
        batches found, with their flags."""
        flagged = []
        for batch in self.batches:
            flags = deleted.get(batch.first_seq)
            if flags is not None:
                self._counted(batch, batch.flag, flags)
                flagged.append((batch, flags))
        return flagged

    def restored(self, head_seq: int, floor: int) -> None:
        """Set head and floor after all batches have been restored."""
        self.head_seq = head_seq
        self.cut_below(floor)
        self.floor = max(floor, self.batches[0].first_live or 0) if self.batches else head_seq + 1

    def load(self, field: str, value: object) -> None:
        """Set a field as the catalog has it, or the log of a topic that cannot be read."""
        setattr(self, field, value)

    def _count(self, records: int, size: int) -> None:
        self.count += records
        self.bytes += size
        self.totals.records += records
        self.totals.bytes += size
        if self.promise is not None:
            self.promise.changed(size)

    def _counted(self, batch: Batch, change: Callable[[_Value], None], value: _Value) -> None:
        """Change a batch, and count what is live of it then."""
        live, size = batch.live, batch.live_size
        change(value)
        self._count(batch.live - live, batch.live_size - size)

    # Staged records

    def staged(self, count: int, size: int) -> None:
        """Records were given seqs, and are not visible yet."""
        self.pending_count += count
        self.pending_bytes += size

    def unstaged(self, count: int, size: int) -> None:
        """Staged records become visible, or were undone."""
        self.pending_count -= count
        self.pending_bytes -= size
        assert self.pending_count >= 0 <= self.pending_bytes, "records are staged before they are visible or undone"

    def promised(self, promises: Promises, needed: int) -> None:
        """Book `needed` bytes more than was promised, for records that are about to be staged."""
        if self.promise is None:
            self.promise = Promise(promises, self.bytes)
        self.promise.add(needed)

    def kept(self) -> None:
        """Records that were promised are visible or undone."""
        if self.promise is not None and not self.promise.end(self.bytes, self.pending_bytes):
            self.promise = None

    def drop_dead(self) -> list[Segment]:
        """Remove the batches without live records. Removes and returns the segments that have no other batches."""
        used = {id(b.stored.segment) for b in self.batches if b.stored is not None and b.live}
        if any(not batch.live for batch in self.batches):
            # A dead batch in a used segment stays until the file has its flags: else a restart would bring it back.
            self.sequence.keep(
                b
                for b in list(self.batches)
                if b.live or (b.stored is not None and id(b.stored.segment) in used and b.deleted != b.written)
            )
        dead = [segment for segment in self.segments if id(segment) not in used]
        self.segments = [segment for segment in self.segments if id(segment) in used]
        self.sequence.sum -= sum(segment.sum or 0 for segment in dead)
        return dead

    def unstored(self, upto: int) -> list[Batch]:
        """The batches up to seq `upto` that no segment has yet. Merges small ones first."""
        return self.sequence.unstored(upto, self._topic_id)

    # Removing

    def expire(self, oldest_ts: int) -> bool:
        """Remove the records with a commit time before `oldest_ts` (ms), as losses. Returns whether there were any."""
        floor = self.floor
        while self.batches and (gone := self.batches[0].expired(oldest_ts)) > self.batches[0].start:
            with indivisible:
                self._cut(self.batches[0], gone, "ttl")
        return self.floor > floor

    def evict(self, config: TopicConfig) -> None:
        """Remove the oldest records beyond the caps, as losses. The newest record always stays.

        A topic with `discard` "reject" evicts no records, also when a cap is lowered below its contents.
        """
        cap_records, cap_bytes = config.cap_records, config.cap_bytes
        if config.discard == "reject" or (not cap_records and not cap_bytes):
            return
        while self.batches:
            records = self.count - cap_records if cap_records else 0
            size = self.bytes - cap_bytes if cap_bytes else 0
            if self.count <= 1 or (records <= 0 and size <= 0):
                return
            front = self.batches[0]
            gone = front.start_to_lose(records, size)
            if front.live == self.count and gone >= front.count:
                newest = front.last_live
                assert newest is not None
                gone = newest - front.first_seq
            if gone <= front.start:
                return
            self._cut(front, gone, "cap")

    def cut_below(self, seq: int, reason: str | None = None) -> None:
        """Remove the records before `seq`, as losses if there is a reason."""
        while self.batches and self.batches[0].first_seq < seq:
            front = self.batches[0]
            self._cut(front, min(seq - front.first_seq, front.count), reason)
            if self.batches and self.batches[0] is front:
                break

    def _cut(self, front: Batch, start: int, reason: str | None = None) -> None:
        """Remove the records of the first batch before position `start`, as losses if there is a reason."""
        if reason is not None and (place := front.mask(front.start, min(start, front.count)).rfind(1)) >= 0:
            self.losses.add(front.first_seq + front.start + place, reason)
        self._counted(front, front.cut, start)
        self._move_floor()

    def _move_floor(self) -> None:
        """Drop dead batches at the front and move the floor to the first live record."""
        dead = 0
        while dead < len(self.batches) and not self.batches[dead].live:
            dead += 1
        if dead:
            self.sequence.drop_front(dead)
        if self.batches:
            first = self.batches[0].first_live
            assert first is not None, "dead batches at the front were dropped"
            self.floor = max(self.floor, first)
        else:
            self.floor = self.head_seq + 1
            self.sequence.part()
        for upto, reason in self.gaps.below(self.floor):
            self.losses.add(upto, reason)
        if self._tags is not None and self._tags.entries > 2 * self.count + 10_000:
            self._tags = None

    def part(self) -> None:
        """Keep the present batches from being merged with later ones: one may be lost without the other."""
        self.sequence.part()

    def floor_after(self, config: TopicConfig) -> int:
        """A lower bound of the floor once the staged records are visible: the caps evict what is before it. The newest
        record stays, as in `evict`."""
        if config.discard == "reject":
            return self.floor
        floor = max(self.floor, self.evicted_by(config, 0, 0)[-1])
        return floor if self.pending_count else max(self.floor, min(floor, self.last_live))

    def evicted_by(self, config: TopicConfig, records: int, size: int) -> tuple[int, int, int, int]:
        """What the caps evict once the staged records and `records` more with `size` bytes are visible, the newest of
        which stay: bytes of live records, numbers of records and bytes of the others, and a lower bound of the floor
        then."""
        over = self.count + self.pending_count + records - config.cap_records if config.cap_records else 0
        over_size = self.bytes + self.pending_bytes + size - config.cap_bytes if config.cap_bytes else 0
        floor = lost = 0
        for front in self.batches:
            if over <= 0 and over_size <= 0:
                break
            gone = front.start_to_lose(over, over_size)
            floor = front.first_seq + gone
            if gone < front.count:
                return lost + front.live_size_before(gone), 0, 0, floor
            lost += front.live_size
            over -= front.live
            over_size -= front.live_size
        return lost, max(over, 0), max(over_size, 0), floor

    def delete(self, before_seq: int | None, match: Match | None, bound: int) -> int:
        """Remove the live records with seq < `before_seq` and < `bound` and a matching tag; None sets no condition.
        Returns their number. Raises `SegmentError`."""
        before = self.count
        end = _end_of(before_seq, bound)
        if match is None:
            self.cut_below(end)
        else:
            self._delete_matching(match, end)
        return before - self.count

    def look(self, before_seq: int | None, match: Match, bound: int) -> None:
        """Read what such a deletion reads. Raises `SegmentError`."""
        index = self.index()
        for batch in self._carrying(index, _tags_of(match, index), _end_of(before_seq, bound)):
            if batch.buffer is None:
                batch.columns()

    def _delete_matching(self, match: Match, end: int) -> None:
        index = self.index()
        self.holes += 1
        tags = _tags_of(match, index)
        for batch in self._carrying(index, tags, end):
            chosen = carriers(batch.columns(), tags, batch.start, min(batch.count, end - batch.first_seq))
            if chosen:
                self._counted(batch, batch.delete, chosen)
        if end > index.upto:
            index.forget(tags)
        self._move_floor()

    def _carrying(self, index: TagIndex, tags: Set[bytes], end: int) -> Iterator[Batch]:
        """The batches that may have records before seq `end` with one of these tags."""
        done = 0
        for seq in index.places(tags):
            place = self.sequence.place(seq)
            if place < 0 or not done < seq < end or self.batches[place].last_seq < seq:
                continue  # its batch was removed, was merged with the one before, or comes later
            done = self.batches[place].last_seq
            yield self.batches[place]

    def delete_seqs(self, seqs: Sequence[int]) -> None:
        """Remove the records with these seqs, which are ascending and distinct. Seqs that are gone change nothing."""
        for batch, places in self.sequence.places_of(seqs):
            self._counted(batch, batch.delete, places)
        self._move_floor()

    def delete_after(self, seq: int) -> int:
        """Remove the live records after `seq`. Their seqs stay used. Returns their number."""
        before = self.count
        for batch in reversed(self.batches):
            if batch.last_seq <= seq:
                break
            self._counted(batch, batch.delete_from, max(seq + 1 - batch.first_seq, 0))
        self._move_floor()
        return before - self.count

    def alive(self, seq: int) -> bool:
        """True if the record with this seq is live."""
        place = self.sequence.place(seq)
        if place < 0 or seq > self.batches[place].last_seq:
            return False
        batch, position = self.batches[place], seq - self.batches[place].first_seq
        return position >= batch.start and batch.mask(position, position + 1) == b"\1"

    def written_at(self, seq: int) -> int:
        """Commit time of the record with this seq, in ms. The record must be alive. Raises `SegmentError`."""
        batch = self.batches[self.sequence.place(seq)]
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
        index, self._tags = self._tags or TagIndex(), None  # after an exception, it may lack a part of a batch
        if op == "Glob" and index.upto == self.head_seq and index.unsorted:
            index.sort()
        else:
            self._extend(index, batches)
        self._tags = index
        return index

    def _extend(self, index: TagIndex, batches: int | None) -> None:
        first = max(self.sequence.place(index.upto), 0)
        end = len(self.batches) if batches is None else min(first + 1 + batches, len(self.batches))
        for batch in self.batches[first:end]:
            start = max(index.upto + 1 - batch.first_seq, batch.start)
            if start < batch.count:
                mask = None if batch.flags is None else batch.mask(start, batch.count)
                index.add(batch.first_seq, batch.columns(), start, mask)
        # Seqs without records and batches without live ones count as indexed, too.
        index.upto = self.head_seq if end == len(self.batches) else self.batches[end - 1].last_seq

    def window(self, start_seq: int, limit: int, budget: int, upto: int | None = None) -> tuple[list[Slice], int]:
        """Up to `limit` live records from `start_seq` to `upto` (None: the head), and the last seq that was examined.

        The records have at most `budget` bytes of payload, but at least one is returned if there is any. Ends before
        the next gap, and examines nothing if it starts in one: readers tell of gaps or skip them (`Gaps.after`) first.
        Raises `SegmentError`.
        """
        upto = self.head_seq if upto is None else min(upto, self.head_seq)
        gap = self.gaps.next_after(start_seq)
        if gap is not None:
            upto = min(upto, gap - 1)
        return self.sequence.window(start_seq, limit, budget, upto)


def _end_of(before_seq: int | None, bound: int) -> int:
    return bound if before_seq is None else min(bound, before_seq)


def _tags_of(match: Match, index: TagIndex) -> Set[bytes]:
    op, text = match
    return index.equal(text) if op == "Eq" else index.starting_with(text)

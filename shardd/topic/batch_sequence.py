"""The batches of one topic in seq order: found by seq, merged as they age, and read.

A batch is stored as the frame it was written in and decoded when it is read. Small batches are merged as they age, 32
at a time and at most twice. So the cost of a topic is per thousand records, independent of the size of the writes.

`shardd.topic.records` decides which records are live. It counts them, and cuts and flags the batches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from proto.format.columns import Columns, part
from shardd.storage.batch import FINAL_LEVEL, Batch, fitting, merged, ones
from shardd.storage.catalog import SUMS

MERGE_FAN = 32


@dataclass(slots=True)
class Slice:
    """Records of a batch from position `start` to before `stop`. `mask` has a 1 for each live one; None: all are. With
    `places`, it is the records at these places of `columns`, all live, with these `seqs`, and there is no mask."""

    columns: Columns
    first_seq: int
    start: int
    stop: int
    mask: bytes | None
    places: Sequence[int] | None = None
    seqs: Sequence[int] = ()

    @property
    def size(self) -> int:
        """Bytes of data, tag, node and meta; with a mask, those of deleted records among them."""
        if self.places is None:
            return self.columns.size(self.start, self.stop)
        return self.columns.size_at(self.places)

    def cut(self, budget: int, least: int) -> None:
        """Keep the first records, as many as have at most `budget` bytes together, but at least `least`."""
        columns, places = self.columns, self.places
        if places is None:
            self.stop = self.start + max(fitting(columns, self.start, self.stop, budget), least)
            self.mask = None if self.mask is None else self.mask[: self.stop - self.start]
            return
        counts = range(1, len(places) + 1)
        fits = max(bisect_right(counts, budget, key=lambda count: columns.size_at(places[:count])), least)
        self.places, self.seqs = places[:fits], self.seqs[:fits]
        self.stop = self.seqs[-1] + 1 - self.first_seq if fits else self.start


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring records of a topic, taken out of their batches. `flags` are their delete flags, None if none is
    deleted."""

    first_seq: int
    columns: Columns
    flags: bytes | None = None

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.columns.count - 1


def _sum(batches: Iterable[Batch]) -> int:
    return sum(batch.sum for batch in batches)


def _chosen(batch: Batch, start: int, stop: int, positions: Sequence[int]) -> Slice:
    """The live records at these positions of a batch, from `start` to before `stop`."""
    columns, places = batch.records(positions)
    seqs = list(map(batch.first_seq.__add__, positions))
    return Slice(columns, batch.first_seq, start, stop, None, places, seqs)


class BatchSequence:
    __slots__ = ("_firsts", "_runs", "batches", "sum")

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        """Always the same list object."""
        self.sum = 0
        """Of the batches that were added, less those that left; with those that a segment has."""
        self._firsts: list[int] = []
        """First seq of each batch."""
        self._runs = [0] * FINAL_LEVEL
        """Number of the newest batches of each level that may be merged."""

    def append(self, batch: Batch) -> None:
        """Append a batch as it is."""
        self.batches.append(batch)
        self._firsts.append(batch.first_seq)
        self.sum += batch.sum

    def sum_upto(self, seq: int) -> int:
        """The sum without the batches that begin after `seq`, which are in memory only."""
        return (self.sum - _sum(self.batches[self.place(seq) + 1 :])) % SUMS

    def filed(self, batch: Batch) -> None:
        """A segment has the batch from now on. It may have left while it was written."""
        place = self.place(batch.first_seq)
        if place < 0 or self.batches[place] is not batch:
            self.sum += batch.sum
        batch.sum = 0

    def place(self, seq: int) -> int:
        """Index of the last batch that begins at `seq` or before; -1 if there is none."""
        return bisect_right(self._firsts, seq) - 1

    def first_since(self, ts: int) -> int | None:
        """Seq of the first record that was committed at `ts` (ms) or later, also a deleted one; None if there is none.
        Raises `SegmentError`."""
        at = bisect_left(self.batches, ts, key=attrgetter("last_ts"))
        if at == len(self.batches):
            return None
        batch = self.batches[at]
        if ts <= batch.first_ts:
            return batch.first_seq
        times = batch.columns().ts
        assert not isinstance(times, int)
        return batch.first_seq + bisect_left(times, ts)

    def drop_front(self, count: int) -> None:
        self.sum -= _sum(self.batches[:count])
        del self.batches[:count], self._firsts[:count]

    def keep(self, batches: Iterable[Batch]) -> None:
        """Keep only these batches, which are in order."""
        self.sum -= _sum(self.batches)
        self.batches[:] = batches
        self.sum += _sum(self.batches)
        self._firsts = [batch.first_seq for batch in self.batches]
        self.part()

    def part(self) -> None:
        """Keep the present batches from being merged with later ones."""
        self._runs = [0] * FINAL_LEVEL

    # Merging

    def merge_newest(self, level: int, topic_id: int) -> None:
        """Merge the newest batches of one level when there are `MERGE_FAN` of them. Call it for each new batch."""
        for lower in range(level):
            self._runs[lower] = 0
        while level < FINAL_LEVEL:
            self._runs[level] += 1
            if self._runs[level] < MERGE_FAN:
                return
            self._runs[level] = 0
            first = len(self.batches) - MERGE_FAN
            level = self._merge(first, first + MERGE_FAN, level + 1, topic_id).level
            if level == FINAL_LEVEL:
                self.part()

    def _merge(self, first: int, end: int, level: int, topic_id: int) -> Batch:
        whole = merged(self.batches[first:end], topic_id, level)
        self.sum += whole.sum - _sum(self.batches[first:end])
        self.batches[first:end] = [whole]
        self._firsts[first:end] = [whole.first_seq]
        return whole

    def unstored(self, upto: int, topic_id: int) -> list[Batch]:
        """The batches up to seq `upto` that no segment has yet. Merges small ones first."""
        stop = bisect_right(self._firsts, upto)
        at = stop
        while at and self.batches[at - 1].stored is None:
            at -= 1
        if at == stop:
            return []
        first = at
        while at < stop:
            end = self._end_of_run(at, stop)
            if end - at > 1:
                self._merge(at, end, FINAL_LEVEL, topic_id)
                stop -= end - at - 1
            self.batches[at].level = FINAL_LEVEL
            at += 1
        self.part()
        return self.batches[first:stop]

    def _end_of_run(self, at: int, stop: int) -> int:
        """The end (exclusive) of the small neighbouring batches from `at` on that make one batch of at most 1024
        records."""
        batches = self.batches
        end, count = at + 1, batches[at].count
        if batches[at].level == FINAL_LEVEL:
            return end
        while end < stop and batches[end].level < FINAL_LEVEL and count + batches[end].count <= 1024:
            if batches[end].first_seq != batches[end - 1].last_seq + 1:
                break
            count += batches[end].count
            end += 1
        return end

    # Reading

    def _from(self, start_seq: int) -> Iterator[Batch]:
        for place in range(max(self.place(start_seq), 0), len(self.batches)):
            if self.batches[place].last_seq >= start_seq:
                yield self.batches[place]

    def window(self, start_seq: int, limit: int, budget: int, upto: int) -> tuple[list[Slice], int]:
        """As `Records.window`, where there is no gap up to `upto`."""
        slices: list[Slice] = []
        for batch in self._from(start_seq):
            start = max(start_seq - batch.first_seq, batch.start)
            end = stop = min(batch.count, upto + 1 - batch.first_seq)
            if end <= start or not batch.live:
                if batch.first_seq > upto:
                    break
                continue
            mask: bytes | None = None
            positions: Sequence[int] | None = None
            if batch.flags is None:
                stop = min(stop, start + limit)
                taken = stop - start
            elif batch.remnant is not None:
                positions = batch.live_of_few(start, stop, limit)
                taken = len(positions)
                if taken == limit:
                    stop = positions[-1] + 1
            else:
                mask, taken = batch.live_mask(start, stop, limit)
                stop = start + len(mask)
            if taken:
                if positions is None and mask is not None and batch.few:
                    positions = ones(mask, start)
                if positions is None:
                    piece = Slice(batch.columns(), batch.first_seq, start, stop, mask)
                else:
                    piece = _chosen(batch, start, stop, positions)
                size = piece.size
                if size > budget:
                    piece.cut(budget, 0 if slices else 1)
                    if piece.stop > start:
                        slices.append(piece)
                    return slices, batch.first_seq + piece.stop - 1
                slices.append(piece)
                limit -= taken
                budget -= size
                if not limit and stop < end and batch.has_live(stop, end):
                    return slices, batch.first_seq + stop - 1
            if not limit:
                return slices, batch.first_seq + end - 1
        return slices, upto

    def places_of(self, seqs: Sequence[int]) -> Iterator[tuple[Batch, list[int]]]:
        """The batches with these seqs, which are ascending and distinct, each with the positions of its own. Leaves out
        seqs that no batch has."""
        at = 0
        while at < len(seqs):
            place = self.place(seqs[at])
            if place >= 0 and seqs[at] <= (last := self.batches[place].last_seq):
                end = bisect_right(seqs, last, at)
                first = self._firsts[place]
                yield self.batches[place], [seq - first for seq in seqs[at:end]]
                at = end
            elif place + 1 == len(self.batches):
                return
            else:
                at = bisect_left(seqs, self._firsts[place + 1], at)

    def chosen(self, seqs: Sequence[int]) -> list[Slice]:
        """The live ones of the records with these seqs, which are ascending and distinct. Raises `SegmentError`."""
        return [
            _chosen(batch, positions[0], positions[-1] + 1, positions)
            for batch, asked in self.places_of(seqs)
            if (positions := batch.live_at(asked))
        ]

    def pieces(self, start_seq: int, upto: int, limit: int, budget: int) -> tuple[list[Piece], int]:
        """Records from `start_seq` to `upto` as their batches have them, deleted ones with their flags.

        Returns about `limit` records and `budget` bytes at most, but at least one record if there is any; and the last
        seq that was examined. Raises `SegmentError`.
        """
        found: list[Piece] = []
        for batch in self._from(start_seq):
            start = max(start_seq - batch.first_seq, batch.start)
            stop = min(batch.count, upto - batch.first_seq + 1, start + limit)
            if batch.first_seq > upto:
                break
            if start >= stop:
                continue
            columns = batch.columns()
            fits = fitting(columns, start, stop, budget)
            if not fits and found:
                return found, batch.first_seq + start - 1
            stop = start + max(fits, 1)
            flags = None if batch.flags is None else bytes(batch.flags[start:stop])
            found.append(Piece(batch.first_seq + start, part(columns, start, stop), flags))
            limit -= stop - start
            budget -= columns.size(start, stop)
            if batch.first_seq + stop <= upto and (limit <= 0 or budget <= 0 or stop < batch.count):
                return found, batch.first_seq + stop - 1
        return found, upto

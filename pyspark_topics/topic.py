"""Topic state while a read is planned: from the catalog, then changed by each frame of the log.

The rules are those of the server's recovery: deletions and caps raise the floor, and records expire by their time. Two
steps are deferred, because they need the records themselves, which planning avoids to read:

- Caps are applied before each change that affects them (a deletion, new settings) and at the end, not after each write.
  The result is the same: between two such changes, an evicted record would be evicted at every later write too. Only
  topics with caps and with writes since the catalog are examined; of those capped by number, only topics with that many
  seqs in use.
- Deletions by tag are collected; the tasks evaluate the tags.

If gaps are requested (a stream from its position on, `includeTombstones`), expiry is evaluated in the same way: the
last expired record is searched, first in the index, then in its batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_topics import rows
from pyspark_topics.arrays import number
from pyspark_topics.deletions import Deletions
from pyspark_topics.frames import FrameError, Head, Records
from pyspark_topics.logfile import LogFile
from pyspark_topics.losses import Losses
from pyspark_topics.rows import Rows
from pyspark_topics.segment import Entry, Segment, data_name
from pyspark_topics.snapshot import Snapshot
from pyspark_topics.storage import File, Kept
from pyspark_topics.where import MAX_I64

RECORD_OVERHEAD = 16
"""Bytes that the server counts for each record besides its data, tag, node and meta."""
_sizes = Kept(64 << 20)
"""Seqs, tags and sizes of segments whose files are constant: a stream plans often, and caps need them each time."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Segment, and the range of seqs that may be in it."""

    first: int
    last: int
    size: int
    cold: bool


@dataclass(slots=True)
class Span:
    """Range of a topic's seqs in one log file, without those in segments."""

    low: int
    high: int


class Topic:
    """Floor, head and deletions of one topic. Records before `floor` or older than `oldest_ms` are gone.

    Without `fail`, damaged files are skipped and logged.
    """

    def __init__(
        self, snapshot: Snapshot, ident: int, name: str, config: dict[str, Any], epoch: int = 0, fail: bool = True
    ) -> None:
        self.shard = snapshot.shard
        self.ident = ident
        self.name = name
        self.epoch = epoch
        self.losses = Losses()
        self.head = 0
        self.floor = 1
        self.oldest_ms = 0
        self.waiting = False
        """True if routers made copies that the next checkpoint will write to files. Until then the topic ends before
        them, so that no reader skips them."""
        self.segments: list[Stored] = []
        self.flagged: dict[int, bytes] = {}
        self.deletions = Deletions()
        self.spans: dict[LogFile, Span] = {}
        self._snapshot = snapshot
        self._fail = fail
        self._window: list[Any] | None = None
        self._batches: dict[LogFile, array[int]] = {}
        """Offsets of the topic's batches in log files, without those in segments."""
        self._measured: dict[LogFile, int] = {}
        """Number of these batches that are in the window."""
        self._recent = Deletions()
        self._grown = False
        self._take(config)

    def _take(self, config: dict[str, Any]) -> None:
        self._ttl_ms: int = config.get("ttl_ms", 0)
        # A topic that rejects writes beyond its caps never evicts records.
        evicts = config.get("discard") != "reject"
        self._cap_records: int = config.get("cap_records", 0) if evicts else 0
        self._cap_bytes: int = config.get("cap_bytes", 0) if evicts else 0
        self.ephemeral = config.get("durability") == "ephemeral"

    # Effects of frames

    def wrote(self, log: LogFile, head: Head) -> None:
        """Add a batch. Raises `FrameError` if it does not follow the previous one."""
        last = head.first_seq + head.count - 1
        if last <= self.head:
            return  # the catalog includes it
        if head.first_seq != self.head + 1 and self._fail:
            raise FrameError(f'topic "{self.name}": a batch at seq {head.first_seq}, expected {self.head + 1}')
        self.head = last
        self.expire(head.ts_ms)
        self.spans.setdefault(log, Span(head.first_seq, last)).high = last
        self._batches.setdefault(log, array("Q")).append(head.offset)
        self._grown = True

    def configured(self, config: dict[str, Any], now_ms: int, next_seq: int, floor: int, lost: int) -> None:
        self.settle(now_ms)
        if self.ephemeral and self.head + 1 < next_seq:
            # Records written while the topic was ephemeral are in no file.
            self.losses.tail(self.head + 1, next_seq - 1)
        self._take(config)
        self.skipped(next_seq)
        if floor > self.floor:
            self.floor = floor
        self.losses.add(lost, "cap")
        self._grown = True
        self.settle(now_ms)

    def pushed_out(self, floor: int, now_ms: int) -> None:
        """Evict records before `floor`: a cap removed them because of records that no file has."""
        self.expire(now_ms)
        self.floor = max(self.floor, floor)
        self.losses.add(floor - 1, "cap")

    def skipped(self, next_seq: int) -> None:
        """Mark seqs below `next_seq` as used, with or without records."""
        self.head = max(self.head, next_seq - 1)

    def deleted(self, before: int | None, match: tuple[str, bytes] | None, bound: int, now_ms: int) -> None:
        """Delete records before `bound` and `before`; with a `match`, only those whose tag matches."""
        end = bound if before is None else min(bound, before)
        self.settle(now_ms)
        if match is None:
            self.floor = max(self.floor, end)
        else:
            self.deletions.add(*match, end)
            self._recent.add(*match, end)

    def acked(self, seqs: list[int], now_ms: int) -> None:
        """Delete single records: jobs of a queue that are done."""
        self.settle(now_ms)
        self.deletions.seqs.extend(seqs)
        self._recent.seqs.extend(seqs)

    def expire(self, now_ms: int) -> None:
        if self._ttl_ms:
            self.oldest_ms = max(self.oldest_ms, now_ms - self._ttl_ms)

    def settle(self, now_ms: int) -> None:
        """Apply age, then caps, as of `now_ms`."""
        self.expire(now_ms)
        if not self._grown or not (self._cap_records or self._cap_bytes):
            return
        self._grown = False
        if self._cap_bytes or self.head - self.floor >= self._cap_records:
            self._evict()

    # Caps

    def _evict(self) -> None:
        window = self._measure()
        count = sum(map(len, window))
        if not count:
            return
        seqs = pa.chunked_array([part["seq"] for part in window])
        lost = max(count - self._cap_records, 0) if self._cap_records else 0
        if self._cap_bytes:
            sizes = pa.chunked_array([part["size"] for part in window])
            before = pc.subtract(pc.cumulative_sum(sizes), sizes)
            from_here = pc.subtract(pc.sum(sizes), before)
            cap = number(min(self._cap_bytes, MAX_I64))
            lost = max(lost, pc.sum(pc.greater(from_here, cap)).as_py())
        # The newest record is kept, whatever its size.
        lost = min(lost, count - 1)
        if lost:
            self.losses.add(seqs[lost - 1].as_py(), "cap")
        self.floor = max(self.floor, seqs[lost].as_py())

    def _measure(self) -> list[Any]:
        """Seq, tag and size (bytes) of all live records, as record batches in order."""
        window = self._window or []
        if self._window is None:
            for stored in self.segments:
                if stored.last >= self.floor:
                    window += self._stored_sizes(stored)
        for log, offsets in self._batches.items():
            known = self._measured.get(log, 0)
            window += self._sizes(log, map(partial(Head, log.view), offsets[known:]), self.floor)
            self._measured[log] = len(offsets)
        kept = []
        for part in window:
            live = pc.greater_equal(part["seq"], number(self.floor))
            if self._recent:
                live = pc.and_(live, pc.invert(self._recent.dead(part["tag"], part["seq"])))
            if len(part := part.filter(live)):
                kept.append(part)
        self._recent = Deletions()
        self._window = kept
        return kept

    def _stored_sizes(self, stored: Stored) -> list[Any]:
        file = self.file(stored)
        flagged = tuple(each for each in self.flagged.items() if stored.first <= each[0] <= stored.last)
        key = file, flagged, self._fail
        found: list[Any] | None = _sizes.get(key)
        if found is None:
            segment = self._open(stored)
            found = list(self._sizes(segment, segment.heads(), 0 if file.constant else self.floor))
            if file.constant:
                _sizes.put(key, found, sum(part.nbytes for part in found))
        return found

    def _sizes(self, source: rows.Source, heads: Iterable[Head], low: int) -> Iterable[Any]:
        wanted = {self.ident: Rows(self.name, low, self.head, flagged=self.flagged)}
        # Small frames are joined; frames of ordinary size are handled one by one, so that their payload is not copied.
        for group in rows.groups(source, heads, wanted, 1000, 256 << 10):
            size: Any = number(RECORD_OVERHEAD)
            columns = [group.column(place) for place in range(4)]
            for column in columns:
                size = pc.add(size, pc.fill_null(pc.binary_length(column), number(0, pa.int32())))
            part = pa.RecordBatch.from_arrays([group.seqs, columns[1], size], ["seq", "tag", "size"])
            live = group.live({self.ident: Deletions()})
            yield part if live is None else part.filter(live)

    def file(self, stored: Stored) -> File:
        """The file of a segment. Raises `ColdPathMissing`."""
        return self._snapshot.segment(data_name(self.ident, stored.first), stored.cold)

    def _open(self, stored: Stored) -> Segment:
        return Segment(self.file(stored), self.ident, stored.size, self.name, self._fail)

    # Positions

    def batches(self, low: int, high: int) -> Iterator[tuple[rows.Source, Entry]]:
        """The batches that overlap seqs `low` to `high`, in order, from the indexes if there are any."""
        for stored in self.segments:
            if stored.last >= low and stored.first <= high:
                segment = self._open(stored)
                for entry in segment.entries():
                    if entry.first_seq <= high and entry.first_seq + entry.count > low:
                        yield segment, entry
        for log, offsets in self._batches.items():
            if self.spans[log].high >= low and self.spans[log].low <= high:
                for offset in offsets:
                    head = Head(log.view, offset)
                    if head.first_seq <= high and head.first_seq + head.count > low:
                        yield log, Entry.of(head)

    def first_since(self, ms: int) -> int:
        """The first seq from `floor` on whose record was written at `ms` (since 1970) or later; else `head` + 1."""
        for source, entry in self.batches(self.floor, self.head):
            if entry.last_ts is not None and entry.last_ts < ms:
                continue
            if entry.first_ts >= ms:
                return max(entry.first_seq, self.floor)
            times = Records(source.buffer, source.view, source.head(entry)).times
            below = entry.count if times is None else rows.below(times, ms)
            if below < entry.count:
                return max(entry.first_seq + below, self.floor)
        return self.head + 1

    def expired(self) -> None:
        """Raise the floor above expired records, and record the loss. `settle` must have been called."""
        if self.ephemeral or not self.oldest_ms:
            return
        floor = self.first_since(self.oldest_ms)
        if floor <= self.floor:
            return
        wanted = {self.ident: Rows(self.name, self.floor, floor - 1, flagged=self.flagged)}
        deletions = {self.ident: self.deletions.after(self.floor)}
        lost = 0
        for source, entry in self.batches(self.floor, floor - 1):
            for group in rows.groups(source, [source.head(entry)], wanted):
                live = group.live(deletions)
                last = pc.max(group.seqs if live is None else group.seqs.filter(live)).as_py()
                lost = max(lost, last or 0)
        if lost:
            self.losses.add(lost, "ttl")
        self.floor = floor

    # Result

    def wanted(self, low: int, high: int) -> Rows | None:
        """The live rows of seqs `low` to `high`; None if there cannot be any."""
        low = max(low, self.floor)
        if low > high or self.ephemeral:
            return None
        flagged = {first: flags for first, flags in self.flagged.items() if first <= high and first + len(flags) > low}
        deletions = self.deletions.after(low)
        return Rows(self.name, low, high, self.oldest_ms, flagged=flagged, deletions=deletions, epoch=self.epoch)

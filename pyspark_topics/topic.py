"""One topic while a read is planned: what the catalog says of it, then what each frame of the log does to it.

The same rules as the server's when it starts: the floor moves up with deletions and caps, and what has expired is told
by its time. Two things are done late, because they need the records themselves, which planning leaves alone if it can:

- Caps are applied before each change that would make a difference (a deletion, new settings) and at the end, not
  after each write. That comes to the same: between two such changes a record, once evicted, would be so at every later
  write. Only topics that have caps and were written to since the catalog are looked at, and of those that are capped
  by number only those with that many seqs in use.
- Deletions by tag are collected; the tasks look at the tags.

Where somebody asks what is missing (a stream from its position on, `includeTombstones`), age is looked at in the same
way: the last record that expired is looked for, first in the index, then in its batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_topics import rows
from pyspark_topics.deletions import Deletions
from pyspark_topics.directory import Shard
from pyspark_topics.frames import FrameError, Head, Records
from pyspark_topics.logfile import LogFile
from pyspark_topics.losses import Losses
from pyspark_topics.rows import Rows
from pyspark_topics.segment import Entry, Segment, data_path, last_ts

RECORD_OVERHEAD = 16
"""What the server counts for each record on top of its data, tag, node and meta."""
MAX_I64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Stored:
    """A segment, and the seqs that may be in it."""

    first: int
    last: int
    size: int
    cold: bool

    def path(self, shard: Shard, topic_id: int) -> Path:
        """Raises `ColdPathMissing`."""
        return data_path(shard.base(self.cold), topic_id, self.first)


@dataclass(slots=True)
class Span:
    """The seqs that one file of the log has of a topic, besides what segments have."""

    low: int
    high: int


class Topic:
    """Floor, head and deletions of one topic. Records before `floor` or older than `oldest_ms` are gone.

    Without `fail`, damaged files are passed over with a line in the log.
    """

    def __init__(
        self, shard: Shard, ident: int, name: str, config: dict[str, Any], epoch: int = 0, fail: bool = True
    ) -> None:
        self.shard = shard
        self.ident = ident
        self.name = name
        self.epoch = epoch
        self.losses = Losses()
        self.head = 0
        self.floor = 1
        self.oldest_ms = 0
        self.waiting = False
        """Copies belong here that routers made and that the next checkpoint will bring: until then the topic ends
        before them, so that no reader passes them by."""
        self.segments: list[Stored] = []
        self.flagged: dict[int, bytes] = {}
        self.deletions = Deletions()
        self.spans: dict[LogFile, Span] = {}
        self._fail = fail
        self._window: list[Any] | None = None
        self._batches: dict[LogFile, array[int]] = {}
        """Where the batches begin that the log has besides segments."""
        self._measured: dict[LogFile, int] = {}
        """How many of them are in the window."""
        self._recent = Deletions()
        self._grown = False
        self._take(config)

    def _take(self, config: dict[str, Any]) -> None:
        self._ttl_ms: int = config.get("ttl_ms", 0)
        # A topic that refuses what is too much never loses what it has.
        evicts = config.get("discard") != "reject"
        self._cap_records: int = config.get("cap_records", 0) if evicts else 0
        self._cap_bytes: int = config.get("cap_bytes", 0) if evicts else 0
        self.ephemeral = config.get("durability") == "ephemeral"

    # What frames say

    def wrote(self, log: LogFile, head: Head) -> None:
        """A batch. Raises `FrameError` if it does not follow the one before."""
        last = head.first_seq + head.count - 1
        if last <= self.head:
            return  # the catalog was made after it
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
            # What was written as such is in no file.
            self.losses.tail(self.head + 1, next_seq - 1)
        self._take(config)
        self.skipped(next_seq)
        if floor > self.floor:
            self.floor = floor
        self.losses.add(lost, "cap")
        self._grown = True
        self.settle(now_ms)

    def pushed_out(self, floor: int, now_ms: int) -> None:
        """Records before this went by a cap, because of some that no file has."""
        self.expire(now_ms)
        self.floor = max(self.floor, floor)
        self.losses.add(floor - 1, "cap")

    def skipped(self, next_seq: int) -> None:
        """Seqs below `next_seq` are used, though there may be no records."""
        self.head = max(self.head, next_seq - 1)

    def deleted(self, before: int | None, match: tuple[str, bytes] | None, bound: int, now_ms: int) -> None:
        """Records from `bound` on stay, and from `before` on; with a `match`, those with other tags, too."""
        end = bound if before is None else min(bound, before)
        self.settle(now_ms)
        if match is None:
            self.floor = max(self.floor, end)
        else:
            self.deletions.add(*match, end)
            self._recent.add(*match, end)

    def acked(self, seqs: list[int], now_ms: int) -> None:
        """Records that are deleted one by one: jobs of a queue that are done."""
        self.settle(now_ms)
        self.deletions.seqs.extend(seqs)
        self._recent.seqs.extend(seqs)

    def expire(self, now_ms: int) -> None:
        if self._ttl_ms:
            self.oldest_ms = max(self.oldest_ms, now_ms - self._ttl_ms)

    def settle(self, now_ms: int) -> None:
        """Everything up to now: what is too old goes, then what is too much."""
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
            cap = pa.scalar(min(self._cap_bytes, MAX_I64), pa.int64())
            lost = max(lost, pc.sum(pc.greater(from_here, cap)).as_py())
        # The newest record stays, whatever its size.
        lost = min(lost, count - 1)
        if lost:
            self.losses.add(seqs[lost - 1].as_py(), "cap")
        self.floor = max(self.floor, seqs[lost].as_py())

    def _measure(self) -> list[Any]:
        """Seq, tag and size of all live records, in batches, in order."""
        window = self._window or []
        if self._window is None:
            for stored in self.segments:
                if stored.last >= self.floor:
                    segment = self._open(stored)
                    window += self._sizes(segment, segment.heads())
        for log, offsets in self._batches.items():
            known = self._measured.get(log, 0)
            window += self._sizes(log, map(partial(Head, log.view), offsets[known:]))
            self._measured[log] = len(offsets)
        kept = []
        for part in window:
            live = pc.greater_equal(part["seq"], pa.scalar(self.floor, pa.int64()))
            if self._recent:
                live = pc.and_(live, pc.invert(self._recent.dead(part["tag"], part["seq"])))
            if len(part := part.filter(live)):
                kept.append(part)
        self._recent = Deletions()
        self._window = kept
        return kept

    def _sizes(self, source: rows.Source, heads: Iterable[Head]) -> Iterable[Any]:
        wanted = {self.ident: Rows(self.name, self.floor, self.head, flagged=self.flagged)}
        # Small frames together, those of ordinary size each by itself, so that their payload is not copied.
        for group in rows.groups(source, heads, wanted, None, 1000, 256 << 10):
            found, _ = group
            counts, ends = rows.extent(found)
            size: Any = pa.scalar(RECORD_OVERHEAD, pa.int64())
            columns = [rows.column(found, place, counts) for place in range(4)]
            for column in columns:
                size = pc.add(size, pc.fill_null(pc.binary_length(column), 0))
            seqs = rows.sequence(found, counts, ends)
            part = pa.RecordBatch.from_arrays([seqs, columns[1], size], ["seq", "tag", "size"])
            live = rows.live(group, ends, lambda: None, seqs, {self.ident: Deletions()})
            yield part if live is None else part.filter(live)

    def _open(self, stored: Stored) -> Segment:
        return Segment(str(stored.path(self.shard, self.ident)), self.ident, stored.size, self.name, self._fail)

    # Places

    def batches(self, low: int, high: int) -> Iterator[tuple[rows.Source, Entry]]:
        """The batches that hold something of seqs `low` to `high`, in order, from the indexes if there are any."""
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
                        yield log, Entry(head.first_seq, offset, head.length, head.count, head.ts_ms, last_ts(head))

    def first_since(self, ms: int) -> int:
        """The first seq from `floor` on whose record was written at `ms` or later; `head` + 1 if there is none."""
        for source, entry in self.batches(self.floor, self.head):
            if entry.last_ts is not None and entry.last_ts < ms:
                continue
            if entry.first_ts >= ms:
                return max(entry.first_seq, self.floor)
            times = Records(source.buffer, source.view, Head(source.view, entry.offset)).times
            below = entry.count if times is None else rows.below(times, ms)
            if below < entry.count:
                return max(entry.first_seq + below, self.floor)
        return self.head + 1

    def expired(self) -> None:
        """Move the floor up behind what is too old, and remember the loss. `settle` must have been called."""
        if self.ephemeral or not self.oldest_ms:
            return
        floor = self.first_since(self.oldest_ms)
        if floor <= self.floor:
            return
        wanted = {self.ident: Rows(self.name, self.floor, floor - 1, flagged=self.flagged)}
        deletions = {self.ident: self.deletions.after(self.floor)}
        lost = 0
        for source, entry in self.batches(self.floor, floor - 1):
            for group in rows.groups(source, [Head(source.view, entry.offset)], wanted):
                counts, ends = rows.extent(group[0])
                seqs = rows.sequence(group[0], counts, ends)
                live = rows.live(group, ends, partial(rows.column, group[0], 1, counts), seqs, deletions)
                last = pc.max(seqs if live is None else seqs.filter(live)).as_py()
                lost = max(lost, last or 0)
        if lost:
            self.losses.add(lost, "ttl")
        self.floor = floor

    # The outcome

    def wanted(self, low: int, high: int) -> Rows | None:
        """What is live between these seqs; None if nothing can be."""
        low = max(low, self.floor)
        if low > high or self.ephemeral:
            return None
        flagged = {first: flags for first, flags in self.flagged.items() if first <= high and first + len(flags) > low}
        return Rows(self.name, low, high, self.oldest_ms, flagged=flagged, deletions=self.deletions.after(low))

"""One topic while a read is planned: what the catalog says of it, then what each frame of the log does to it.

The same rules as the server's when it starts: the floor moves up with deletions and caps, and what has expired is told
by its time. Two things are done late, because they need the records themselves, which planning leaves alone if it can:

- Caps are applied before each change that would make a difference (a deletion by tag, new settings) and at the end, not
  after each write. That comes to the same: between two such changes a record, once evicted, would be so at every later
  write. Only topics that have caps and were written to since the catalog are looked at, and of those that are capped
  by number only those with that many seqs in use.
- Deletions by tag are collected; the tasks look at the tags.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_topics import rows
from pyspark_topics.deletions import Deletions
from pyspark_topics.directory import Shard
from pyspark_topics.frames import FrameError, Head
from pyspark_topics.logfile import LogFile
from pyspark_topics.rows import Rows
from pyspark_topics.segment import Segment, data_path

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
    """Floor, head and deletions of one topic. Records before `floor` or older than `oldest_ms` are gone."""

    def __init__(self, shard: Shard, ident: int, name: str, config: dict[str, Any]) -> None:
        self._shard = shard
        self.ident = ident
        self.name = name
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
        self._window: list[Any] | None = None
        self._unmeasured: dict[LogFile, array[int]] = {}
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
        if head.first_seq != self.head + 1:
            raise FrameError(f'topic "{self.name}": a batch at seq {head.first_seq}, expected {self.head + 1}')
        self.head = last
        self.expire(head.ts_ms)
        self.spans.setdefault(log, Span(head.first_seq, last)).high = last
        self._unmeasured.setdefault(log, array("Q")).append(head.offset)
        self._grown = True

    def configured(self, config: dict[str, Any], now_ms: int, next_seq: int, floor: int) -> None:
        self.settle(now_ms)
        if self.ephemeral and self.head + 1 < next_seq:
            # What was written as such is in no file, and what was before is gone.
            self.floor = next_seq
        self._take(config)
        self.skipped(next_seq)
        self.floor = max(self.floor, floor)
        self._grown = True
        self.settle(now_ms)

    def skipped(self, next_seq: int) -> None:
        """Seqs below `next_seq` are used, though there may be no records."""
        self.head = max(self.head, next_seq - 1)

    def deleted(self, before: int | None, match: tuple[str, bytes] | None, bound: int, now_ms: int) -> None:
        """Records from `bound` on stay, and from `before` on; with a `match`, those with other tags, too."""
        end = bound if before is None else min(bound, before)
        if match is None:
            self.expire(now_ms)
            self.floor = max(self.floor, end)
        else:
            self.settle(now_ms)
            self.deletions.add(*match, end)
            self._recent.add(*match, end)

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
        self.floor = max(self.floor, seqs[min(lost, count - 1)].as_py())

    def _measure(self) -> list[Any]:
        """Seq, tag and size of all live records, in batches, in order."""
        window = self._window or []
        if self._window is None:
            for stored in self.segments:
                if stored.last >= self.floor:
                    path = stored.path(self._shard, self.ident)
                    segment = Segment(str(path), self.ident, stored.size)
                    window += self._measured(segment, segment.heads())
        for log, offsets in self._unmeasured.items():
            window += self._measured(log, map(partial(Head, log.view), offsets))
        self._unmeasured = {}
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

    def _measured(self, source: rows.Source, heads: Iterable[Head]) -> Iterable[Any]:
        wanted = {self.ident: Rows(self.name, self.floor, self.head, 0, self.flagged)}
        # Small frames together, those of ordinary size each by itself, so that their payload is not copied.
        for group in rows.groups(source, heads, wanted, 1000, 256 << 10):
            found, _ = group
            counts, ends = rows.extent(found)
            size: Any = pa.scalar(RECORD_OVERHEAD, pa.int64())
            columns = [rows.column(found, place, counts) for place in range(4)]
            for column in columns:
                size = pc.add(size, pc.fill_null(pc.binary_length(column), 0))
            seqs = rows.sequence(found, counts, ends)
            part = pa.RecordBatch.from_arrays([seqs, columns[1], size], ["seq", "tag", "size"])
            live = rows.live(group, ends, columns[1], seqs, {self.ident: Deletions()})
            yield part if live is None else part.filter(live)

    # The outcome

    def wanted(self, low: int, high: int) -> Rows | None:
        """What is live between these seqs; None if nothing can be."""
        low = max(low, self.floor)
        if low > high or self.ephemeral:
            return None
        flagged = {first: flags for first, flags in self.flagged.items() if first <= high and first + len(flags) > low}
        return Rows(self.name, low, high, self.oldest_ms, flagged, self.deletions.after(low))

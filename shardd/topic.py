"""One topic in memory: its batches, its floors, its clocks.

A batch is kept as the frame it was written in and taken apart when it is read. Small batches are merged as they age,
32 at a time and twice at most, so that a topic costs per thousand records, however small the writes were.

Two positions, because a write gets its seqs before it may be seen: `next_seq` is what the next write gets,
`head_seq` is the last record readers may see.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from proto.frame import Buffer, Columns, decode_batch, encode_batch, merge
from proto.limits import RECORD_OVERHEAD
from shardd.config import TopicConfig

MERGE_FAN = 32
FINAL_LEVEL = 2
FINAL_RECORDS = 512
FINAL_BYTES = 256 << 10
"""Batches of this many records or bytes are never merged."""


class Batch:
    """Consecutive records. `buffer` starts with a batch frame; `size` is what they count towards the topic's bytes."""

    __slots__ = ("buffer", "count", "first_seq", "level", "size")

    def __init__(self, buffer: Buffer, first_seq: int, columns: Columns, level: int = 0) -> None:
        self.buffer = buffer
        self.first_seq = first_seq
        self.count = columns.count
        self.size = columns.size(0, columns.count) + RECORD_OVERHEAD * columns.count
        self.level = FINAL_LEVEL if self.count >= FINAL_RECORDS or self.size >= FINAL_BYTES else level

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    def columns(self) -> Columns:
        return decode_batch(self.buffer)


class Slice:
    """Records `start` to `stop` (exclusive) of a batch."""

    __slots__ = ("columns", "first_seq", "start", "stop")

    def __init__(self, columns: Columns, first_seq: int, start: int, stop: int) -> None:
        self.columns = columns
        self.first_seq = first_seq
        self.start = start
        self.stop = stop


class Topic:
    def __init__(self, name: str, ident: int, epoch: int, config: TopicConfig) -> None:
        self.name = name
        self.id = ident
        self.epoch = epoch
        self.config = config
        self.assigned_config = config
        """What the config will be once everything staged is committed."""
        self.next_seq = 1
        self.head_seq = 0
        self.records = 0
        self.bytes = 0
        self.last_ts = 0
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None
        self.gated_no = 0
        """Number of the newest frame of this topic that had to wait for a sync."""
        self.parked: dict[object, Callable[[], Any]] = {}
        """Reads that wait for records, each with what to call when there may be some."""
        self._batches: list[Batch] = []
        self._firsts: list[int] = []
        self._runs = [0] * FINAL_LEVEL

    @property
    def earliest_seq(self) -> int:
        """First live record; `head_seq + 1` if there is none."""
        return self._firsts[0] if self._firsts else self.head_seq + 1

    @property
    def batches(self) -> Sequence[Batch]:
        return self._batches

    def commit_time(self, now_ms: int) -> int:
        """`$ts` of a write made now: the clock, but never less than that of an earlier write."""
        self.last_ts = max(self.last_ts, now_ms)
        return self.last_ts

    def add(self, buffer: Buffer, first_seq: int, columns: Columns) -> Batch:
        """Make the records of a batch frame visible. They must follow the head."""
        assert first_seq == self.head_seq + 1
        batch = Batch(buffer, first_seq, columns)
        self._batches.append(batch)
        self._firsts.append(first_seq)
        self.head_seq = batch.last_seq
        self.records += batch.count
        self.bytes += batch.size
        self._age(batch.level)
        return batch

    def _age(self, level: int) -> None:
        """Merge the newest batches of one level once there are enough of them."""
        runs = self._runs
        for lower in range(level):
            runs[lower] = 0
        while level < FINAL_LEVEL:
            runs[level] += 1
            if runs[level] < MERGE_FAN:
                return
            runs[level] = 0
            young = self._batches[-MERGE_FAN:]
            columns = merge([b.columns() for b in young])
            first_seq = young[0].first_seq
            head = encode_batch(columns, self.id, first_seq).head
            del self._batches[-MERGE_FAN:], self._firsts[-MERGE_FAN:]
            merged = Batch(head, first_seq, columns, level + 1)
            self._batches.append(merged)
            self._firsts.append(first_seq)
            if merged.level == FINAL_LEVEL:
                self._runs = [0] * FINAL_LEVEL
            level = merged.level

    def window(self, start_seq: int, limit: int, budget: int) -> list[Slice]:
        """Up to `limit` records from `start_seq` on, whose payload is at most `budget` bytes, but at least one record
        if there is any."""
        slices: list[Slice] = []
        at = max(bisect_right(self._firsts, start_seq) - 1, 0)
        while limit > 0 and at < len(self._batches):
            batch = self._batches[at]
            start = max(start_seq - batch.first_seq, 0)
            stop = min(batch.count, start + limit)
            if start < stop:
                columns = batch.columns()
                size = columns.size(start, stop)
                if size > budget:
                    fits = _fitting(columns, start, stop, budget)
                    if fits or not slices:
                        slices.append(Slice(columns, batch.first_seq, start, start + max(fits, 1)))
                    break
                slices.append(Slice(columns, batch.first_seq, start, stop))
                limit -= stop - start
                budget -= size
            at += 1
        return slices


def _fitting(columns: Columns, start: int, stop: int, budget: int) -> int:
    """How many records from `start` on have at most `budget` bytes together."""

    def size_up_to(end: int) -> int:
        return columns.size(start, end)

    return bisect_right(range(start + 1, stop + 1), budget, key=size_up_to)

"""A batch in memory: a frame, where it is, and which of its records are still live."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, compress
from typing import Any, Protocol

from proto.format.frame import DELETED, Buffer, Columns, decode_batch, encode_batch, merge
from proto.model.limits import RECORD_OVERHEAD
from shardd.storage.errors import SegmentError

FINAL_LEVEL = 2
FINAL_RECORDS = 512
FINAL_BYTES = 256 << 10
"""Batches of this many records or bytes are never merged."""
FEW = 64
"""Up to so many records are counted one by one, rather than all of the batch anew."""

_LIVE = bytes(0 if byte == DELETED else 1 for byte in range(256))


class Stored(Protocol):
    """A frame in a segment file."""

    @property
    def segment(self) -> Any:
        """The segment it is in."""

    def load(self) -> memoryview:
        """The frame's bytes, whole. Valid as long as the view is held."""


class Batch:
    """Consecutive records, of which those before `start` are gone and those flagged in `flags` are deleted.

    `buffer` is the frame in memory, None if only the file has it; `stored` is where the file has it, None if the log is
    the only place. `live` records with `live_size` bytes are left.
    """

    __slots__ = (
        "buffer",
        "count",
        "filed",
        "first_seq",
        "first_ts",
        "flags",
        "last_ts",
        "level",
        "live",
        "live_size",
        "size",
        "start",
        "stored",
        "written",
    )

    def __init__(self, buffer: Buffer | None, first_seq: int, columns: Columns, level: int = 0) -> None:
        count = columns.count
        self.buffer = buffer
        self.stored: Stored | None = None
        self.written = 0
        """`deleted` as the file has it."""
        self.filed = 0
        """The check of the delete flags that the file has, see `shardd.storage.segment`."""
        self.first_seq = first_seq
        self.count = count
        ts = columns.ts
        self.first_ts, self.last_ts = (ts, ts) if isinstance(ts, int) else (ts[0], ts[-1])
        self.size = self.live_size = columns.size(0, count) + RECORD_OVERHEAD * count
        self.live = count
        self.start = 0
        self.flags: bytearray | None = None
        self.level = FINAL_LEVEL if count >= FINAL_RECORDS or self.size >= FINAL_BYTES else level

    @classmethod
    def of_file(
        cls, stored: Stored, first_seq: int, count: int, times: tuple[int, int], size: int, flags: bytes
    ) -> Batch:
        """A batch that only a segment has; `flags` are its delete flags there."""
        batch = cls.__new__(cls)
        batch.buffer = None
        batch.stored = stored
        batch.first_seq = first_seq
        batch.count = batch.live = count
        batch.first_ts, batch.last_ts = times
        batch.size = batch.live_size = size
        batch.start = 0
        batch.flags = None
        batch.level = FINAL_LEVEL
        if DELETED in flags:
            batch.flags = bytearray(flags)
            batch._recount()
        batch.written = batch.deleted
        batch.filed = 0
        return batch

    def resume(self, start: int, flags: bytes | None, live_size: int) -> None:
        """What is gone of it, as somebody remembers: nothing is read."""
        self.start = start
        self.flags = None if flags is None else bytearray(flags)
        self.live = self.count - start if flags is None else self.mask(start, self.count).count(1)
        self.live_size = live_size

    @property
    def deleted(self) -> int:
        """How many records are flagged."""
        return 0 if self.flags is None else self.flags.count(DELETED)

    def flag(self, flags: bytes) -> None:
        """Delete what these flags say, besides what is deleted already."""
        self.delete([place for place, byte in enumerate(flags) if byte == DELETED])

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    @property
    def first_live(self) -> int | None:
        """Seq of the first record that is left."""
        if not self.live:
            return None
        if self.flags is None:
            return self.first_seq + self.start
        return self.first_seq + self.mask(self.start, self.count).index(1) + self.start

    @property
    def last_live(self) -> int | None:
        if not self.live:
            return None
        if self.flags is None:
            return self.last_seq
        return self.first_seq + len(self.flags.rstrip(bytes([DELETED]))) - 1

    def columns(self) -> Columns:
        """The records. Raises the error of the file."""
        if self.buffer is not None:
            return decode_batch(self.buffer)
        assert self.stored is not None
        return decode_batch(self.stored.load())

    def mask(self, start: int, stop: int) -> bytes:
        """1 for each record of the range that is not deleted, 0 for the others."""
        if self.flags is None:
            return b"\1" * (stop - start)
        return bytes(self.flags[start:stop]).translate(_LIVE)

    def delete_flags(self) -> bytes:
        """One byte per record, as a file has them. What was lost is not deleted: the topic's floor tells that."""
        return bytes(self.count) if self.flags is None else bytes(self.flags)

    def cut(self, start: int) -> None:
        """Everything before the `start`-th record is gone."""
        if start <= self.start:
            return
        self.start = start
        if start >= self.count:
            self.live = self.live_size = 0
        else:
            self._recount()

    def delete(self, positions: Sequence[int]) -> None:
        """Flag records as deleted. Positions that are gone already change nothing."""
        if self.flags is None:
            self.flags = bytearray(self.count)
        columns = self._countable() if len(positions) <= FEW else None
        if columns is None:
            for position in positions:
                self.flags[position] = DELETED
            self._recount()
            return
        for position in positions:
            if self.flags[position] != DELETED and position >= self.start:
                self.live -= 1
                self.live_size -= columns.size(position, position + 1) + RECORD_OVERHEAD
            self.flags[position] = DELETED

    def delete_from(self, start: int) -> None:
        """Flag the `start`-th record and all that follow as deleted."""
        if self.flags is None:
            self.flags = bytearray(self.count)
        self.flags[start:] = bytes([DELETED]) * (self.count - start)
        if start <= self.start:
            self.live = self.live_size = 0
        else:
            self._recount()

    def _countable(self) -> Columns | None:
        """The records, for counting only. None if the file is damaged: what nobody can read must still be able to go,
        so its bytes are then taken in proportion to its records."""
        try:
            return self.columns()
        except SegmentError:
            return None

    def _recount(self) -> None:
        mask = None if self.flags is None else self.mask(self.start, self.count)
        self.live = self.count - self.start if mask is None else mask.count(1)
        columns = self._countable()
        if columns is None:
            self.live_size = self.size * self.live // self.count
        elif mask is None:
            self.live_size = columns.size(self.start, self.count) + RECORD_OVERHEAD * self.live
        else:
            self.live_size = sum(compress(columns.sizes(self.start, self.count), mask)) + RECORD_OVERHEAD * self.live

    def start_to_lose(self, records: int, size: int) -> int:
        """Where to cut so that at least `records` live ones and `size` live bytes go, and no more than needed.

        At most everything: `count` if even that is not enough.
        """
        if records >= self.live or size >= self.live_size:
            return self.count
        gone = max(records, self._worth(size) if size > 0 else 0, 0)
        if self.flags is None:
            return min(self.start + gone, self.count)
        places = list(compress(range(self.start, self.count), self.mask(self.start, self.count)))
        return places[gone] if gone < len(places) else self.count

    def _worth(self, size: int) -> int:
        """How many live records, from the first on, have `size` bytes together."""
        columns = self._countable()
        start = self.start
        if columns is None:
            return -(-size * self.live // self.live_size)
        if self.flags is None:

            def lost(end: int) -> int:
                return columns.size(start, end) + RECORD_OVERHEAD * (end - start)

            return bisect_left(range(start, self.count + 1), size, key=lost)
        sizes = compress(columns.sizes(start, self.count), self.mask(start, self.count))
        return bisect_left(list(accumulate((s + RECORD_OVERHEAD for s in sizes), initial=0)), size)

    def expired(self, oldest_ts: int) -> int:
        """How many records, from the batch's beginning, have a commit time before `oldest_ts`."""
        if self.last_ts < oldest_ts:
            return self.count
        if self.first_ts >= oldest_ts:
            return 0
        columns = self._countable()
        return 0 if columns is None or isinstance(columns.ts, int) else bisect_left(columns.ts, oldest_ts)


def merged(batches: Sequence[Batch], topic_id: int, level: int) -> Batch:
    """Neighbouring batches as one, with what is gone of them still gone."""
    columns = merge([batch.columns() for batch in batches])
    first_seq = batches[0].first_seq
    whole = Batch(encode_batch(columns, topic_id, first_seq).head, first_seq, columns, level)
    if any(batch.flags is not None or batch.start for batch in batches):
        whole.start = batches[0].start
        if any(batch.flags is not None for batch in batches):
            whole.flags = bytearray(b"".join(batch.delete_flags() for batch in batches))
        whole._recount()
    return whole


def fitting(columns: Columns, start: int, stop: int, budget: int) -> int:
    """How many records from `start` on have at most `budget` bytes together."""

    def size_up_to(end: int) -> int:
        return columns.size(start, end)

    return bisect_right(range(start + 1, stop + 1), budget, key=size_up_to)

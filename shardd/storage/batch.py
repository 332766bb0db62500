"""A batch in memory: one frame, its location, and which of its records are live."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, compress
from typing import Any, Protocol

from proto.format.buffer import Buffer
from proto.format.columns import Columns, merge
from proto.format.frame import DELETED, content_hash, decode_batch, encode_batch
from proto.model.limits import RECORD_OVERHEAD
from shardd.storage.errors import SegmentError
from shardd.storage.remnant import SPARSE, Remnant, Remnants

FINAL_LEVEL = 2
"""How often a batch is merged at most; `level` counts."""
FINAL_RECORDS = 512
FINAL_BYTES = 256 << 10
"""Batches with at least `FINAL_RECORDS` records or `FINAL_BYTES` bytes are never merged."""
AHEAD = 64
"""How many records more than are wanted are looked at first, where some are deleted."""

FRESH = 1024
"""Batches whose columns are kept, of at most `FRESH_BYTES` bytes each: about 1 MB in all."""
FRESH_BYTES = 1024

_GONE = bytes([DELETED])
_LIVE = bytes(0 if byte == DELETED else 1 for byte in range(256))


class Stored(Protocol):
    """A frame in a segment file."""

    @property
    def segment(self) -> Any:
        """The segment that holds the frame."""

    @property
    def remnants(self) -> Remnants:
        """Those of the shard."""

    def load(self) -> memoryview:
        """All bytes of the frame. They stay valid as long as the view is referenced."""


class Fresh:
    """The newest small batches of a shard with their columns, so that they need not be decoded to be merged."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()

    def keep(self, batch: Batch, columns: Columns) -> None:
        """Keep the columns of a new batch for a while. They must not change any more."""
        if batch.level or batch.size > FRESH_BYTES:
            return
        batch.decoded = columns
        self._batches.append(batch)
        if len(self._batches) > FRESH:
            self._batches.popleft().decoded = None


class Batch:
    """Consecutive records. Those before position `start` are gone, those flagged in `flags` are deleted.

    `buffer` is the frame in memory, None if only a segment file has it. `stored` is its place in that file, None if
    only the log has it. `live` records with `live_size` bytes are left.
    """

    __slots__ = (
        "__weakref__",
        "buffer",
        "count",
        "decoded",
        "filed",
        "first_seq",
        "first_ts",
        "flags",
        "last_ts",
        "level",
        "live",
        "live_size",
        "remnant",
        "size",
        "start",
        "stored",
        "sum",
        "written",
    )

    def __init__(self, buffer: Buffer | None, first_seq: int, columns: Columns, level: int = 0) -> None:
        count = columns.count
        self.buffer = buffer
        self.sum = 0 if buffer is None else content_hash(buffer)
        """Its part of the topic's sum; 0 once that is its segment's, see `shardd.storage.segment`."""
        self.decoded: Columns | None = None
        """The records as columns, while `Fresh` keeps them."""
        self.remnant: Remnant | None = None
        """The live records, if they are few and only a file has the batch; see `shardd.storage.remnant`."""
        self.stored: Stored | None = None
        self.written = 0
        """How many records the flags in the file mark as deleted."""
        self.filed = 0
        """The checksum of the delete flags in the file, see `shardd.storage.segment`."""
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
        """Make a batch that only a segment file has. `flags` are its delete flags in that file."""
        batch = cls.__new__(cls)
        batch.buffer = batch.decoded = batch.remnant = None
        batch.sum = 0
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
        """Restore which records are gone from saved values. Reads no records."""
        self.start = start
        self.flags = None if flags is None else bytearray(flags)
        self.live = self.count - start if flags is None else self.mask(start, self.count).count(1)
        self.live_size = live_size

    @property
    def deleted(self) -> int:
        """Number of records that are flagged as deleted."""
        return 0 if self.flags is None else self.flags.count(DELETED)

    def flag(self, flags: bytes) -> None:
        """Delete the records that `flags` marks, in addition to those already deleted."""
        self.delete([place for place, byte in enumerate(flags) if byte == DELETED])

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    @property
    def first_live(self) -> int | None:
        """Seq of the first live record; None if there is none."""
        if not self.live:
            return None
        if self.flags is None:
            return self.first_seq + self.start
        return self.first_seq + self.count - len(self.flags[self.start :].lstrip(_GONE))

    @property
    def last_live(self) -> int | None:
        if not self.live:
            return None
        if self.flags is None:
            return self.last_seq
        return self.first_seq + len(self.flags.rstrip(_GONE)) - 1

    def columns(self) -> Columns:
        """The records as columns. Raises `SegmentError` if the file cannot be read."""
        if self.buffer is not None:
            return decode_batch(self.buffer)
        assert self.stored is not None
        return decode_batch(self.stored.load())

    def records(self, positions: Sequence[int]) -> tuple[Columns, Sequence[int]]:
        """Columns that have the live records at these positions, and their places there. Raises `SegmentError`."""
        remnant = self.remnant
        if remnant is None:
            columns = self.columns()
            if self.buffer is not None or self.stored is None or not self.few:
                return columns, positions
            remnant = Remnant(self, columns, ones(self.mask(self.start, self.count), self.start))
            self.stored.remnants.keep(remnant)
        return remnant.columns, remnant.places(positions)

    @property
    def few(self) -> bool:
        """True if so few records are live that these are worth a remnant."""
        return 0 < self.live * SPARSE < self.count

    def inherit(self, other: Batch) -> None:
        """Take over the remnant of another object of this batch, unless it lacks records that are live here."""
        remnant = other.remnant
        if remnant is None or self.remnant is not None:
            return
        if remnant.has(ones(self.mask(self.start, self.count), self.start)):
            other.remnant, remnant.batch, self.remnant = None, self, remnant

    def mask(self, start: int, stop: int) -> bytes:
        """One byte per record from `start` to before `stop`: 0 if it is deleted, else 1."""
        if self.flags is None:
            return b"\1" * (stop - start)
        return bytes(self.flags[start:stop]).translate(_LIVE)

    def live_mask(self, start: int, stop: int, most: int) -> tuple[bytes, int]:
        """The mask from `start` on up to its `most`-th live record, or to `stop`; and the number of live records in it.
        Its cost follows the records that it passes, not those up to `stop`."""
        mask, taken, piece = b"", 0, most + AHEAD
        while start < stop:
            part = self.mask(start, min(start + piece, stop))
            there = part.count(1)
            if taken + there >= most:
                part = part[: _place(part, most - taken) + 1]
                return mask + part, most
            mask, taken, start, piece = mask + part, taken + there, start + len(part), 2 * piece
        return mask, taken

    def live_of_few(self, start: int, stop: int, most: int) -> list[int]:
        """The positions of at most so many live records from `start` to before `stop`, of a batch with a remnant."""
        assert self.remnant is not None
        within = self.remnant.within(start, stop)
        live: list[int] = []
        while within and len(live) < most:
            wanted = most - len(live)
            live += self.live_at(within[:wanted])
            within = within[wanted:]
        return live

    def has_live(self, start: int, stop: int) -> bool:
        """True if a record from `start` to before `stop` is live."""
        if self.remnant is not None:
            return bool(self.live_of_few(start, stop, 1))
        return self.flags is None or self.live_mask(start, stop, 1)[1] > 0

    def live_at(self, positions: Sequence[int]) -> list[int]:
        """Those of these positions whose records are live."""
        flags, start = self.flags, self.start
        if flags is None:
            return [position for position in positions if position >= start]
        return [position for position in positions if flags[position] != DELETED and position >= start]

    def delete_flags(self) -> bytes:
        """One byte per record, in the form of the file. Records before `start` are not flagged: they are below the
        topic's floor."""
        return bytes(self.count) if self.flags is None else bytes(self.flags)

    def cut(self, start: int) -> None:
        """Drop all records before position `start`. Does nothing if they are gone already."""
        if start <= self.start:
            return
        self.start = start
        if start >= self.count:
            self.live = self.live_size = 0
        else:
            self._recount()

    def delete(self, positions: Sequence[int]) -> None:
        """Flag records as deleted. `positions` are ascending and distinct; those that are gone already do not change
        the counts."""
        if self.flags is None:
            self.flags = bytearray(self.count)
        if not positions:
            return
        flags, first, stop = self.flags, positions[0], positions[-1] + 1
        together = stop - first == len(positions) and first >= self.start and DELETED not in flags[first:stop]
        gone = positions if together else self.live_at(positions)
        try:
            columns, places = self.records(gone)
        except SegmentError:
            for position in positions:
                flags[position] = DELETED
            self._recount()
            return
        size = columns.size(places[0], places[-1] + 1) if together else columns.size_at(places)
        self.live -= len(gone)
        self.live_size -= size + RECORD_OVERHEAD * len(gone)
        if together:
            flags[first:stop] = _GONE * len(gone)
            return
        for position in positions:
            flags[position] = DELETED

    def delete_from(self, start: int) -> None:
        """Flag the record at position `start` and all that follow as deleted."""
        if self.flags is None:
            self.flags = bytearray(self.count)
        self.flags[start:] = _GONE * (self.count - start)
        if start <= self.start:
            self.live = self.live_size = 0
        else:
            self._recount()

    def _countable(self) -> Columns | None:
        """The records, for counting only. None if the file cannot be read: such records must still be removable, so
        callers then estimate bytes in proportion to the number of records."""
        try:
            return self.columns()
        except SegmentError:
            return None

    def _recount(self) -> None:
        mask = None if self.flags is None else self.mask(self.start, self.count)
        self.live = self.count - self.start if mask is None else mask.count(1)
        try:
            if mask is None:
                size = self.columns().size(self.start, self.count)
            elif self.few:
                columns, places = self.records(ones(mask, self.start))
                size = columns.size_at(places)
            else:
                size = sum(compress(self.columns().sizes(self.start, self.count), mask))
        except SegmentError:
            self.live_size = self.size * self.live // self.count
        else:
            self.live_size = size + RECORD_OVERHEAD * self.live

    def start_to_lose(self, records: int, size: int) -> int:
        """The first position to keep, so that at least `records` live records and at least `size` live bytes are lost,
        and no record more than that needs.

        Returns `count`, which drops the whole batch, if even that is not enough.
        """
        if records >= self.live or size >= self.live_size:
            return self.count
        gone = max(records, self._worth(size) if size > 0 else 0, 0)
        if self.flags is None:
            return min(self.start + gone, self.count)
        places = list(compress(range(self.start, self.count), self.mask(self.start, self.count)))
        return places[gone] if gone < len(places) else self.count

    def live_size_before(self, stop: int) -> int:
        """Bytes of the live records before position `stop`; 0 if they cannot be read and not all of them are meant."""
        if stop >= self.count:
            return self.live_size
        columns = self._countable()
        if columns is None or stop <= self.start:
            return 0
        if self.flags is None:
            return columns.size(self.start, stop) + RECORD_OVERHEAD * (stop - self.start)
        mask = self.mask(self.start, stop)
        return sum(compress(columns.sizes(self.start, stop), mask)) + RECORD_OVERHEAD * mask.count(1)

    def _worth(self, size: int) -> int:
        """The least number of live records, from the first on, that have at least `size` bytes together."""
        columns = self._countable()
        start = self.start
        if columns is None:
            return -(-size * self.live // self.live_size)
        if self.flags is None:
            ends = range(start, self.count + 1)
            return bisect_left(ends, size, key=lambda end: columns.size(start, end) + RECORD_OVERHEAD * (end - start))
        sizes = compress(columns.sizes(start, self.count), self.mask(start, self.count))
        return bisect_left(list(accumulate((s + RECORD_OVERHEAD for s in sizes), initial=0)), size)

    def expired(self, oldest_ts: int) -> int:
        """Number of records, from the batch's beginning, with a commit time before `oldest_ts` (ms)."""
        if self.last_ts < oldest_ts:
            return self.count
        if self.first_ts >= oldest_ts:
            return 0
        columns = self._countable()
        return 0 if columns is None or isinstance(columns.ts, int) else bisect_left(columns.ts, oldest_ts)


def ones(mask: bytes, start: int) -> list[int]:
    """The positions of the ones in a mask that begins at `start`. The zeros are passed over by C code: the ones should
    be few."""
    found = []
    at = mask.find(1)
    while at >= 0:
        found.append(start + at)
        at = mask.find(1, at + 1)
    return found


def _place(mask: bytes, number: int) -> int:
    """The place of the `number`-th 1, counted from 1."""
    first, stop = 0, len(mask)
    while stop - first > 1:
        middle = (first + stop) // 2
        if (there := mask.count(1, first, middle)) >= number:
            stop = middle
        else:
            number -= there
            first = middle
    return first


def merged(batches: Sequence[Batch], topic_id: int, level: int) -> Batch:
    """Merge neighbouring batches into one. Records that are gone or deleted stay so. Raises `SegmentError`."""
    columns = merge([batch.decoded or batch.columns() for batch in batches])
    first_seq = batches[0].first_seq
    assert columns.count == batches[-1].last_seq - first_seq + 1, "only neighbouring batches may be merged"
    whole = Batch(encode_batch(columns, topic_id, first_seq).head, first_seq, columns, level)
    if any(batch.flags is not None or batch.start for batch in batches):
        whole.start = batches[0].start
        if any(batch.flags is not None for batch in batches):
            whole.flags = bytearray(b"".join(batch.delete_flags() for batch in batches))
        whole._recount()
    return whole


def fitting(columns: Columns, start: int, stop: int, budget: int) -> int:
    """Number of records from position `start` on, up to `stop`, that have at most `budget` bytes together."""
    return bisect_right(range(start + 1, stop + 1), budget, key=lambda end: columns.size(start, end))

"""Columns: a batch of records in memory, column by column, and what is made of batches without parsing a record.

    plain, constant, optional    a column from values
    merge                        adjacent batches joined
    part                         a range of a batch
    select                       the records of a batch that are kept
    reordered                    the records of a batch in another order
    taken                        few records of a batch, copied

A column has Arrow's layout of variable binary, so a batch that was read is a view of its frame's bytes
(`proto.format.frame` draws them). Nothing here is changed after it was made, so batches share columns.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import accumulate, chain, compress, islice, pairwise, repeat, starmap
from typing import Any

from proto.format.buffer import PADDING, Buffer

_DIGITS = bytes.maketrans(b"01", b"\0\1")


class Encoding(IntEnum):
    """How a column is kept. The numbers are part of the format."""

    ABSENT = 0
    CONSTANT = 1
    PLAIN = 2
    SPARSE = 3


# A look-up of a member in an enum costs more than what is done with it.
ENCODINGS = tuple(Encoding)
_CONSTANT = Encoding.CONSTANT


class Column:
    """Column of a batch: `values` holds `rows` values end to end, `offsets` (rows + 1) where each begins."""

    __slots__ = ("encoding", "offsets", "validity", "values")

    def __init__(
        self, encoding: Encoding, values: Buffer, offsets: Sequence[int], validity: Buffer | None = None
    ) -> None:
        self.encoding = encoding
        self.values = values
        self.offsets = offsets
        self.validity = validity

    def cells(self, start: int, stop: int) -> Iterable[Any]:
        """Values of records `start` to `stop` (exclusive), None where a record has none."""
        if self.encoding == Encoding.CONSTANT:
            return repeat(bytes(self.values), stop - start)
        # The range is copied once and then sliced, because slicing bytes is cheaper than slicing memoryviews.
        base = self.offsets[start]
        chunk = bytes(self.values[base : self.offsets[stop]])
        bounds: Iterable[int] = self.offsets[start : stop + 1]
        if base:
            bounds = map(operator.sub, bounds, repeat(base))
        cells: Iterable[bytes] = map(chunk.__getitem__, starmap(slice, pairwise(bounds)))
        if self.validity is None:
            return cells
        return map(operator.getitem, zip(repeat(None), cells), self.present(start, stop))

    def cells_at(self, places: Sequence[int]) -> Iterable[Any]:
        """As `cells`, of the records at these places. Its cost follows their number."""
        if self.encoding == Encoding.CONSTANT:
            return repeat(bytes(self.values), len(places))
        offset = self.offsets.__getitem__
        bounds = map(slice, map(offset, places), map(offset, map(operator.add, places, repeat(1))))
        cells: Iterable[bytes] = map(bytes, map(self.values.__getitem__, bounds))
        if self.validity is None:
            return cells
        valid = self.validity
        return map(operator.getitem, zip(repeat(None), cells), [valid[at >> 3] >> (at & 7) & 1 for at in places])

    def present(self, start: int, stop: int) -> Sequence[int]:
        """One byte per record of the range: 1 if it has a value, else 0."""
        if self.validity is None:
            return b"\1" * (stop - start)
        bits = int.from_bytes(self.validity, "little") >> start
        count = stop - start
        if not count:
            return b""
        return f"{bits & ((1 << count) - 1):0{count}b}"[::-1].encode().translate(_DIGITS)

    def size(self, start: int, stop: int) -> int:
        """Bytes of the values of a range of records."""
        if self.encoding is _CONSTANT:
            return len(self.values) * (stop - start)
        return self.offsets[stop] - self.offsets[start]

    def size_at(self, places: Sequence[int]) -> int:
        """Bytes of the values of the records at these places."""
        if self.encoding is _CONSTANT:
            return len(self.values) * len(places)
        offset = self.offsets.__getitem__
        return sum(map(offset, map(operator.add, places, repeat(1)))) - sum(map(offset, places))

    def lengths(self, start: int, stop: int) -> Iterable[int]:
        """Bytes of each value of a range of records."""
        if self.encoding == Encoding.CONSTANT:
            return repeat(len(self.values), stop - start)
        return map(operator.sub, self.offsets[start + 1 : stop + 1], self.offsets[start:stop])

    def parts(self) -> list[Buffer]:
        """The buffers of this column in frame order, padding included."""
        offsets = struct.pack(f"<{len(self.offsets)}i", *self.offsets)
        parts: list[Buffer] = []
        if self.validity is not None:
            parts += (self.validity, PADDING[len(self.validity) % 8])
        parts += (offsets, PADDING[len(offsets) % 8], self.values, PADDING[len(self.values) % 8])
        return parts


def plain(values: Sequence[Any]) -> Column:
    """A column from one buffer per record."""
    return Column(Encoding.PLAIN, b"".join(values), list(accumulate(map(len, values), initial=0)))


def constant(value: bytes) -> Column:
    return Column(Encoding.CONSTANT, value, (0, len(value)))


def optional(values: Sequence[Any]) -> Column | None:
    """A column from one buffer or None per record, in the smallest encoding.

    Returns None if all values are None, a CONSTANT column if all are equal, else a PLAIN or SPARSE one.
    """
    missing = values.count(None)
    if missing == len(values):
        return None
    if missing == 0:
        if len(values) > 1 and values.count(values[0]) == len(values):
            return constant(bytes(values[0]))
        return plain(values)
    column = plain([b"" if value is None else value for value in values])
    column.encoding = Encoding.SPARSE
    column.validity = _bitmap(map(operator.is_not, values, repeat(None)), len(values))
    return column


def _bitmap(present: Iterable[bool | int], count: int) -> bytes:
    digits = "".join(map("01".__getitem__, present))
    return int(digits[::-1], 2).to_bytes((count + 7) // 8, "little")


class Columns:
    """Decoded body of a batch.

    `ts` is one commit time, or one per record. `hops` has one byte per record, or is None if no router forwarded any of
    them. `due` has, per job of a queue, the time from which it may be claimed, in ms since 1970, 0 for at once; None
    means at once for all.
    """

    __slots__ = ("count", "data", "due", "hops", "key", "meta", "node", "tag", "ts")

    def __init__(
        self,
        count: int,
        ts: int | Sequence[int],
        data: Column,
        tag: Column | None = None,
        node: Column | None = None,
        meta: Column | None = None,
        key: bytes = b"",
        hops: bytes | None = None,
        due: Sequence[int] | None = None,
    ) -> None:
        self.hops = hops
        self.due = due
        self.count = count
        self.ts = ts
        self.data = data
        self.tag = tag
        self.node = node
        self.meta = meta
        self.key = key

    def times(self, start: int, stop: int) -> Iterable[int]:
        if isinstance(self.ts, int):
            return repeat(self.ts, stop - start)
        return self.ts[start:stop]

    def times_at(self, places: Sequence[int]) -> Iterable[int]:
        if isinstance(self.ts, int):
            return repeat(self.ts, len(places))
        return map(self.ts.__getitem__, places)

    def size(self, start: int, stop: int) -> int:
        """Bytes of data, tag, node and meta of a range of records."""
        size = self.data.size(start, stop)
        for column in (self.tag, self.node, self.meta):
            if column is not None:
                size += column.size(start, stop)
        return size

    def size_at(self, places: Sequence[int]) -> int:
        """Bytes of data, tag, node and meta of the records at these places."""
        return sum(each.size_at(places) for each in (self.data, self.tag, self.node, self.meta) if each is not None)

    def sizes(self, start: int, stop: int) -> Iterable[int]:
        """Bytes of data, tag, node and meta of each record of a range."""
        total = self.data.lengths(start, stop)
        for column in (self.tag, self.node, self.meta):
            if column is not None:
                total = map(operator.add, total, column.lengths(start, stop))
        return total


def merge(batches: Sequence[Columns]) -> Columns:
    """Adjacent batches joined into one, column by column, without parsing. Drops idempotency keys and due times."""
    counts = [b.count for b in batches]
    times = [b.ts for b in batches]
    ts = times[0]
    if not isinstance(ts, int) or times.count(ts) != len(times):
        ts = list(chain.from_iterable(map(Columns.times, batches, repeat(0), counts)))
    data = _merge_column([b.data for b in batches], counts)
    assert data is not None
    return Columns(
        sum(counts),
        ts,
        data,
        _merge_column([b.tag for b in batches], counts),
        _merge_column([b.node for b in batches], counts),
        _merge_column([b.meta for b in batches], counts),
        hops=_merge_hops([b.hops for b in batches], counts),
    )


def _merge_hops(hops: Sequence[bytes | None], counts: Sequence[int]) -> bytes | None:
    if hops.count(None) == len(hops):
        return None
    return b"".join(bytes(count) if some is None else some for some, count in zip(hops, counts, strict=True))


def _merge_column(columns: Sequence[Column | None], counts: Sequence[int]) -> Column | None:
    real = [c for c in columns if c is not None]
    if not real:
        return None
    whole = len(real) == len(columns)
    if whole and all(c.encoding is _CONSTANT and c.values == real[0].values for c in real):
        return real[0]
    values: list[Buffer] = []
    offsets = [0]
    for column, count in zip(columns, counts, strict=True):
        end = offsets[-1]
        if column is None:
            offsets += [end] * count
        elif column.encoding is _CONSTANT:
            size = len(column.values)
            values.append(bytes(column.values) * count)
            offsets += range(end + size, end + size * count + 1, size) if size else [end] * count
        else:
            values.append(column.values)
            offsets += map(end.__add__, islice(column.offsets, 1, None))
    joined = b"".join(values)
    if whole and [c.validity for c in real].count(None) == len(real):
        return Column(Encoding.PLAIN, joined, offsets)
    present = (repeat(0, n) if c is None else c.present(0, n) for c, n in zip(columns, counts, strict=True))
    return Column(Encoding.SPARSE, joined, offsets, _bitmap(chain.from_iterable(present), sum(counts)))


def select(batch: Columns, keep: Sequence[int | bool]) -> Columns:
    """A batch of the records whose entry in `keep` is true. Drops idempotency keys and due times."""
    count = batch.count

    def chosen(column: Column | None) -> Column | None:
        if column is None or column.encoding == Encoding.CONSTANT:
            return column
        return optional(list(compress(column.cells(0, count), keep)))

    data = plain(list(compress(batch.data.cells(0, count), keep)))
    ts = batch.ts if isinstance(batch.ts, int) else list(compress(batch.ts, keep))
    return Columns(
        len(data.offsets) - 1,
        ts,
        data,
        chosen(batch.tag),
        chosen(batch.node),
        chosen(batch.meta),
        hops=None if batch.hops is None else bytes(compress(batch.hops, keep)),
    )


def part(batch: Columns, start: int, stop: int) -> Columns:
    """A batch of records `start` to `stop` (exclusive). Drops idempotency keys and due times."""
    if start == 0 and stop == batch.count and not batch.key and batch.due is None:
        return batch
    ts = batch.ts if isinstance(batch.ts, int) else batch.ts[start:stop]
    data = _part(batch.data, start, stop)
    assert data is not None
    return Columns(
        stop - start,
        ts,
        data,
        _part(batch.tag, start, stop),
        _part(batch.node, start, stop),
        _part(batch.meta, start, stop),
        hops=None if batch.hops is None else batch.hops[start:stop],
    )


def _part(column: Column | None, start: int, stop: int) -> Column | None:
    if column is None or column.encoding == Encoding.CONSTANT:
        return column
    base = column.offsets[start]
    offsets = list(map(operator.sub, column.offsets[start : stop + 1], repeat(base)))
    values = column.values[base : column.offsets[stop]]
    if column.validity is None:
        return Column(Encoding.PLAIN, values, offsets)
    return Column(Encoding.SPARSE, values, offsets, _bitmap(column.present(start, stop), stop - start))


def reordered(batch: Columns, order: Sequence[int]) -> Columns:
    """A batch of the records at the indices `order`, in that order. Drops idempotency keys and due times."""
    count = batch.count

    def taken(column: Column | None) -> Column | None:
        if column is None or column.encoding == Encoding.CONSTANT:
            return column
        return optional(list(map(list(column.cells(0, count)).__getitem__, order)))

    data = plain(list(map(list(batch.data.cells(0, count)).__getitem__, order)))
    ts = batch.ts if isinstance(batch.ts, int) else list(map(batch.ts.__getitem__, order))
    hops = None if batch.hops is None else bytes(map(batch.hops.__getitem__, order))
    return Columns(len(order), ts, data, taken(batch.tag), taken(batch.node), taken(batch.meta), hops=hops)


def taken(batch: Columns, places: Sequence[int]) -> Columns:
    """A batch of the records at these places, copied. Its cost follows their number. Drops hops, idempotency keys and
    due times."""

    def cells(column: Column | None) -> Column | None:
        if column is None:
            return None
        if column.encoding == Encoding.CONSTANT:
            return constant(bytes(column.values))
        return optional(list(column.cells_at(places)))

    ts = batch.ts if isinstance(batch.ts, int) else list(batch.times_at(places))
    data = plain(list(batch.data.cells_at(places)))
    return Columns(len(places), ts, data, cells(batch.tag), cells(batch.node), cells(batch.meta))

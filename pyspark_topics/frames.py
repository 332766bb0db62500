"""Frame reader: header, checksum, and columns as Arrow arrays over the file's bytes.

Files of the log and segments are frames end to end, with nothing before, between or after them. Integers are
little-endian; the frame, its body and every part of the body begin at a multiple of 8 bytes.

    byte  0  "TPCF"
          4  u8   format version, 1
          5  u8   kind: 1 batch of records, 2 topic created, 3 topic configured, 4 topic deleted, 5 records deleted,
                  6 seqs reserved, 7 cursor moved, 8 rescued, 9 leases, 10 router changed, or a place of copies,
                  11 watch sessions, 12 a log of the Rog protocol
          6  u16  flags: bit 0 = each record has its own time, bit 1 = forward counts are present,
                  bit 2 = due times of jobs are present
          8  u32  frame length in bytes
         12  u32  body length in bytes
         16  u64  frame number, in the log each frame's one more than that of the frame before
         24  u64  highest frame number known to be synced when this frame was made
         32  u64  topic id
         40  u64  seq of the first record; the others follow without gaps
         48  i64  time of the first record, ms since 1970 (UTC)
         56  u32  records
         60  u16  bytes of the idempotency key, not used here
         62  u8   two bits a column, lowest first: data, tag, node, meta
                  0 no column, 1 one value for all records, 2 a value per record, 3 a value or null per record
         63  u8   unused
         64       body
      then   u64  XXH3-64 of everything before it
      then   u8 per record, 0xD5 = deleted (may change after the frame is written, so no checksum covers it), zeros to 8

The body of a batch: idempotency key, times as i64 per record (flag bit 0), a byte per record that is not used here
(flag bit 1), an i64 per record that is not used here (flag bit 2), then the columns. A column is [validity bitmap, form
3 only], i32 offsets (one more than values), values. This is Arrow's layout of variable binary, so no byte is parsed or
copied. The body of the other kinds is a CBOR map.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pyspark_topics import cbor
from pyspark_topics.errors import UnknownFormat
from pyspark_topics.xxh3 import digest

VERSION = 1
MAGIC = b"TPCF"
HEADER = struct.Struct("<4sBBHIIQQQQqIHBB")
HEADER_BYTES = 64
assert HEADER.size == HEADER_BYTES
DELETED = 0xD5
OWN_TIMES = 1
OWN_HOPS = 2
OWN_DUE = 1 << 2
FLAGS = OWN_TIMES | OWN_HOPS | OWN_DUE

BATCH, TOPIC_CREATE, TOPIC_CONFIG, TOPIC_DELETE, RECORD_DELETE, CEILING, CURSOR, RESCUED = range(1, 9)
LEASE, ROUTER, SESSION, LOGDEF = 9, 10, 11, 12
KINDS = frozenset((*range(BATCH, RESCUED + 1), LEASE, ROUTER, SESSION, LOGDEF))
WITHOUT_RECORDS = frozenset((CURSOR, RESCUED, LEASE, SESSION, LOGDEF))
"""Kinds that do not affect which records exist."""
COLUMN_SHIFTS = (0, 2, 4, 6)
"""Bit positions of the forms of data, tag, node and meta in the header's `columns`."""
_NONE, _ONE, _EACH, _SOME = 0, 1, 2, 3

_U64 = struct.Struct("<Q")
_I32 = struct.Struct("<i")


class FrameError(ValueError):
    """There is no complete, undamaged frame at this offset. The message says why."""


def _pad8(size: int) -> int:
    return (size + 7) & ~7


class Head:
    """Parsed header of the frame at `offset`. Checks its fields, and raises `FrameError` or `UnknownFormat`."""

    __slots__ = (
        "body_len",
        "columns",
        "count",
        "first_seq",
        "flags",
        "frame_no",
        "key_len",
        "kind",
        "length",
        "offset",
        "synced_no",
        "topic_id",
        "ts_ms",
    )

    def __init__(self, view: memoryview, offset: int) -> None:
        if len(view) - offset < HEADER_BYTES:
            raise FrameError(f"{len(view) - offset} bytes where a frame header of {HEADER_BYTES} should be")
        (
            magic,
            version,
            self.kind,
            self.flags,
            self.length,
            self.body_len,
            self.frame_no,
            synced,
            self.topic_id,
            self.first_seq,
            self.ts_ms,
            self.count,
            self.key_len,
            self.columns,
            _,
        ) = HEADER.unpack_from(view, offset)
        self.synced_no = synced & 0xFFFF_FFFF_FFFF  # what is above it links the frame to the one before
        if magic != MAGIC:
            raise FrameError(f"magic {magic!r} where a frame should begin")
        if not version or not self.kind:
            raise FrameError("zeros where a frame header should go on")
        if version != VERSION or self.kind not in KINDS:
            if _flipped(view, offset, self.body_len):
                raise FrameError(f"frame version {version}, kind {self.kind}, which the checksum says is not so")
            raise UnknownFormat(
                f"frame version {version}, kind {self.kind} (known here: version {VERSION}, kinds "
                f"{sorted(KINDS)}); a newer server wrote it, update pyspark_topics to match"
            )
        if self.body_len % 8 or self.length != _pad8(HEADER_BYTES + self.body_len + 8 + self.count):
            raise FrameError(f"lengths do not agree (frame {self.length}, body {self.body_len}, {self.count} records)")
        if len(view) - offset < self.length:
            raise FrameError(f"{len(view) - offset} bytes where a frame of {self.length} should be")
        self.offset = offset


def _flipped(view: memoryview, offset: int, body_len: int) -> bool:
    """Whether the checksum matches with a known version or kind: then damage made them unknown."""
    end = offset + HEADER_BYTES + body_len
    if len(view) < end + 8:
        return False
    (checksum,) = _U64.unpack_from(view, end)
    raw = bytearray(view[offset:end])
    place, known = (4, [VERSION]) if raw[4] != VERSION else (5, sorted(KINDS))
    for value in known:
        raw[place] = value
        if digest(raw) == checksum:
            return True
    return False


def verify(view: memoryview, head: Head) -> None:
    """Verify the checksum. Raises `FrameError` if it does not match, `UnknownFormat` for parts that a newer server
    adds."""
    end = head.offset + HEADER_BYTES + head.body_len
    if digest(view[head.offset : end]) != _U64.unpack_from(view, end)[0]:
        raise FrameError("checksum does not match")
    if head.flags & ~FLAGS:
        raise UnknownFormat(
            f"frame flags {head.flags:#b} (known here: {FLAGS:#b}); a newer server wrote it, update pyspark_topics to "
            "match"
        )


def topic_id(view: memoryview, offset: int) -> int:
    """The u64 at the place of a frame's topic id; 0 at the end of the file."""
    return int(_U64.unpack_from(view, offset + 32)[0]) if len(view) >= offset + 40 else 0


def fields(view: memoryview, head: Head) -> dict[str, Any]:
    """The CBOR map of a frame of any kind but a batch. Raises `FrameError`."""
    start = head.offset + HEADER_BYTES
    try:
        value = cbor.loads(bytes(view[start : start + head.body_len]))
    except cbor.CborError as error:
        raise FrameError(str(error)) from error
    if not isinstance(value, dict):
        raise FrameError(f"a {type(value).__name__} where a map should be")
    return value


def delete_flags(view: memoryview, head: Head) -> memoryview:
    """One byte per record: `DELETED` for deleted records."""
    start = head.offset + HEADER_BYTES + head.body_len + 8
    return view[start : start + head.count]


class Records:
    """The records of one batch frame as Arrow arrays over the file's own bytes.

    `times` is int64 milliseconds, or None where all records have the header's `ts_ms`.
    """

    __slots__ = ("_buffer", "_places", "head", "times")

    def __init__(self, buffer: Any, view: memoryview, head: Head) -> None:
        count = head.count
        self.head = head
        at = head.offset + HEADER_BYTES + _pad8(head.key_len)
        self.times: Any = None
        if head.flags & OWN_TIMES:
            self.times = pa.Array.from_buffers(pa.int64(), count, [None, buffer.slice(at, 8 * count)])
            at += 8 * count
        if head.flags & OWN_HOPS:
            at += _pad8(count)
        if head.flags & OWN_DUE:
            at += 8 * count
        self._buffer = buffer
        self._places: list[tuple[int, ...] | None] = []
        """Of each column its number of values, the places of its validity, offsets and values, and the values' size."""
        for shift in COLUMN_SHIFTS:
            form = (head.columns >> shift) & 3
            if form == _NONE:
                self._places.append(None)
                continue
            rows = 1 if form == _ONE else count
            offsets = at + (_pad8((count + 7) // 8) if form == _SOME else 0)
            (size,) = _I32.unpack_from(view, offsets + 4 * rows)
            values = offsets + _pad8(4 * rows + 4)
            self._places.append((rows, at, offsets, values, size))
            at = values + _pad8(size)
        if at != head.offset + HEADER_BYTES + head.body_len or self._places[0] is None:
            # The checksum matched, so only a bug of the writer leads here.
            raise FrameError("the columns do not fill the body")

    def column(self, place: int) -> Any:
        """Data, tag, node or meta (0 to 3) as a binary array: a value or null for each record, or one for all."""
        found = self._places[place]
        if found is None:
            return pa.nulls(1, pa.binary())
        rows, validity, offsets, values, size = found
        part = self._buffer.slice
        valid = None if validity == offsets else part(validity, (rows + 7) // 8)
        return pa.Array.from_buffers(pa.binary(), rows, [valid, part(offsets, 4 * rows + 4), part(values, size)])


def find(view: memoryview, start: int) -> int:
    """The next offset that is a multiple of 8 and has a frame's magic, or -1. Searches in pieces of 1 MiB."""
    piece = 1 << 20
    at = (start + 7) & ~7
    while at < len(view):
        chunk = bytes(view[at : at + piece + 3])
        found = chunk.find(MAGIC)
        while found >= 0:
            if found % 8 == 0 and found < piece:
                return at + found
            found = chunk.find(MAGIC, found + 1)
        at += piece
    return -1


def whole_after(view: memoryview, offset: int) -> Iterator[Head]:
    """The headers of all undamaged frames of the known version that begin after `offset`."""
    while (offset := find(view, offset + 1)) >= 0:
        try:
            head = Head(view, offset)
            verify(view, head)
        except (FrameError, UnknownFormat):
            continue
        yield head

"""Frame: the unit of the WAL and of segments. `proto.format.columns` has the in-memory form of a batch.

One write makes one frame, whatever its number of records. Integers are little-endian. Every part starts at a multiple
of 8 bytes from the frame's start.

    offset  size  field      meaning
         0     4  magic      b"TPCF"
         4     1  version    FORMAT_VERSION
         5     1  kind       see `Kind`
         6     2  flags      bit 0: a ts column is present, bit 1: a hops column is, bit 2: a due column is
         8     4  length     bytes of the whole frame, a multiple of 8
        12     4  body_len   bytes of the body, a multiple of 8
        16     8  frame_no   position in the shard's WAL, counted from 1 without gaps; in a segment what it was in the
                            WAL; 0 if it was in none: a router's copy, or batches that were merged
        24     6  synced_no  the highest frame_no known to be synced when this frame was made
        30     2  link       to the frame before in the log, see `link_of`; 0 for none
        32     8  topic_id
        40     8  first_seq  first record's seq (BATCH), else 0
        48     8  ts_ms      commit time of the first record, ms since 1970
        56     4  count      records (BATCH), else 0
        60     2  key_len    bytes of the idempotency key, 0 for none
        62     1  columns    two bits a column, low bits first: data, tag, node, meta (see `Encoding`)
        63     1  reserved   0
        64        body
        64+body_len      8   checksum   XXH3-64 of everything before it
        72+body_len  count   one delete flag per record, outside the checksum: 0xD5 deleted, anything else live
                             zeros up to a multiple of 8

The body of a BATCH has these parts, in this order:

    idempotency key   key_len bytes, zero-padded to 8
    ts                flag bit 0: commit times, int64[count]
    hops              flag bit 1: how often routers forwarded each record, uint8[count], zero-padded to 8
    due               flag bit 2: time from which each job of a queue may be claimed, int64[count], ms since 1970,
                      0 for at once
    columns           data, tag, node, meta

Each column has Arrow's layout of variable binary, so that readers can wrap it without a copy:

    validity bitmap (Encoding.SPARSE only), least significant bit first, padded to 8
    offsets int32[rows + 1], the first one 0, padded to 8
    values, padded to 8

`rows` is `count`, or 1 for Encoding.CONSTANT: one value that every record of the batch has. `data` and `meta` are JSON
text as sent, `tag` and `node` UTF-8. The body of every other kind is one CBOR map, zero-padded.

A frame is valid iff magic and version match, the lengths agree with each other and with the bytes available, and the
checksum matches. Versions and kinds count from 1, because a write that ended early leaves zeros.

`synced_no` distinguishes a torn tail from damage. Invalid bytes at the place of frame N are damage iff some later valid
frame has `synced_no >= N`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import cbor2
import xxhash

from proto.errors import ProtoError
from proto.format.buffer import PADDING, Buffer, pad8
from proto.format.columns import ENCODINGS, Column, Columns

FORMAT_VERSION = 1
MAGIC = b"TPCF"
HEADER = struct.Struct("<4sBBHIIQQQQqIHBB")
assert HEADER.size == 64
KIND_AT = 5
"""Offset of `kind` in a frame."""
CHECKSUM = struct.Struct("<Q")
_BODY_LEN = struct.Struct("<I")
LINK_SHIFT = 48
SYNCED_MASK = (1 << LINK_SHIFT) - 1
DELETED = 0xD5
FLAG_TS_COLUMN = 1
FLAG_HOPS = 2
FLAG_DUE = 4
FLAGS = FLAG_TS_COLUMN | FLAG_HOPS | FLAG_DUE
MAX_FRAME_BYTES = (1 << 31) - 8
"""Largest frame that int32 offsets and a u32 length allow. Body limits keep writes far below it."""


class Kind(IntEnum):
    """Frame kind. The numbers are part of the format; gaps are reserved."""

    BATCH = 1
    TOPIC_CREATE = 2
    TOPIC_CONFIG = 3
    TOPIC_DELETE = 4
    RECORD_DELETE = 5
    CEILING = 6
    CURSOR = 7
    RESCUED = 8
    """First frame of a file that replaces the tail of another after a failed sync."""
    LEASE = 9
    """State of a queue's jobs: the holder of each lease, and how often each job was delivered."""
    ROUTER = 10
    SESSION = 11
    """Watch sessions created, moved or ended. Belongs to no topic: its topic id is 0."""
    LOGDEF = 12
    """A Rog log and its number of partitions. Belongs to no topic."""


class FrameError(ProtoError):
    """The bytes at this offset are not a valid frame. The message says why."""


class UnknownVersion(FrameError):
    """A frame of an unknown format version, or with unknown flags. Readers never skip such a frame and never guess its
    layout."""


def link_of(before: int, seed: int) -> int:
    """The link of a frame, never 0. `before` is the checksum of the frame before in the log (0: it is the first one),
    `seed` names the shard. A frame of another shard, or of another course of this one, has another link, but for one in
    65 535."""
    return xxhash.xxh3_64_intdigest(CHECKSUM.pack(before), seed) % 0xFFFF + 1


class Header:
    """Parsed frame header. Construction checks magic, version and lengths, and raises `FrameError`."""

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
        "link",
        "synced_no",
        "topic_id",
        "ts_ms",
    )

    def __init__(self, buffer: Buffer, offset: int = 0) -> None:
        if len(buffer) - offset < HEADER.size:
            raise FrameError(f"{len(buffer) - offset} bytes where a header of {HEADER.size} should be")
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
            _reserved,
        ) = HEADER.unpack_from(buffer, offset)
        self.synced_no, self.link = synced & SYNCED_MASK, synced >> LINK_SHIFT
        if magic != MAGIC:
            raise FrameError(f"magic {magic!r} instead of {MAGIC!r}")
        if not version:
            raise FrameError("zeros where a header should go on")
        if version != FORMAT_VERSION:
            raise UnknownVersion(
                f"frame format version {version}, this release reads version {FORMAT_VERSION}: use the release that "
                "wrote it"
            )
        if self.body_len % 8 or self.length != pad8(HEADER.size + self.body_len + CHECKSUM.size + self.count):
            raise FrameError(f"lengths do not agree (frame {self.length}, body {self.body_len})")

    @property
    def flags_at(self) -> int:
        """Offset of the delete flags from the frame's start."""
        return HEADER.size + int(self.body_len) + CHECKSUM.size


def check(buffer: Buffer, offset: int = 0) -> Header:
    """The header of the valid frame at `offset`. Raises `FrameError`, or `UnknownVersion`."""
    header = Header(buffer, offset)
    if len(buffer) - offset < header.length:
        raise FrameError(f"frame of {header.length} bytes, but only {len(buffer) - offset} are there")
    end = offset + HEADER.size + header.body_len
    (expected,) = CHECKSUM.unpack_from(buffer, end)
    if xxhash.xxh3_64_intdigest(memoryview(buffer)[offset:end]) != expected:
        raise FrameError("checksum does not match")
    if header.flags & ~FLAGS:
        raise UnknownVersion(
            f"frame flags {header.flags:#b}, this release knows {FLAGS:#b}: use the release that wrote it"
        )
    return header


def content_hash(buffer: Buffer, offset: int = 0) -> int:
    """XXH3-64 of what a batch frame says of its records, wherever it is: from its topic id to the end of its body."""
    (body_len,) = _BODY_LEN.unpack_from(buffer, offset + 12)
    return xxhash.xxh3_64_intdigest(memoryview(buffer)[offset + 32 : offset + HEADER.size + body_len])


class Frame:
    """Encoded frame: `head` (header and body, all that a reader needs) and `tail` (checksum, flags, padding)."""

    __slots__ = ("head", "tail")

    def __init__(self, head: bytes, tail: bytes) -> None:
        self.head = head
        self.tail = tail

    def __len__(self) -> int:
        return len(self.head) + len(self.tail)

    @property
    def checksum(self) -> int:
        return int(CHECKSUM.unpack_from(self.tail)[0])

    def renumbered(self, frame_no: int, synced_no: int) -> Frame:
        """A copy for another place in the WAL, with a new checksum. `synced_no` includes the link."""
        head = self.head[:16] + struct.pack("<QQ", frame_no, synced_no) + self.head[32:]
        return Frame(head, CHECKSUM.pack(xxhash.xxh3_64_intdigest(head)) + self.tail[CHECKSUM.size :])


def _seal(
    kind: int,
    flags: int,
    topic_id: int,
    first_seq: int,
    ts_ms: int,
    count: int,
    key_len: int,
    columns: int,
    frame_no: int,
    synced_no: int,
    parts: list[Buffer],
    deleted: Buffer | None = None,
) -> Frame:
    body_len = sum(map(len, parts))
    length = pad8(HEADER.size + body_len + CHECKSUM.size + count)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes is larger than the format allows")
    header = HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        kind,
        flags,
        length,
        body_len,
        frame_no,
        synced_no,
        topic_id,
        first_seq,
        ts_ms,
        count,
        key_len,
        columns,
        0,
    )
    head = b"".join((header, *parts))
    room = length - len(head) - CHECKSUM.size
    marks = bytes(room) if deleted is None else bytes(deleted).ljust(room, b"\0")
    return Frame(head, CHECKSUM.pack(xxhash.xxh3_64_intdigest(head)) + marks)


def encode_batch(
    batch: Columns,
    topic_id: int,
    first_seq: int,
    *,
    frame_no: int = 0,
    synced_no: int = 0,
    deleted: Buffer | None = None,
) -> Frame:
    """Encode a batch as a frame. `deleted` has one flag byte per record; None means that all are live."""
    parts: list[Buffer] = [batch.key, PADDING[len(batch.key) % 8]] if batch.key else []
    flags = 0
    ts = batch.ts
    if not isinstance(ts, int):
        flags = FLAG_TS_COLUMN
        parts.append(struct.pack(f"<{batch.count}q", *ts))
        ts = ts[0]
    if batch.hops is not None:
        flags |= FLAG_HOPS
        parts += (batch.hops, PADDING[batch.count % 8])
    if batch.due is not None:
        flags |= FLAG_DUE
        parts.append(struct.pack(f"<{batch.count}q", *batch.due))
    columns = 0
    for shift, column in enumerate((batch.data, batch.tag, batch.node, batch.meta)):
        if column is not None:
            columns |= column.encoding << (2 * shift)
            parts += column.parts()
    return _seal(
        Kind.BATCH,
        flags,
        topic_id,
        first_seq,
        ts,
        batch.count,
        len(batch.key),
        columns,
        frame_no,
        synced_no,
        parts,
        deleted,
    )


def encode_map(
    kind: Kind, topic_id: int, fields: dict[str, Any], ts_ms: int, *, frame_no: int = 0, synced_no: int = 0
) -> Frame:
    """Encode a frame of any kind but BATCH."""
    body = cbor2.dumps(fields)
    return _seal(kind, 0, topic_id, 0, ts_ms, 0, 0, 0, frame_no, synced_no, [body, PADDING[len(body) % 8]])


def decode_batch(buffer: Buffer, header: Header | None = None, offset: int = 0) -> Columns:
    """The columns of the batch frame at `offset`.

    The columns are views of `buffer`. The checksum is not verified. Raises `FrameError` if there is no data column.
    """
    header = header or Header(buffer, offset)
    view = memoryview(buffer)
    at = offset + HEADER.size
    key = b""
    if header.key_len:
        key = bytes(view[at : at + header.key_len])
        at += pad8(header.key_len)
    count = header.count
    ts: int | Sequence[int] = header.ts_ms
    if header.flags & FLAG_TS_COLUMN:
        ts = view[at : at + 8 * count].cast("q")
        at += 8 * count
    hops: bytes | None = None
    if header.flags & FLAG_HOPS:
        hops = bytes(view[at : at + count])
        at += pad8(count)
    due: Sequence[int] | None = None
    if header.flags & FLAG_DUE:
        due = view[at : at + 8 * count].cast("q")
        at += 8 * count
    found: list[Column | None] = []
    for shift in (0, 2, 4, 6):
        encoding = (header.columns >> shift) & 3
        if encoding == 0:
            found.append(None)
            continue
        rows = 1 if encoding == 1 else count
        validity: memoryview | None = None
        if encoding == 3:
            validity = view[at : at + (count + 7) // 8]
            at += pad8(len(validity))
        offsets = view[at : at + 4 * rows + 4].cast("i")
        at += pad8(4 * rows + 4)
        size = offsets[rows]
        found.append(Column(ENCODINGS[encoding], view[at : at + size], offsets, validity))
        at += pad8(size)
    data, tag, node, meta = found
    if data is None:
        raise FrameError("a batch without a data column")
    return Columns(count, ts, data, tag, node, meta, key, hops, due)


def decode_map(buffer: Buffer, header: Header, offset: int = 0) -> dict[str, Any]:
    """The CBOR map of a frame of any kind but BATCH. Raises `FrameError` if the body is not a map."""
    start = offset + HEADER.size
    fields = cbor2.loads(bytes(memoryview(buffer)[start : start + header.body_len]))
    if not isinstance(fields, dict):
        raise FrameError("the body is not a map")
    return fields

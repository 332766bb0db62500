"""Parts: the log of a shard in the bucket, as objects numbered from 1 without holes.

    offset  size  field
         0     4  magic            b"TPCP"
         4     2  version          1
         6     2  kind             1 frames, 2 fence, 3 end
         8     8  number           of the part, also in its name
        16     8  term             of the holder that created it
        24    16  nonce            of the process that created it
        40     8  first_no         number of the first frame
        48     8  last_no          number of the last frame; `first_no - 1` if there is none
        56     8  first_ms         lowest commit time of its frames, ms since 1970; 0 if none has one
        64     8  last_ms          highest commit time
        72     8  length           bytes of the frames
        80     8  frames_checksum  XXH3-64 of them
        88     8  checksum         XXH3-64 of the 88 bytes before
        96        the frames, as in the log, back to back

A part is valid iff magic and version match, both checksums are right, `length` bytes follow, and they are whole frames
numbered from `first_no` to `last_no`.

A part is created, never changed. Its creation ships its frames: it succeeds once for each number. A holder that finds
the number taken reads the part. With its own nonce, an earlier attempt of its own succeeded. With another nonce it is
deposed. A **fence** is a part without frames that a new holder creates, so that the number is taken. An **end** is the
last part of a holder that gave its term up; it has no frames either. Neither is ever deleted.

The first frame of a part follows the last one of the part before, unless the shard had run without a bucket meanwhile
and its log no longer reaches back. Such a hole is passed by a manifest after it only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

from proto.format.buffer import Buffer
from proto.format.frame import FrameError, check
from shardd.errors import ShardError

MAGIC = b"TPCP"
VERSION = 1
FRAMES, FENCE, END = 1, 2, 3
HEAD = struct.Struct("<4sHHQQ16sQQqqQQ")
CHECKSUM = struct.Struct("<Q")
HEADER_SIZE = HEAD.size + CHECKSUM.size
assert HEADER_SIZE == 96
_FRAME = struct.Struct("<8xI4xQ24xq")
"""Length, number and commit time of a frame, from its start."""
FRAME_HEAD = 64
"""Bytes of the smallest frame's header."""


class PartError(ShardError):
    """A part is not valid. The message says why."""


class Part(NamedTuple):
    """The header of a part."""

    number: int
    kind: int
    term: int
    nonce: bytes
    first_no: int
    last_no: int
    first_ms: int = 0
    last_ms: int = 0
    length: int = 0
    frames_checksum: int = 0

    @property
    def has_frames(self) -> bool:
        return self.kind == FRAMES


def encode(part: Part, frames: Buffer = b"") -> bytes:
    """The object of a part; `length` and `frames_checksum` follow from the frames."""
    head = HEAD.pack(
        MAGIC,
        VERSION,
        part.kind,
        part.number,
        part.term,
        part.nonce,
        part.first_no,
        part.last_no,
        part.first_ms,
        part.last_ms,
        len(frames),
        xxhash.xxh3_64_intdigest(frames),
    )
    return b"".join((head, CHECKSUM.pack(xxhash.xxh3_64_intdigest(head)), frames))


def header(data: Buffer, number: int) -> Part:
    """The header of the part with this number, from its first `HEADER_SIZE` bytes. Raises `PartError`."""
    if len(data) < HEADER_SIZE:
        raise PartError(f"{len(data)} bytes, too short for a part")
    magic, version, kind, *fields = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise PartError("this is no part of a log (magic)")
    if version != VERSION:
        raise PartError(f"format version {version}, use the release that wrote it")
    if CHECKSUM.unpack_from(data, HEAD.size)[0] != xxhash.xxh3_64_intdigest(memoryview(data)[: HEAD.size]):
        raise PartError("the header was changed (checksum)")
    part = Part(fields[0], kind, *fields[1:])
    if part.number != number or kind not in (FRAMES, FENCE, END):
        raise PartError(f"the header is of part {part.number}, kind {kind}")
    frames = part.last_no + 1 - part.first_no
    if frames * FRAME_HEAD > part.length or bool(part.length) != part.has_frames or part.last_no >> 63:
        raise PartError(f"its numbers do not fit: frames {part.first_no} to {part.last_no} in {part.length} bytes")
    if frames < 0 or (part.has_frames and (not frames or not part.first_no)):
        raise PartError(f"its numbers do not fit: frames {part.first_no} to {part.last_no}")
    return part


def decode(data: Buffer, number: int) -> tuple[Part, memoryview]:
    """Header and frames of a whole part. Checks the part's checksums, not those of its frames. Raises `PartError`."""
    part = header(data, number)
    frames = memoryview(data)[HEADER_SIZE:]
    if len(frames) != part.length:
        raise PartError(f"{len(frames)} bytes of frames, but {part.length} belong to it")
    if xxhash.xxh3_64_intdigest(frames) != part.frames_checksum:
        raise PartError("its frames were changed (checksum)")
    return part, frames


def check_frames(part: Part, frames: memoryview) -> None:
    """Check every frame of a part. Raises `PartError`."""
    at, number = 0, part.first_no
    while at < len(frames):
        try:
            found = check(frames, at)
        except FrameError as error:
            raise PartError(f"frame {number} at byte {at}: {error}") from None
        if found.frame_no != number:
            raise PartError(f"frame {found.frame_no} at byte {at}, where frame {number} should be")
        at += found.length
        number += 1
    if number != part.last_no + 1:
        raise PartError(f"its frames end with {number - 1}, not with {part.last_no}")


class Place(NamedTuple):
    """A frame in a buffer."""

    number: int
    ts_ms: int
    end: int
    """Offset behind the frame."""


def places(buffer: Buffer) -> Iterator[Place]:
    """The whole frames at the begin of a buffer, without a look at their checksums. Ends where no whole frame is."""
    at, size = 0, len(buffer)
    while at + FRAME_HEAD <= size:
        length, number, ts_ms = _FRAME.unpack_from(buffer, at)
        at += length
        if at > size or length < FRAME_HEAD:
            return
        yield Place(number, ts_ms, at)


def frame_length(buffer: Buffer) -> int:
    """Length of the frame that begins a buffer of at least `FRAME_HEAD` bytes."""
    length: int = _FRAME.unpack_from(buffer)[0]
    return length

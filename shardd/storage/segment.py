"""Segments: the batches of one topic in files of its own, so that log files can be removed.

    topics/<id, 16 hex digits>/seg-<first seq, 20 digits>.data    batch frames back to back (`proto.format.frame`)
    topics/<id>/seg-<first seq>.idx                               one entry per frame; can be made from .data

The catalog says how many bytes of a `.data` file count. Bytes after them are from a write that was not finished; they
are cut off before the next write. Only delete flags change in place.

Delete flags are therefore outside of the frames' checksums. The **check** of a frame's flags is 0 if none is set, else
XXH3-64 of its first seq (u64) and the flags. The check of a segment is the XOR of its frames' checks, so a deletion
costs two small hashes, independent of the segment's size.

The catalog has the check of each segment, over all frames but those whose flags it lists in full. Only listed flags may
be written between this catalog and the next one. So a stop during that write does not change what is checked. Flags
that do not match the check are damage; the deleted records do not come back.

The catalog also has the **chain** of each segment: a hash over the marks of its frames, in order. So a file of another
segment, or an older one, is damage even if each of its frames is intact. An index whose marks are not those of the
frames is passed over.

An index entry, little-endian:

    offset  size  field
         0     8  first_seq
         8     8  offset     of the frame in .data
        16     4  length     of the frame
        20     4  count      records
        24     8  first_ts   ms
        32     8  last_ts    ms
        40     8  size       bytes that the records count in the topic's `bytes`
        48     4  flags_at   offset of the delete flags from the frame's start
        52     4  mark       the low 32 bits of the frame's checksum; 0 from older releases
        56     8  checksum   XXH3-64 of the 56 bytes before
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from errno import EIO, ENOENT
from pathlib import Path

import xxhash
from msgspec import Struct
from msgspec.structs import astuple

from proto.format.buffer import Buffer
from proto.format.frame import CHECKSUM, HEADER, Frame, FrameError, Header, Kind, check, decode_batch
from shardd.storage.batch import Batch
from shardd.storage.disk import Disk
from shardd.storage.errors import Exhausted, SegmentError, unreadable
from shardd.storage.read_ahead import READ_AHEAD, ReadAhead
from shardd.storage.remnant import Remnants

ENTRY = struct.Struct("<QQIIqqQII")
MARK = struct.Struct("<I")
ENTRY_SIZE = ENTRY.size + CHECKSUM.size
assert ENTRY_SIZE == 64
PARTS_BYTES = 8 << 20


class Entry(Struct, frozen=True, gc=False):
    first_seq: int
    offset: int
    length: int
    count: int
    first_ts: int
    last_ts: int
    size: int
    flags_at: int
    mark: int = 0

    def encode(self) -> bytes:
        raw = ENTRY.pack(*astuple(self))
        return raw + CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))


def flags_check(first_seq: int, flags: bytes | None) -> int:
    """The check of a frame's delete flags; None if there are none."""
    if flags is None or flags.count(0) == len(flags):
        return 0
    return xxhash.xxh3_64_intdigest(first_seq.to_bytes(8, "little") + flags)


def chained(chain: int | None, marks: Iterable[int]) -> int | None:
    """The chain of a segment with `chain` and frames with these marks after it; None if `chain` is not known."""
    if chain is not None:
        for mark in marks:
            chain = xxhash.xxh3_64_intdigest(MARK.pack(mark), chain)
    return chain


class _Part:
    """Bytes of a file from `start` on, and the offsets of the frames in them whose checksums were verified."""

    __slots__ = ("checked", "data", "start")

    def __init__(self, start: int, data: bytes) -> None:
        self.start = start
        self.data = memoryview(data)
        self.checked: set[int] = set()


class Parts:
    """A cache of segment files: the part read last of each file, up to `PARTS_BYTES` in all, least recently used first
    out.

    A read holds a descriptor only while it runs, so the number of topics being read meets no limit of the process. If a
    file is cut short meanwhile, only that read fails. (A memory map would cost a descriptor and one of the system's
    maps per file, and end the process where bytes are missing.) Records are often counted and cut one by one, so a
    part's frames are checked once, not at each access.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._parts: OrderedDict[Path, _Part] = OrderedDict()
        self._bytes = 0
        self.remnants = Remnants()
        self.met: Callable[[Path, SegmentError, Callable[[], object]], None] = lambda path, error, look: None
        """Called for each file that could not be read: path, error, and a function that tries the read again and raises
        `SegmentError` if it fails."""

    def frame(self, path: Path, entry: Entry, size: int) -> memoryview:
        """The frame of `entry` in a file of which `size` bytes count. Blocks for a read if it is not cached. Raises
        `SegmentError`."""
        try:
            return self._frame(path, entry, size)
        except Exhausted:
            raise
        except SegmentError as error:
            self.met(path, error, lambda: self._look(path, entry, size))
            raise

    def _look(self, path: Path, entry: Entry, size: int) -> None:
        self.drop(path)
        self._frame(path, entry, size)

    def _frame(self, path: Path, entry: Entry, size: int) -> memoryview:
        part = self._parts.get(path)
        end = entry.offset + entry.length
        if part is None or entry.offset < part.start or end > part.start + len(part.data):
            part = self._read(path, entry.offset, max(entry.length, min(READ_AHEAD, size - entry.offset)))
        else:
            self._parts.move_to_end(path)
        view = part.data[entry.offset - part.start : end - part.start]
        if entry.offset not in part.checked:
            try:
                header = check(view)
                if header.first_seq != entry.first_seq or header.count != entry.count:
                    raise FrameError("not the batch the index names")
            except FrameError as error:
                self.drop(path)
                raise SegmentError(f"{path}, offset {entry.offset}: {error}") from error
            part.checked.add(entry.offset)
        return view

    def _read(self, path: Path, offset: int, size: int) -> _Part:
        self.drop(path)
        try:
            part = self._parts[path] = _Part(offset, self._disk.read_part(path, offset, size))
        except OSError as error:
            raise unreadable(path, error) from error
        self._bytes += len(part.data)
        while self._bytes > PARTS_BYTES and len(self._parts) > 1:
            self.drop(next(iter(self._parts)))
        return part

    def drop(self, path: Path) -> None:
        part = self._parts.pop(path, None)
        if part is not None:
            self._bytes -= len(part.data)


class Segment:
    """One pair of files. `size` bytes and `frames` index entries count. `sealed` when no frame will be added."""

    def __init__(self, directory: Path, first_seq: int, created_ms: int, parts: Parts) -> None:
        self.first_seq = first_seq
        self.directory = directory
        self._data_path: Path | None = None
        self.created_ms = created_ms
        self.size = 0
        self.records = 0
        self.frames = 0
        self.last: Entry | None = None
        """The entry of the last frame that counts; None if it is not known."""
        self.chain: int | None = 0
        """Of the frames that count; None if an older release wrote the catalog."""
        self.sum: int | None = 0
        """Of the content hashes of its frames; None if an older release wrote the catalog."""
        self.check = 0
        """The check of the file's delete flags."""
        self.sealed = False
        self.cold = False
        self.parts = parts

    @property
    def data_path(self) -> Path:
        if self._data_path is None:  # made on demand: most segments are not read
            self._data_path = self.directory / f"seg-{self.first_seq:020d}.data"
        return self._data_path

    @property
    def index_path(self) -> Path:
        return self.directory / f"seg-{self.first_seq:020d}.idx"

    def grown(self, entries: list[Entry]) -> None:
        """Count entries whose frames have been written and synced."""
        for entry in entries:
            assert entry.offset == self.size, "frames are back to back"
            self.size = entry.offset + entry.length
            self.records += entry.count
            self.frames += 1
            self.last = entry

    def move_to_cold(self, directory: Path) -> None:
        assert self.sealed, "no batch is written to a file that was copied"
        self.parts.drop(self.data_path)
        self.directory, self._data_path = directory, None
        self.cold = True


class StoredFrame:
    """The place of a batch: one frame of a segment."""

    __slots__ = ("entry", "segment")

    def __init__(self, segment: Segment, entry: Entry) -> None:
        self.segment = segment
        self.entry = entry

    @property
    def remnants(self) -> Remnants:
        return self.segment.parts.remnants

    def load(self) -> memoryview:
        """The frame's bytes. Raises `SegmentError` if they are not those of this batch."""
        segment = self.segment
        return segment.parts.frame(segment.data_path, self.entry, segment.size)


def sealed_frame(batch: Batch, flags: bytes) -> Frame:
    """The segment frame of a batch in memory, with its delete flags."""
    buffer = batch.buffer
    assert buffer is not None
    header = Header(buffer)
    head = bytes(memoryview(buffer)[: HEADER.size + header.body_len])
    room = header.length - len(head) - CHECKSUM.size
    return Frame(head, CHECKSUM.pack(xxhash.xxh3_64_intdigest(head)) + flags.ljust(room, b"\0"))


def entry_of(batch: Batch, offset: int, length: int, flags_at: int, mark: int) -> Entry:
    """The entry of a batch whose frame of `length` bytes is at `offset` of the file."""
    return Entry(
        batch.first_seq, offset, length, batch.count, batch.first_ts, batch.last_ts, batch.size, flags_at, mark
    )


def read_index(disk: Disk, segment: Segment, size: int) -> list[Entry]:
    """The entries of the first `size` bytes of a segment.

    They come from the index file, or from the frames if the index is missing or does not fit. Blocks. Raises
    `SegmentError` for damage, OSError.
    """
    entries = from_index(disk, segment, size)
    return from_data(disk, segment, size) if entries is None else entries


def from_index(disk: Disk, segment: Segment, size: int) -> list[Entry] | None:
    """The entries of the first `size` bytes as the index file has them; None if it is missing, does not fit, or
    the device cannot read it. Raises OSError."""
    try:
        raw = bytes(disk.read(segment.index_path))
    except OSError as error:
        if error.errno in (ENOENT, EIO):
            return None
        raise
    entries = entries_of(raw, size)
    return entries if sum(entry.length for entry in entries) == size else None


def entries_of(raw: bytes, size: int) -> list[Entry]:
    """The entries of an index file up to the one whose frame ends at `size`, or to the first one that does not fit."""
    entries: list[Entry] = []
    end = 0
    for at in range(0, len(raw) - ENTRY_SIZE + 1, ENTRY_SIZE):
        fields = raw[at : at + ENTRY.size]
        if end == size or CHECKSUM.unpack_from(raw, at + ENTRY.size)[0] != xxhash.xxh3_64_intdigest(fields):
            break
        entry = Entry(*ENTRY.unpack(fields))
        if entry.offset != end:
            break
        end += entry.length
        entries.append(entry)
    return entries


def from_data(disk: Disk, segment: Segment, size: int) -> list[Entry]:
    """The entries of the first `size` bytes as the frames have them. Raises `SegmentError` for damage, OSError."""
    file = ReadAhead(disk, segment.data_path)
    if file.size < size:
        raise SegmentError(f"{segment.data_path} has {file.size} bytes, but the catalog says {size} belong to it")
    entries: list[Entry] = []
    offset = 0
    while offset < size:
        try:
            header, frame = file.frame(offset)
            if header.kind != Kind.BATCH:
                raise FrameError(f"a frame of kind {header.kind} in a segment")
        except FrameError as error:
            raise SegmentError(f"{segment.data_path}, offset {offset}: {error}") from error
        batch = Batch(frame, header.first_seq, decode_batch(frame, header))
        flags_at = header.flags_at
        entries.append(entry_of(batch, offset, header.length, flags_at, mark_at(frame, flags_at)))
        offset += header.length
    return entries


def not_ours(segment: Segment) -> SegmentError:
    return SegmentError(f"{segment.data_path}: its frames are not those that were written here")


def wrong_flags(segment: Segment) -> SegmentError:
    return SegmentError(f"{segment.data_path}: its delete flags are not those that were written")


def mark_at(view: Buffer, flags_at: int) -> int:
    """The mark of the frame whose delete flags begin at `flags_at`."""
    return int(MARK.unpack_from(view, flags_at - CHECKSUM.size)[0])


def _tails(disk: Disk, segment: Segment, entries: list[Entry]) -> list[bytes]:
    """Checksum and delete flags of the frames at the places that the entries name; empty where there can be none.
    Raises `SegmentError`, OSError."""
    tails, file = [], ReadAhead(disk, segment.data_path)
    for entry in entries:
        there = HEADER.size < entry.flags_at <= entry.length
        size = CHECKSUM.size + entry.count if there else 0
        tails.append(file.part(entry.offset + entry.flags_at - CHECKSUM.size, size) if there else b"")
        if len(tails[-1]) < size:
            raise SegmentError(f"{segment.data_path} ends in the frame at offset {entry.offset}")
    return tails


def load_batches(
    disk: Disk, segment: Segment, size: int, listed: Container[int] = (), expected: int | None = None
) -> list[Batch]:
    """The batches in the first `size` bytes of a segment.

    `expected` is the check of the delete flags in the catalog, without the frames whose first seqs are in `listed`;
    None if an older release wrote the catalog. `segment.chain` is the one in the catalog. Blocks. Raises `SegmentError`
    for damage, OSError.
    """
    entries = read_index(disk, segment, size)
    if (there := disk.size(segment.data_path)) < size:
        raise SegmentError(f"{segment.data_path} has {there} bytes, but the catalog says {size} belong to it")
    tails = _tails(disk, segment, entries)
    marks = [mark_at(tail, CHECKSUM.size) if tail else -1 for tail in tails]
    if any(entry.mark not in (0, mark) for entry, mark in zip(entries, marks, strict=True)):
        entries = from_data(disk, segment, size)  # the index is of other frames
        tails, marks = _tails(disk, segment, entries), [entry.mark for entry in entries]
    chain = chained(0, marks)
    if segment.chain not in (None, chain):
        raise not_ours(segment)
    segment.chain = chain
    batches = []
    found = 0
    for entry, tail in zip(entries, tails, strict=True):
        flags = tail[CHECKSUM.size :]
        times = (entry.first_ts, entry.last_ts)
        stored = StoredFrame(segment, entry)
        batch = Batch.of_file(stored, entry.first_seq, entry.count, times, entry.size, flags)
        batch.filed = flags_check(entry.first_seq, flags)
        segment.check ^= batch.filed
        if entry.first_seq not in listed:
            found ^= batch.filed
        batches.append(batch)
    if expected is not None and found != expected:
        raise wrong_flags(segment)
    segment.grown(entries)
    return batches

"""Segments: a topic's batches in files of their own, out of the log's way.

    topics/<id, 16 hex digits>/seg-<first seq, 20 digits>.data    batch frames back to back (layout: `proto.frame`)
    topics/<id>/seg-<first seq>.idx                               one entry per frame; can be made from .data

How many bytes of a `.data` file count is written in the catalog; what follows is an attempt that was never finished,
and is cut off before the next one. Nothing in a segment changes but delete flags.

An index entry, little-endian:

    offset  size  field
         0     8  first_seq
         8     8  offset     of the frame in .data
        16     4  length     of the frame
        20     4  count      records
        24     8  first_ts   ms
        32     8  last_ts    ms
        40     8  size       what the records count towards the topic's bytes
        48     4  flags_at   where the delete flags begin, from the frame's start
        52     4  reserved   0
        56     8  checksum   XXH3-64 of the 56 bytes before
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import xxhash

from proto.frame import CHECKSUM, HEADER, Frame, FrameError, Header, Kind, check, decode_batch
from shardd.batch import Batch
from shardd.damage import SegmentError
from shardd.disk import Disk

ENTRY = struct.Struct("<QQIIqqQII")
ENTRY_SIZE = ENTRY.size + CHECKSUM.size
assert ENTRY_SIZE == 64


@dataclass(frozen=True, slots=True)
class Entry:
    first_seq: int
    offset: int
    length: int
    count: int
    first_ts: int
    last_ts: int
    size: int
    flags_at: int

    def encode(self) -> bytes:
        raw = ENTRY.pack(
            self.first_seq,
            self.offset,
            self.length,
            self.count,
            self.first_ts,
            self.last_ts,
            self.size,
            self.flags_at,
            0,
        )
        return raw + CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


class Views:
    """Files that are mapped into memory, the least recently used ones let go beyond `max_bytes`.

    They remember which frames were found whole: records are often counted and cut one by one, and a checksum over all
    their neighbours each time would cost more than the work itself.
    """

    def __init__(self, disk: Disk, max_bytes: int) -> None:
        self._disk = disk
        self._max_bytes = max_bytes
        self._views: OrderedDict[Path, memoryview] = OrderedDict()
        self._checked: dict[Path, set[int]] = {}
        self._bytes = 0

    def get(self, path: Path, size: int) -> memoryview:
        """The file's bytes, at least `size` of them if it has so many."""
        view = self._views.get(path)
        if view is None or len(view) < size:
            self.drop(path)
            view = self._views[path] = self._disk.read(path)
            self._checked[path] = set()
            self._bytes += len(view)
            while self._bytes > self._max_bytes and len(self._views) > 1:
                self.drop(next(iter(self._views)))
        else:
            self._views.move_to_end(path)
        return view

    def checked(self, path: Path) -> set[int]:
        """Offsets of the frames that were found whole since the file was mapped. To be added to; none if it is not."""
        return self._checked.get(path, set())

    def drop(self, path: Path) -> None:
        view = self._views.pop(path, None)
        if view is not None:
            self._bytes -= len(view)
            del self._checked[path]


class Segment:
    """One pair of files. `size` bytes and `entries` count; `sealed` when nothing will be added any more."""

    def __init__(self, directory: Path, first_seq: int, created_ms: int, views: Views) -> None:
        self.first_seq = first_seq
        self._place(directory)
        self.created_ms = created_ms
        self.size = 0
        self.records = 0
        self.frames = 0
        self.last_seq = first_seq - 1
        self.sealed = False
        self.cold = False
        self._views = views

    def _place(self, directory: Path) -> None:
        self.directory = directory
        self.data_path = directory / f"seg-{self.first_seq:020d}.data"
        self.index_path = directory / f"seg-{self.first_seq:020d}.idx"

    def load(self, entry: Entry, again: bool) -> memoryview:
        """The frame's bytes; checked `again`, or once for as long as the file is mapped. Raises `SegmentError` if they
        are not those the index names."""
        path = self.data_path
        view = self._views.get(path, entry.offset + entry.length)[entry.offset : entry.offset + entry.length]
        checked = self._views.checked(path)
        if not again and entry.offset in checked:
            return view
        try:
            header = check(view)
        except FrameError as error:
            raise SegmentError(f"{path}, offset {entry.offset}: {error}") from error
        if header.first_seq != entry.first_seq or header.count != entry.count:
            raise SegmentError(f"{path}, offset {entry.offset}: not the batch the index names")
        checked.add(entry.offset)
        return view

    def grown(self, entries: list[Entry]) -> None:
        """Entries were written and synced."""
        for entry in entries:
            self.size = entry.offset + entry.length
            self.records += entry.count
            self.frames += 1
            self.last_seq = entry.last_seq

    def moved(self, directory: Path) -> None:
        self._views.drop(self.data_path)
        self._place(directory)
        self.cold = True


class StoredFrame:
    """Where a batch is: a frame of a segment."""

    __slots__ = ("entry", "segment")

    def __init__(self, segment: Segment, entry: Entry) -> None:
        self.segment = segment
        self.entry = entry

    def load(self, *, again: bool = True) -> memoryview:
        """The frame's bytes. Raises `SegmentError` if they are not those of this batch."""
        return self.segment.load(self.entry, again)


def sealed_frame(batch: Batch, flags: bytes) -> Frame:
    """A batch in memory as it goes into a segment, with its delete flags."""
    buffer = batch.buffer
    assert buffer is not None
    header = Header(buffer)
    head = bytes(memoryview(buffer)[: HEADER.size + header.body_len])
    room = header.length - len(head) - CHECKSUM.size
    return Frame(head, CHECKSUM.pack(xxhash.xxh3_64_intdigest(head)) + flags.ljust(room, b"\0"))


def entry_of(batch: Batch, frame: Frame, offset: int) -> Entry:
    return Entry(
        batch.first_seq,
        offset,
        len(frame),
        batch.count,
        batch.first_ts,
        batch.last_ts,
        batch.size,
        len(frame.head) + CHECKSUM.size,
    )


def read_index(disk: Disk, segment: Segment, size: int) -> list[Entry]:
    """The entries of the first `size` bytes of a segment, from its index or, if that does not fit, from its frames.

    Raises `SegmentError` for damage, OSError.
    """
    entries = _from_index(disk, segment, size)
    return _from_data(disk, segment, size) if entries is None else entries


def _from_index(disk: Disk, segment: Segment, size: int) -> list[Entry] | None:
    try:
        raw = bytes(disk.read(segment.index_path))
    except FileNotFoundError:
        return None
    entries: list[Entry] = []
    end = 0
    for at in range(0, len(raw) - ENTRY_SIZE + 1, ENTRY_SIZE):
        if end == size:
            break
        fields = raw[at : at + ENTRY.size]
        if CHECKSUM.unpack_from(raw, at + ENTRY.size)[0] != xxhash.xxh3_64_intdigest(fields):
            return None
        entry = Entry(*ENTRY.unpack(fields)[:-1])
        if entry.offset != end:
            return None
        end += entry.length
        entries.append(entry)
    return entries if end == size else None


def _from_data(disk: Disk, segment: Segment, size: int) -> list[Entry]:
    view = disk.read(segment.data_path)
    if len(view) < size:
        raise SegmentError(f"{segment.data_path} has {len(view)} bytes, but the catalog says {size} belong to it")
    entries: list[Entry] = []
    offset = 0
    while offset < size:
        try:
            header = check(view, offset)
            if header.kind != Kind.BATCH:
                raise FrameError(f"a frame of kind {header.kind} in a segment")
        except FrameError as error:
            raise SegmentError(f"{segment.data_path}, offset {offset}: {error}") from error
        frame = view[offset : offset + header.length]
        batch = Batch(frame, header.first_seq, decode_batch(frame, header))
        entries.append(
            Entry(
                header.first_seq,
                offset,
                header.length,
                header.count,
                batch.first_ts,
                batch.last_ts,
                batch.size,
                HEADER.size + header.body_len + CHECKSUM.size,
            )
        )
        offset += header.length
    return entries


def load_batches(disk: Disk, segment: Segment, size: int) -> list[Batch]:
    """The batches of a segment as the catalog knows it. Raises `SegmentError`, OSError."""
    entries = read_index(disk, segment, size)
    view = disk.read(segment.data_path)
    if len(view) < size:
        raise SegmentError(f"{segment.data_path} has {len(view)} bytes, but the catalog says {size} belong to it")
    batches = []
    for entry in entries:
        flags_from = entry.offset + entry.flags_at
        flags = bytes(view[flags_from : flags_from + entry.count])
        times = (entry.first_ts, entry.last_ts)
        stored = StoredFrame(segment, entry)
        batches.append(Batch.of_file(stored, entry.first_seq, entry.count, times, entry.size, flags))
    segment.grown(entries)
    return batches

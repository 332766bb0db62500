"""Segment: a file with batches of one topic. The catalog has the number of its valid bytes.

    topics/<topic id, 16 hex digits>/seg-<first seq, 20 digits>.data
    topics/<topic id, 16 hex digits>/seg-<first seq, 20 digits>.idx

These bytes were synced before the catalog got its name, so any error in them is damage. Only delete flags change later.

The index has an entry of 64 bytes for each frame: u64 first seq, u64 offset, u32 length, u32 records, i64 time of the
first record, i64 of the last one (ms), 16 bytes that are not used here, u64 XXH3-64 of the 56 bytes before. It allows
frames to be skipped unread. If the index is missing or does not match, the frames themselves are read instead.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pyspark_topics import frames
from pyspark_topics.errors import CorruptFile, UnknownFormat, tell
from pyspark_topics.xxh3 import digest

_ENTRY = struct.Struct("<QQIIqq16xQ")
assert _ENTRY.size == 64


@dataclass(frozen=True, slots=True)
class Entry:
    """Index entry of a batch. `last_ts` is the time of its last record, or None if only the batch itself has it."""

    first_seq: int
    offset: int
    length: int
    count: int
    first_ts: int
    last_ts: int | None

    @property
    def header(self) -> tuple[int, int, int, int]:
        """The fields that the frame's header has too."""
        return self.first_seq, self.length, self.count, self.first_ts


def data_path(base: Path, topic_id: int, first_seq: int) -> Path:
    return base / "topics" / f"{topic_id:016x}" / f"seg-{first_seq:020d}.data"


class Segment:
    """The first `size` bytes of a segment file of the topic with id `topic_id` and name `name`.

    Damage raises `CorruptFile` if `fail`; else it is logged and skipped. Raises `FileNotFoundError`.
    """

    def __init__(self, path: str, topic_id: int, size: int, name: str = "", fail: bool = True) -> None:
        self.path = path
        self.fail = fail
        self._topic_id = topic_id
        self._name = name
        with open(path, "rb") as file:
            there = file.seek(0, 2)
            if there < size:
                tell(CorruptFile(f"{path}{self._whose}: {there} bytes, but the catalog says {size} belong to it"), fail)
                size = there
            # The server may truncate the bytes after `size` at any time, so they are not mapped.
            data = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) if size else b""
        self.buffer = pa.py_buffer(data)
        self.view = memoryview(data)

    @property
    def _whose(self) -> str:
        return f' (topic "{self._name}")' if self._name else ""

    def entries(self) -> list[Entry]:
        """All batches, in order, from the index if it is valid. Raises `CorruptFile`."""
        return self._index() or [
            Entry(head.first_seq, head.offset, head.length, head.count, head.ts_ms, last_ts(head))
            for head in self._walk()
        ]

    def heads(self, wanted: Callable[[Entry], bool] | None = None) -> Iterator[frames.Head]:
        """The headers of the `wanted` frames, in order. With a valid index, other frames are not read; without one, all
        frames are read and verified. Raises `CorruptFile`."""
        entries = self._index()
        if entries is None:
            for head in self._walk():
                entry = Entry(head.first_seq, head.offset, head.length, head.count, head.ts_ms, last_ts(head))
                if wanted is None or wanted(entry):
                    yield head
            return
        for entry in entries:
            if wanted is None or wanted(entry):
                try:
                    head = self._head(entry.offset)
                    if (head.first_seq, head.length, head.count, head.ts_ms) != entry.header:
                        raise frames.FrameError("its header is not what the index says")
                except frames.FrameError as error:
                    self.ends_at(entry.offset, 0, error)
                    continue
                yield head

    def _index(self) -> list[Entry] | None:
        try:
            raw = Path(self.path).with_suffix(".idx").read_bytes()
        except OSError:
            return None
        entries: list[Entry] = []
        at = 0
        for place in range(0, len(raw) - _ENTRY.size + 1, _ENTRY.size):
            if at == len(self.view):
                break
            *fields, checksum = _ENTRY.unpack_from(raw, place)
            if fields[1] != at or digest(raw[place : place + 56]) != checksum:
                return None
            entries.append(Entry(*fields))
            at += fields[2]
        return entries if at == len(self.view) else None

    def _head(self, offset: int) -> frames.Head:
        try:
            head = frames.Head(self.view, offset)
        except UnknownFormat as error:
            raise UnknownFormat(f"{self.path}, byte {offset}: {error}") from error
        if head.kind != frames.BATCH or head.topic_id != self._topic_id:
            raise frames.FrameError(f"a frame of kind {head.kind} and topic id {head.topic_id}")
        return head

    def _walk(self) -> Iterator[frames.Head]:
        offset = 0
        while offset < len(self.view):
            try:
                head = self._head(offset)
                # With an index, tasks verify the frames they read. Without one, the header decides which to read, so it
                # must be verified first.
                frames.verify(self.view, head)
            except frames.FrameError as error:
                self.ends_at(offset, 0, error)
                # Reached only if damage is skipped: find the next complete frame.
                while (offset := frames.find(self.view, offset + 1)) >= 0 and not frames.is_whole(self.view, offset):
                    pass
                if offset < 0:
                    return
                continue
            yield head
            offset += head.length

    def ends_at(self, offset: int, number: int, reason: frames.FrameError) -> None:
        """Raise `CorruptFile`, unless damage is skipped: a segment never ends early without damage."""
        damage = CorruptFile(f"{self.path}, byte {offset}{self._whose}: {reason}; the segment is damaged")
        damage.__cause__ = reason
        tell(damage, self.fail)


def last_ts(head: frames.Head) -> int | None:
    """The time of a frame's last record, or None if the header does not have it."""
    return None if head.flags & frames.OWN_TIMES else head.ts_ms

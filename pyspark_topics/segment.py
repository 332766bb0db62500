"""Segment: a file with batches of one topic. The catalog has the number of its valid bytes.

    topics/<topic id, 16 hex digits>/seg-<first seq, 20 digits>.data
    topics/<topic id, 16 hex digits>/seg-<first seq, 20 digits>.idx

These bytes were synced before the catalog got its name, so any error in them is damage. Only delete flags change later.

The index has an entry of 64 bytes for each frame: u64 first seq, u64 offset, u32 length, u32 records, i64 time of the
first record, i64 of the last one (ms), 16 bytes that are not used here, u64 XXH3-64 of the 56 bytes before. It allows
frames to be skipped unread. If the index is missing or does not match, the frames themselves are read instead.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pyspark_topics import frames
from pyspark_topics.errors import CorruptFile, UnknownFormat, tell
from pyspark_topics.storage import File
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

    @classmethod
    def of(cls, head: frames.Head) -> Entry:
        """The entry of a frame, as far as its header has it."""
        last_ts = None if head.flags & frames.OWN_TIMES else head.ts_ms
        return cls(head.first_seq, head.offset, head.length, head.count, head.ts_ms, last_ts)


def data_name(topic_id: int, first_seq: int) -> str:
    """Name of the data file in the directory of its shard."""
    return f"topics/{topic_id:016x}/seg-{first_seq:020d}.data"


class Segment:
    """The first `size` bytes of a segment file of the topic with id `topic_id` and name `name`.

    Damage raises `CorruptFile` if `fail`; else it is logged and skipped. Raises `FileNotFoundError`.
    """

    def __init__(self, file: File, topic_id: int, size: int, name: str = "", fail: bool = True) -> None:
        self.file = file
        self.fail = fail
        self._topic_id = topic_id
        self._name = name
        # The server may truncate the bytes after `size` at any time.
        self._content = file.open(size, settled=True)
        if (there := self._content.size) < size:
            about = f"{there} bytes, but the catalog says {size} belong to it{file.remedy}"
            tell(CorruptFile(f"{file.path}{self._whose}: {about}"), fail)
        self.buffer = self._content.buffer
        self.view = self._content.view

    @property
    def _whose(self) -> str:
        return f' (topic "{self._name}")' if self._name else ""

    def entries(self) -> list[Entry]:
        """All batches, in order, from the index if it is valid. Raises `CorruptFile`."""
        found = self._index()
        return [*map(Entry.of, self.heads())] if found is None else found

    def heads(self, wanted: Callable[[Entry], bool] | None = None) -> Iterator[frames.Head]:
        """The headers of the `wanted` frames, in order. With a valid index, other frames are not read; without one, all
        frames are read and verified. Raises `FileNotFoundError`, and while the headers are taken `CorruptFile`."""
        entries = self._index()
        if entries is None:
            self.read()
            return (head for head in self._walk() if wanted is None or wanted(Entry.of(head)))
        chosen = [entry for entry in entries if wanted is None or wanted(entry)]
        self._content.need((entry.offset, entry.length) for entry in chosen)
        return self._chosen(chosen)

    def read(self) -> None:
        """Read all bytes, so that `view` has them. Raises `CorruptFile`, OSError."""
        self._content.need([(0, len(self.view))])

    def _chosen(self, entries: Iterable[Entry]) -> Iterator[frames.Head]:
        for entry in entries:
            try:
                head = self._head(entry.offset)
                said = entry.first_seq, entry.length, entry.count, entry.first_ts
                if (head.first_seq, head.length, head.count, head.ts_ms) != said:
                    raise frames.FrameError("its header is not what the index says")
            except frames.FrameError as error:
                self.ends_at(entry.offset, 0, error)
                continue
            yield head

    def head(self, entry: Entry) -> frames.Head:
        """The header of one of the batches. Raises `FrameError`, `UnknownFormat`."""
        self._content.need([(entry.offset, entry.length)])
        return self._head(entry.offset)

    def _index(self) -> list[Entry] | None:
        raw = self.file.index()
        if raw is None:
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
            raise UnknownFormat(f"{self.file.at(offset)}: {error}") from error
        if head.kind != frames.BATCH or head.topic_id > self._topic_id:
            raise frames.FrameError(f"a frame of kind {head.kind} and topic id {head.topic_id}")
        head.topic_id = self._topic_id  # salvage and reshard give a topic a later id, and its frames keep theirs
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
                if (whole := next(frames.whole_after(self.view, offset), None)) is None:
                    return
                offset = whole.offset
                continue
            yield head
            offset += head.length

    def ends_at(self, offset: int, number: int, reason: frames.FrameError) -> None:
        """Raise `CorruptFile`, unless damage is skipped: a segment never ends early without damage."""
        about = f"{self._whose}: {reason}; the segment is damaged{self.file.remedy}"
        damage = CorruptFile(f"{self.file.at(offset)}{about}")
        damage.__cause__ = reason
        tell(damage, self.fail)

"""A segment: batches of one topic in a file of their own, of which a catalog says how many bytes count.

    topics/<topic id, 16 hex digits>/seg-<first seq, 20 digits>.data
    topics/<topic id, 16 hex digits>/seg-<first seq, 20 digits>.idx

Everything before that many bytes was synced before the catalog got its name, so whatever is wrong there is damage.
Nothing in it changes but delete flags.

The index has an entry of 64 bytes for each frame: u64 first seq, u64 offset, u32 length, u32 records, i64 time of the
first record, i64 of the last one (ms), 16 bytes that are not used here, u64 XXH3-64 of the 56 bytes before. It says
which frames need not be looked at. An index that is missing or does not fit is passed over for the frames themselves.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import xxhash

from pyspark_topics import frames
from pyspark_topics.errors import CorruptFile, UnknownFormat, tell

_ENTRY = struct.Struct("<QQIIqq16xQ")
assert _ENTRY.size == 64


@dataclass(frozen=True, slots=True)
class Entry:
    """A batch, as the index has it. `last_ts` is that of its last record, or `None` if only the batch itself tells."""

    first_seq: int
    offset: int
    length: int
    count: int
    first_ts: int
    last_ts: int | None


def data_path(base: Path, topic_id: int, first_seq: int) -> Path:
    return base / "topics" / f"{topic_id:016x}" / f"seg-{first_seq:020d}.data"


class Segment:
    """The first `size` bytes of a segment file of topic `topic_id`, called `name`.

    With `fail` damage raises `CorruptFile`; else it is logged and passed over. Raises `FileNotFoundError`.
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
            # What follows may be cut off by the server at any time, so it is not mapped.
            data = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) if size else b""
        self.buffer = pa.py_buffer(data)
        self.view = memoryview(data)

    @property
    def _whose(self) -> str:
        return f' (topic "{self._name}")' if self._name else ""

    def entries(self) -> list[Entry]:
        """All batches, in order, from the index if there is a good one. Raises `CorruptFile`."""
        return self._index() or [
            Entry(head.first_seq, head.offset, head.length, head.count, head.ts_ms, last_ts(head))
            for head in self._walk()
        ]

    def heads(self, wanted: Callable[[Entry], bool] | None = None) -> Iterator[frames.Head]:
        """The headers of the frames that are `wanted`, in order. Others are not even touched if there is a good index;
        the frames themselves are not looked at. Raises `CorruptFile`."""
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
                    yield self._head(entry.offset)
                except frames.FrameError as error:
                    self.ends_at(entry.offset, 0, error)

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
            if fields[1] != at or xxhash.xxh3_64_intdigest(raw[place : place + 56]) != checksum:
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
            except frames.FrameError as error:
                self.ends_at(offset, 0, error)
                # Only if damage is passed over: the next place where a whole frame stands.
                while (offset := frames.find(self.view, offset + 1)) >= 0 and not frames.is_whole(self.view, offset):
                    pass
                if offset < 0:
                    return
                continue
            yield head
            offset += head.length

    def ends_at(self, offset: int, number: int, reason: frames.FrameError) -> None:
        """There is no good reason for a segment to end early: raises `CorruptFile`, unless damage is passed over."""
        damage = CorruptFile(f"{self.path}, byte {offset}{self._whose}: {reason}; the segment is damaged")
        damage.__cause__ = reason
        tell(damage, self.fail)


def last_ts(head: frames.Head) -> int | None:
    """The time of a frame's last record, where its header tells."""
    return None if head.flags & frames.OWN_TIMES else head.ts_ms

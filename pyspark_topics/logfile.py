"""One file of a shard's log: finding its frames, and telling an unfinished end from damage.

what stands where a frame should begin                          decision
a frame with the next number                                    read it
nothing, the file ends                                          done
a frame of an unknown version or kind                           refuse
anything else, in a file that has a successor                   error with path and offset
anything else, in the newest file, and a later whole frame      error with path and offset: it was once on the disk
  says that this one was surely on the disk
anything else, in the newest file                               done: the server is writing it, or died doing so
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pyspark_topics import frames

BATCH_ROWS = 10_000
"""Frames are joined until they hold this many records. More per batch would not make Spark faster."""
BATCH_BYTES = 16 << 20


class CorruptLog(ValueError):
    """A file of the log is damaged. The text names the file, the place and the reason."""


class LogFile:
    """The bytes of one file as they are now. What the server appends later is not seen.

    `first` is the number of the frame that the file begins with, `until` the one that its successor begins with (their
    names say so), None if it is the shard's newest file. `end` limits the bytes looked at.
    """

    def __init__(self, path: str, first: int, until: int | None, end: int | None = None) -> None:
        self.path = path
        self.first = first
        self.until = until
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            if end is not None and size < end and until is not None:
                raise CorruptLog(f"{path}: {size} bytes, but there were {end} when the read was planned")
            self.size = size if end is None else min(end, size)
            # An empty file cannot be mapped.
            data: Any = mmap.mmap(file.fileno(), self.size, prot=mmap.PROT_READ) if self.size else b""
        self.buffer = pa.py_buffer(data)
        self.view = memoryview(data)

    def heads(self) -> Iterator[frames.Head]:
        """The headers of all frames, in order; the frames themselves are not looked at. Raises `CorruptLog`."""
        offset, expected = 0, self.first
        while expected != self.until and (offset < self.size or self.until is not None):
            try:
                head = frames.Head(self.view, offset)
                if head.frame_no != expected:
                    raise frames.FrameError(f"frame number {head.frame_no} where {expected} should be")
            except frames.UnknownFormat as error:
                raise frames.UnknownFormat(f"{self.path}, byte {offset}: {error}") from error
            except frames.FrameError as error:
                self.ends_at(offset, expected, error)
                return
            yield head
            offset += head.length
            expected += 1

    def ends_at(self, offset: int, number: int, reason: frames.FrameError) -> None:
        """Return if the log may end at this byte, where frame `number` should be; else raise `CorruptLog`."""
        if self.until is not None:
            raise CorruptLog(
                f"{self.path}, byte {offset}: {reason}; the next file begins with frame {self.until}, so frame "
                f"{number} is damaged or missing"
            ) from reason
        at = offset
        while (at := _find(self.view, at + 1)) >= 0:
            try:
                head = frames.Head(self.view, at)
                frames.verify(self.view, head)
            except (frames.FrameError, frames.UnknownFormat):
                continue
            if head.synced_no >= number:
                raise CorruptLog(
                    f"{self.path}, byte {offset}: {reason}; frame {head.frame_no} at byte {at} says that frame "
                    f"{number} was written completely, so the file is damaged"
                ) from reason

    def batches(self, names: dict[int, str], shard: int, schema: Any) -> Iterator[Any]:
        """Every live record of the topics in `names` (topic id → name) as `pa.RecordBatch`es, in log order.

        Raises `CorruptLog`.
        """
        group: list[frames.Records] = []
        flags: list[memoryview] = []
        rows = size = 0
        for head in self.heads():
            if head.kind != frames.BATCH or head.topic_id not in names:
                continue
            try:
                frames.verify(self.view, head)
                records = frames.Records(self.buffer, self.view, head)
            except frames.FrameError as error:
                self.ends_at(head.offset, head.frame_no, error)
                break
            if group and (rows + head.count > BATCH_ROWS or size + head.length > BATCH_BYTES):
                yield frames.batch(group, flags, names, shard, schema)
                group, flags, rows, size = [], [], 0, 0
            group.append(records)
            flags.append(frames.delete_flags(self.view, head))
            rows += head.count
            size += head.length
        if group:
            yield frames.batch(group, flags, names, shard, schema)


def _find(view: memoryview, start: int) -> int:
    """The next place at a multiple of 8 where a frame's magic stands, or -1. Looked for in pieces, not in one copy."""
    piece = 1 << 20
    at = (start + 7) & ~7
    while at < len(view):
        chunk = bytes(view[at : at + piece + 3])
        found = chunk.find(frames.MAGIC)
        while found >= 0:
            if found % 8 == 0 and found < piece:
                return at + found
            found = chunk.find(frames.MAGIC, found + 1)
        at += piece
    return -1


@dataclass(slots=True)
class Contents:
    """What the headers of one file say: which topics it has records of, which were created or deleted in it."""

    end: int = 0
    written: set[int] = field(default_factory=set)
    created: dict[int, str] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)


def survey(log: LogFile) -> Contents:
    """Walk a file's headers, and read the frames that create and delete topics. Raises `CorruptLog`."""
    found = Contents()
    for head in log.heads():
        if head.kind == frames.BATCH:
            found.written.add(head.topic_id)
        elif head.kind in (frames.TOPIC_CREATE, frames.TOPIC_DELETE):
            try:
                frames.verify(log.view, head)
                about = frames.fields(log.view, head)
                if head.kind == frames.TOPIC_DELETE:
                    found.deleted.add(head.topic_id)
                elif isinstance(name := about.get("name"), str):
                    found.created[head.topic_id] = name
                else:
                    raise frames.FrameError("a topic was created without a name")
            except frames.FrameError as error:
                log.ends_at(head.offset, head.frame_no, error)
                return found
        found.end = head.offset + head.length
    return found


def wanted(names: dict[int, str], present: Collection[int]) -> dict[int, str]:
    """The part of `names` that concerns one file."""
    return {topic_id: names[topic_id] for topic_id in present if topic_id in names}

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
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pyspark_topics import frames
from pyspark_topics.errors import CorruptFile, UnknownFormat


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
                raise CorruptFile(f"{path}: {size} bytes, but there were {end} when the read was planned")
            self.size = size if end is None else min(end, size)
            # The server may cut its newest file back, after a failed write: a mapped page could go away under us.
            # (An empty file cannot be mapped either.)
            file.seek(0)
            mapped = until is not None and self.size
            data: Any = mmap.mmap(file.fileno(), self.size, prot=mmap.PROT_READ) if mapped else file.read(self.size)
            self.size = len(data)
        self.buffer = pa.py_buffer(data)
        self.view = memoryview(data)

    def heads(self) -> Iterator[frames.Head]:
        """The headers of all frames, in order; the frames themselves are not looked at. Raises `CorruptFile`."""
        offset, expected = 0, self.first
        while expected != self.until and (offset < self.size or self.until is not None):
            try:
                head = frames.Head(self.view, offset)
                if head.frame_no != expected:
                    raise frames.FrameError(f"frame number {head.frame_no} where {expected} should be")
            except UnknownFormat as error:
                raise UnknownFormat(f"{self.path}, byte {offset}: {error}") from error
            except frames.FrameError as error:
                self.ends_at(offset, expected, error)
                return
            yield head
            offset += head.length
            expected += 1

    def ends_at(self, offset: int, number: int, reason: frames.FrameError) -> None:
        """Return if the log may end at this byte, where frame `number` should be; else raise `CorruptFile`."""
        if self.until is not None:
            raise CorruptFile(
                f"{self.path}, byte {offset}: {reason}; the next file begins with frame {self.until}, so frame "
                f"{number} is damaged or missing"
            ) from reason
        at = offset
        while (at := _find(self.view, at + 1)) >= 0:
            try:
                head = frames.Head(self.view, at)
                frames.verify(self.view, head)
            except (frames.FrameError, UnknownFormat):
                continue
            if head.synced_no >= number:
                raise CorruptFile(
                    f"{self.path}, byte {offset}: {reason}; frame {head.frame_no} at byte {at} says that frame "
                    f"{number} was written completely, so the file is damaged"
                ) from reason


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

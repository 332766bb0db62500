"""A segment: batches of one topic in a file of their own, of which a catalog says how many bytes count.

    topics/<topic id, 16 hex digits>/seg-<first seq, 20 digits>.data

Everything before that many bytes was synced before the catalog got its name, so whatever is wrong there is damage.
Nothing in it changes but delete flags.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pyspark_topics import frames
from pyspark_topics.errors import CorruptFile, UnknownFormat


def data_path(base: Path, topic_id: int, first_seq: int) -> Path:
    return base / "topics" / f"{topic_id:016x}" / f"seg-{first_seq:020d}.data"


class Segment:
    """The first `size` bytes of a segment file of topic `topic_id`. Raises `FileNotFoundError`, `CorruptFile`."""

    def __init__(self, path: str, topic_id: int, size: int) -> None:
        self.path = path
        self._topic_id = topic_id
        with open(path, "rb") as file:
            there = file.seek(0, 2)
            if there < size:
                raise CorruptFile(f"{path} has {there} bytes, but the catalog says {size} belong to it")
            # What follows may be cut off by the server at any time, so it is not mapped.
            data = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
        self.buffer = pa.py_buffer(data)
        self.view = memoryview(data)

    def heads(self) -> Iterator[frames.Head]:
        """The headers of all frames, in order; the frames themselves are not looked at. Raises `CorruptFile`."""
        offset = 0
        while offset < len(self.view):
            try:
                head = frames.Head(self.view, offset)
                if head.kind != frames.BATCH or head.topic_id != self._topic_id:
                    raise frames.FrameError(f"a frame of kind {head.kind} and topic id {head.topic_id}")
            except UnknownFormat as error:
                raise UnknownFormat(f"{self.path}, byte {offset}: {error}") from error
            except frames.FrameError as error:
                self.ends_at(offset, 0, error)
                return
            yield head
            offset += head.length

    def ends_at(self, offset: int, number: int, reason: frames.FrameError) -> None:
        """There is no good reason for a segment to end early: raises `CorruptFile`."""
        raise CorruptFile(f"{self.path}, byte {offset}: {reason}; the segment is damaged") from reason

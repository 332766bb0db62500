"""Segment check: whether a segment's file has the bytes that were written to it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path

from proto.format.buffer import Buffer
from proto.format.frame import CHECKSUM, FrameError, Header, check
from shardd.storage.disk import Disk
from shardd.storage.errors import SegmentError
from shardd.storage.segment import MARK, Segment, chained, flags_check, mark_at, not_ours, wrong_flags


def ends_as_written(disk: Disk, segment: Segment) -> bool | None:
    """True if a segment's file has the mark of the last frame in its place, so that it is not the file of another
    segment, or of another time; None if that mark is not known. Blocks. Raises OSError."""
    last = segment.last
    if last is None or not last.mark:
        return None
    at = last.offset + last.flags_at - CHECKSUM.size
    return disk.read_part(segment.data_path, at, MARK.size) == MARK.pack(last.mark)


def whole_frames(view: Buffer, size: int, path: Path) -> Iterator[tuple[int, Header]]:
    """Offset and header of each frame in the first `size` bytes of a file, which have to be valid frames back to back.
    Raises `SegmentError`."""
    offset = 0
    while offset < size:
        try:
            header = check(view, offset)
        except FrameError as error:
            raise SegmentError(f"{path}, offset {offset}: {error}") from error
        yield offset, header
        offset += header.length


def check_whole(view: Buffer, segment: Segment, listed: Container[int], expected: int) -> None:
    """Check that the bytes of a segment that count are those that were written: each frame, their chain, and the delete
    flags, whose check is `expected` without the frames in `listed`. Raises `SegmentError`."""
    view = memoryview(view)[: segment.size]
    marks: list[int] = []
    found = 0
    for offset, header in whole_frames(view, segment.size, segment.data_path):
        flags_from = offset + header.flags_at
        marks.append(mark_at(view, flags_from))
        if header.first_seq not in listed:
            found ^= flags_check(header.first_seq, bytes(view[flags_from : flags_from + header.count]))
    if segment.chain not in (None, chained(0, marks)):
        raise not_ours(segment)
    if found != expected:
        raise wrong_flags(segment)

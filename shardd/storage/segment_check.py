"""Segment check: whether a segment's file has the bytes that were written to it."""

from __future__ import annotations

from collections.abc import Container

from proto.format.buffer import Buffer
from proto.format.frame import CHECKSUM, FrameError, check
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


def check_whole(view: Buffer, segment: Segment, listed: Container[int], expected: int) -> None:
    """Check that the bytes of a segment that count are those that were written: each frame, their chain, and the delete
    flags, whose check is `expected` without the frames in `listed`. Raises `SegmentError`."""
    view = memoryview(view)[: segment.size]
    marks: list[int] = []
    offset = found = 0
    while offset < segment.size:
        try:
            header = check(view, offset)
        except FrameError as error:
            raise SegmentError(f"{segment.data_path}, offset {offset}: {error}") from error
        flags_from = offset + header.flags_at
        marks.append(mark_at(view, flags_from))
        if header.first_seq not in listed:
            found ^= flags_check(header.first_seq, bytes(view[flags_from : flags_from + header.count]))
        offset += header.length
    if segment.chain not in (None, chained(0, marks)):
        raise not_ours(segment)
    if found != expected:
        raise wrong_flags(segment)

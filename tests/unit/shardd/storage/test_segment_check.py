"""Segment check: a segment's file is the one that was written, or another one, or damaged."""

from __future__ import annotations

import pytest

from proto.format.frame import Header
from shardd.storage.errors import SegmentError
from shardd.storage.segment import Segment
from shardd.storage.segment_check import check_whole, ends_as_written
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness


def written(value: str) -> tuple[FaultDisk, Segment]:
    """A segment with two frames. Those of another value have the same lengths, numbers and times."""
    disk = FaultDisk()
    shard = Harness(disk)
    for n in range(2):
        shard.append("a", f"{value} {n}", config={"durability": "fsync"})
        shard.shard.commits.sync_now()
        shard.shard.checkpoint_now()
    (segment,) = shard.shard.directory.visible["a"].segments
    return disk, segment


def test_a_segment_as_it_was_written_passes() -> None:
    disk, segment = written("ours")
    assert ends_as_written(disk, segment)
    check_whole(disk.read(segment.data_path), segment, (), segment.check)


def test_the_segment_of_another_shard_does_not() -> None:
    _, segment = written("ours")
    theirs, other = written("mine")
    assert ends_as_written(theirs, segment) is False
    with pytest.raises(SegmentError, match="not those that were written here"):
        check_whole(theirs.read(other.data_path), segment, (), segment.check)


def test_each_changed_byte_is_noticed_but_padding() -> None:
    disk, segment = written("ours")
    whole = bytes(disk.read(segment.data_path))
    offset, padding = 0, set[int]()
    while offset < segment.size:
        header = Header(whole, offset)
        padding |= {*range(offset + header.flags_at + header.count, offset + header.length)}
        offset += header.length
    for at in {*range(segment.size)} - padding:
        changed = bytearray(whole)
        changed[at] ^= 1
        with pytest.raises(SegmentError):
            check_whole(changed, segment, (), segment.check)


def test_flags_that_are_to_be_written_again_are_passed_over() -> None:
    disk, segment = written("ours")
    assert segment.last is not None
    changed = bytearray(disk.read(segment.data_path))
    changed[segment.last.offset + segment.last.flags_at] ^= 1
    with pytest.raises(SegmentError, match="delete flags"):
        check_whole(changed, segment, (), segment.check)
    check_whole(changed, segment, (segment.last.first_seq,), segment.check)


def test_a_mark_that_is_not_known_says_nothing() -> None:
    disk, segment = written("ours")
    segment.last = None
    assert ends_as_written(disk, segment) is None

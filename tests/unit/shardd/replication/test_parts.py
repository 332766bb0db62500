"""Parts of the log: their bytes, and what is no part."""

from __future__ import annotations

import pytest

from proto.format.frame import Frame
from shardd.replication import parts
from shardd.replication.names import ShardNames, number_of
from shardd.replication.parts import FRAMES, HEADER_SIZE, Part, PartError
from shardd.storage.wal import Rescued

NONCE = b"n" * 16


def frame(number: int, ts_ms: int) -> bytes:
    made: Frame = Rescued(3).encode(0, ts_ms, frame_no=number, synced_no=number - 1)
    return made.head + made.tail


LOG = b"".join(frame(number, 1000 + number) for number in (5, 6, 7))
PART = Part(2, FRAMES, 1, NONCE, 5, 7, 1005, 1007)


def test_a_part_is_read_back_as_it_was_written() -> None:
    data = parts.encode(PART, LOG)
    found, frames = parts.decode(data, 2)
    assert bytes(frames) == LOG
    assert found[:8] == PART[:8]
    assert (found.length, HEADER_SIZE + found.length, found.has_frames) == (len(LOG), len(data), True)
    assert parts.header(data[:HEADER_SIZE], 2) == found
    parts.check_frames(found, frames)


def test_a_fence_has_no_frames() -> None:
    found, frames = parts.decode(parts.encode(Part(9, parts.FENCE, 2, NONCE, 8, 7)), 9)
    assert not found.has_frames
    assert not frames
    assert (found.term, found.first_no, found.last_no) == (2, 8, 7)
    parts.check_frames(found, frames)


@pytest.mark.parametrize("at", [0, 4, 8, 24, 56, 80, 88, HEADER_SIZE, HEADER_SIZE + 100])
def test_a_changed_byte_anywhere_is_found(at: int) -> None:
    data = bytearray(parts.encode(PART, LOG))
    data[at] ^= 1
    with pytest.raises(PartError):
        parts.decode(bytes(data), 2)


def test_a_part_that_is_cut_short_or_has_another_name_is_none() -> None:
    data = parts.encode(PART, LOG)
    for wrong in (b"", data[:50], data[:-1]):
        with pytest.raises(PartError, match=r"too short|belong to it"):
            parts.decode(wrong, 2)
    with pytest.raises(PartError, match="header is of part 2"):
        parts.decode(data, 3)


def test_frames_that_do_not_follow_each_other_are_found() -> None:
    for wrong in (Part(2, FRAMES, 1, NONCE, 4, 6), Part(2, FRAMES, 1, NONCE, 5, 8)):
        found, frames = parts.decode(parts.encode(wrong, LOG), 2)
        with pytest.raises(PartError, match=r"should be|not with"):
            parts.check_frames(found, frames)


def test_places_end_where_no_whole_frame_is() -> None:
    size = len(LOG) // 3
    assert list(parts.places(LOG)) == [(5, 1005, size), (6, 1006, 2 * size), (7, 1007, 3 * size)]
    assert list(parts.places(LOG[:-1])) == list(parts.places(LOG))[:2]
    assert list(parts.places(b"\0" * 200)) == []
    assert parts.frame_length(LOG) == size


def test_names_sort_as_numbers_do() -> None:
    names = ShardNames(7)
    assert names.part(12) == "shard-07/log/00000000000000000012"
    assert sorted([names.part(10), names.part(9)]) == [names.part(9), names.part(10)]
    assert number_of(names.part(12)) == number_of(names.manifest(12)) == 12
    assert number_of("service.json") is None


HUGE = 1 << 64


@pytest.mark.parametrize(
    ("first_no", "last_no", "frames"),
    [(0, 5, b"x" * 64), (7, 6, b"x" * 64), (1, HUGE - 1, b"x" * 64), (1 << 63, 1 << 63, b"x" * 64), (1, 1, b"")],
)
def test_a_part_whose_numbers_fit_nothing_is_damage(first_no: int, last_no: int, frames: bytes) -> None:
    part = parts.Part(3, parts.FRAMES, 1, b"n" * 16, first_no, last_no)
    with pytest.raises(PartError, match="numbers"):
        parts.decode(parts.encode(part, frames), 3)

"""Claims about reading ahead: frames and parts are those of the file, wherever pieces end."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from proto.format.frame import FrameError, Kind, encode_map
from shardd.storage.read_ahead import READ_AHEAD, ReadAhead
from tests.support.fault_disk import FaultDisk

PATH = Path("/data/file")


def frame(size: int) -> bytes:
    made = encode_map(Kind.CURSOR, 1, {"x": "x" * size}, 1)
    return made.head + made.tail


def file(content: bytes) -> tuple[FaultDisk, ReadAhead]:
    disk = FaultDisk()
    disk.create(PATH).write([content])
    return disk, ReadAhead(disk, PATH)


@pytest.mark.parametrize("seed", range(5))
def test_frames_of_all_sizes_are_read_in_order(seed: int) -> None:
    rng = Random(seed)
    sizes = (0, 10, 1000, READ_AHEAD // 3, READ_AHEAD, 3 * READ_AHEAD)
    frames = [frame(rng.choice(sizes)) for _ in range(40)]
    _, found = file(b"".join(frames))
    offset = 0
    for each in frames:
        header, read = found.frame(offset)
        assert read == each
        offset += header.length
    assert offset == found.size


def test_parts_are_those_of_the_file_and_end_with_it() -> None:
    content = Random(1).randbytes(3 * READ_AHEAD)
    _, found = file(content)
    for offset, size in ((0, 5), (3, 10), (READ_AHEAD - 2, 4), (5, 2 * READ_AHEAD), (len(content) - 3, 9), (1, 1)):
        assert found.part(offset, size) == content[offset : offset + size]


@pytest.mark.parametrize("cut", [1, 70, 200])
def test_a_frame_that_is_cut_or_changed_is_an_error(cut: int) -> None:
    content = frame(10) + frame(200)
    _, found = file(content[:-cut])
    assert found.frame(0)[1] == frame(10)
    with pytest.raises(FrameError):
        found.frame(len(frame(10)))
    changed = bytearray(content)
    changed[len(frame(10)) + 70] ^= 1
    with pytest.raises(FrameError, match="checksum"):
        file(bytes(changed))[1].frame(len(frame(10)))


def test_a_length_that_cannot_be_is_not_read() -> None:
    content = bytearray(frame(10))
    content[8:16] = (0xFFFF_FFB8).to_bytes(4, "little") + (0xFFFF_FF70).to_bytes(4, "little")
    disk, found = file(bytes(content))
    read_part = disk.read_part

    def reading(path: Path, offset: int, size: int) -> bytes:
        assert size <= READ_AHEAD
        return read_part(path, offset, size)

    disk.read_part = reading  # type: ignore[method-assign]
    with pytest.raises(FrameError, match=r"only \d+ are there"):
        found.frame(0)

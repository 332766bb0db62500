"""The log reader: what it says of the frames that it gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.replication.log_reader import LogReader
from shardd.storage.wal import Rescued, file_name
from tests.support.fault_disk import FaultDisk

WAL = Path("/data/wal")


def _reader(*times: int) -> LogReader:
    """Of a log of one file, with a frame for each time in ms."""
    disk = FaultDisk()
    disk.make_dir(WAL)
    file = disk.create(WAL / file_name(1))
    for number, ts_ms in enumerate(times, start=1):
        frame = Rescued(1).encode(0, ts_ms, frame_no=number, synced_no=number - 1)
        file.write([frame.head, frame.tail])
    file.close()
    return LogReader(disk, WAL)


@pytest.mark.parametrize(
    ("times", "lowest", "highest"),
    [
        ((5,), 5, 5),
        ((5, 7, 9), 5, 9),
        ((9, 5, 7), 5, 9),
        ((0, 9, 0, 5), 5, 9),
        ((0, 0), 0, 0),
    ],
)
def test_times_are_the_lowest_and_the_highest_whatever_their_order(
    times: tuple[int, ...], lowest: int, highest: int
) -> None:
    """The time of a topic may be ahead of that of the next frame's topic. A frame without a time does not count."""
    frames = _reader(*times).take(len(times), 1 << 20)
    assert frames is not None
    assert (frames.first_no, frames.last_no) == (1, len(times))
    assert (frames.first_ms, frames.last_ms) == (lowest, highest)

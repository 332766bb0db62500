"""Progress: what the bucket lacks, and which part has which frame."""

from __future__ import annotations

import pytest

from shardd.replication.parts import HEADER_SIZE
from shardd.replication.progress import Progress
from tests.support.harness import FakeClock


class Log:
    def __init__(self) -> None:
        self.next_no = 1
        self.synced_no = 0
        self.bytes_written = 0

    def write(self, frames: int, size: int) -> None:
        self.next_no += frames
        self.bytes_written += size
        self.synced_no = self.next_no - 1


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def progress(log: Log, clock: FakeClock) -> Progress:
    made = Progress(log, clock)
    made.begin(1, 0, 0)
    return made


def test_the_lag_is_what_was_written_and_is_in_no_part(progress: Progress, log: Log, clock: FakeClock) -> None:
    log.write(3, 300)
    progress.synced()
    clock.advance(250)
    assert (progress.lag_bytes, progress.lag_ms) == (300, 250)
    progress.shipped(2, 2, 200, clock.monotonic())
    assert progress.lag_bytes == 100
    progress.shipped(3, 3, 100, clock.monotonic())
    assert (progress.lag_bytes, progress.lag_ms) == (0, 0)
    assert (progress.parts, progress.part_bytes) == (2, 2 * HEADER_SIZE + 300)


def test_the_part_of_a_frame_is_the_first_one_that_reaches_it(progress: Progress, log: Log) -> None:
    log.write(9, 900)
    for number, last_no in ((2, 3), (3, 4), (4, 9)):
        progress.shipped(number, last_no, 100, 0.0)
    assert progress.part_of(3) == 2
    assert progress.part_of(4) == 3
    assert progress.part_of(5) == 4


@pytest.mark.parametrize(("number", "last_no"), [(2, 4), (3, 3)])
def test_a_part_twice_is_a_mistake_of_ours(progress: Progress, log: Log, number: int, last_no: int) -> None:
    log.write(9, 900)
    progress.shipped(2, 3, 100, 0.0)
    with pytest.raises(AssertionError):
        progress.shipped(number, last_no, 100, 0.0)

"""Claims about all faults at random moments under load: no acknowledged record is lost, and no process gives up."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.support.bad_day import BadDay
from tests.support.dials import Dials
from tests.support.programs import leave_out
from tests.support.service import Service
from tests.support.volume import VolumeError, volume

MEMORY_BYTES = 256 << 20
CEILING_BYTES = MEMORY_BYTES + (200 << 20)
"""The most memory of one process: at most the whole budget, plus Python, its libraries and the records."""


def bad_day(directory: Path, *, faults: int, seconds: float, longest_s: float, size_bytes: int) -> None:
    seed = int(os.environ.get("TOPICS_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails, to run it again
    rng = random.Random(seed)
    dials = Dials(directory / "dials")
    try:
        with volume(directory / "volume", size_bytes) as disk:
            cold = disk.outside / "cold"
            service = Service(
                directory,
                enter=disk.enter,
                TOPICS_DATA_DIR=str(disk.inside / "data"),
                TOPICS_COLD_DIR=str(disk.inside / "cold"),
                TOPICS_MEMORY_BYTES=str(MEMORY_BYTES),
                TOPICS_HANG_TIMEOUT_MS="3000",
                TOPICS_CHECKPOINT_BYTES="1000000",
                TOPICS_CHECKPOINT_INTERVAL_MS="2000",
                TOPICS_SEGMENT_MAX_BYTES="100000",
                TOPICS_HOT_RETAIN_SEGMENTS="1",
                TOPICS_CACHE_BYTES="0",
                TOPICS_REQUEST_TIMEOUT_MS="10000",
                **dials.environment,
            )
            with service:
                day = BadDay(service, disk, dials, cold, seed)
                day.begin()
                day.heal()
                names = list(day.faults())
                end = time.monotonic() + seconds
                left = rng.sample(names, len(names))[:faults] if faults else []
                while left or time.monotonic() < end:
                    day.happen(left.pop() if left else rng.choice(names), longest_s)
                day.end()
                assert service.process is not None
                assert service.process.poll() is None
                # And once more from the files alone.
                service.restart()
            assert max(day.meter.peak.values()) < CEILING_BYTES, day.meter.peak
            for word in ("giving up", "gave up", "Traceback"):
                assert word not in service.log_text(), service.log_tail()
    except VolumeError as error:
        leave_out(f"the right to mount a file system ({error})")


def test_each_fault_once_takes_nothing_down(tmp_path: Path) -> None:
    bad_day(tmp_path, faults=100, seconds=0, longest_s=0.8, size_bytes=512 << 20)


@pytest.mark.long
def test_half_an_hour_of_faults_takes_nothing_down(tmp_path: Path) -> None:
    bad_day(tmp_path, faults=100, seconds=1800, longest_s=4, size_bytes=4 << 30)

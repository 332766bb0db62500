"""Claims about two machines and their bucket, each in a network namespace of its own, under load and random faults.

Whatever happens to machines, cables and the bucket: every acknowledged `fsync` write is there exactly once and in
order, no seq names two records, and what a machine acknowledged is in a term that it held. Topics keep their epoch.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.network import NetworkError
from tests.support.programs import leave_out
from tests.support.two_machines import schedule

SCHEDULES = 50


def run(
    directory: Path,
    seed: int,
    steps: Sequence[Sequence[str]] | int,
    ttl_ms: int,
    longest_s: float,
    encrypted: bool = False,
) -> None:
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails, to run it again
    try:
        print(schedule(directory, seed, steps, ttl_ms, longest_s, encrypted))  # noqa: T201 - for those who look at long runs
    except NetworkError as error:
        leave_out(f"the right to make networks ({error})")


def seed() -> int:
    return int(os.environ.get("TOPICS_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)


def test_no_fault_takes_what_was_acknowledged(tmp_path: Path) -> None:
    steps = (
        ["a machine is killed"],
        ["a machine stops for longer than the time to live"],
        ["a machine is cut from the bucket"],
    )
    run(tmp_path, seed(), steps, ttl_ms=2000, longest_s=0)


@pytest.mark.long
@pytest.mark.parametrize("number", range(SCHEDULES))
def test_no_schedule_of_faults_takes_what_was_acknowledged(tmp_path: Path, number: int) -> None:
    ttl_ms, longest_s = (2000, 3000, 4000)[number % 3], (2.0, 60.0)[number % 10 == 0]
    run(tmp_path, seed() + number, 5, ttl_ms, longest_s, encrypted=number % 2 == 1)

"""Claims about the real service: what its clients saw under a fault breaks no promise."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.history.bars import BARS, run
from tests.support.releases import LAST, has_history

FAULTS = {3: (5, 25), 10: (1, 12)}
"""Of bars that are not ended by the time: power cuts are short, and machines with a bucket start slowly."""
ANSWERS = 100
OTHERS = [bar for bar in BARS if bar != 13]
"""Bar 13 has short runs of its own (`test_clusters.py`): half a minute has one of its schedules."""
# Bar 11 takes the last release from the history: a checkout without it has no short run of that bar.


def held(directory: Path, bar: int, seconds: float, scale: float, faults: int = 0) -> None:
    seed = random.SystemRandom().randrange(1, 1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    outcome = run(directory, bar, seconds, seed, scale=scale, faults=faults, answers=ANSWERS)
    report = outcome.report
    assert (report.counts, report.unread) == ({}, []), (seed, [str(each) for each in report.violations[:5]])
    assert report.outcomes["ok"] >= ANSWERS
    assert (report.faults > 0) == (bar != 1)


@pytest.mark.parametrize("bar", [bar for bar in OTHERS if bar != 11 or has_history(LAST)])
def test_a_short_run_breaks_no_promise(tmp_path: Path, bar: int) -> None:
    held(tmp_path, bar, 6, 0.2, faults=FAULTS.get(bar, (0, 0))[0])


@pytest.mark.long
@pytest.mark.parametrize("bar", OTHERS)
def test_three_minutes_break_no_promise(tmp_path: Path, bar: int) -> None:
    held(tmp_path, bar, 180, 0.5, faults=FAULTS.get(bar, (0, 0))[1])

"""The verdict over samples of a long run: each series is flat, or it grows, or it is too short to say.

A series grows if its later part rises steadily (Mann-Kendall: of all pairs of samples, clearly more rise than fall),
and by more than a tolerance (Theil-Sen: the median of the slopes of all pairs, over the time). Both ignore spikes, such
as those of checkpoints, and a saw's teeth. The first third is left out: caches fill, and retention begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Literal

FEWEST = 12
"""Samples after the first third without which there is no verdict."""
MOST = 30
"""Points of a series; more samples are joined, each group by its median. Memory stays for a while where it is, so that
samples which follow one another are no independent witnesses."""
STEADY = 3.5
"""Standard deviations of Kendall's sum that are no chance."""
SHARE = 0.05
TOLERANCES = {"MB": 4.0, "ms": 5.0}
"""By unit: what a series may rise by, if that is more than `SHARE` of it. Others may rise by 4."""

Verdict = Literal["flat", "grows", "too short"]


@dataclass(frozen=True, slots=True)
class Judged:
    verdict: Verdict
    level: float
    """The median."""
    rise: float
    """From the beginning to the end of what was looked at."""


def judged(series: Sequence[tuple[float, float]], unit: str = "") -> Judged:
    """`series` has the second and the value of each sample, in their order."""
    points = _joined(series[len(series) // 3 :])
    level = median(value for _, value in points) if points else 0.0
    if len(points) < FEWEST:
        return Judged("too short", level, 0.0)
    pairs = [(later[0] - before[0], later[1] - before[1]) for before, later in combinations(points, 2)]
    rise = median(change / seconds for seconds, change in pairs) * (points[-1][0] - points[0][0])
    steady = sum((change > 0) - (change < 0) for _, change in pairs) / _deviation(len(points))
    much = rise > max(TOLERANCES.get(unit, 4.0), SHARE * abs(level))
    return Judged("grows" if much and steady > STEADY else "flat", level, rise)


def all_judged(series: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Judged]:
    """`series` by name; a name ends with its unit, as in `gateway, MB`."""
    return {name: judged(values, name.rpartition(", ")[2]) for name, values in series.items()}


def _joined(series: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    size = math.ceil(len(series) / MOST) or 1
    groups = [series[at : at + size] for at in range(0, len(series), size)]
    return [(median(at for at, _ in group), median(value for _, value in group)) for group in groups]


def _deviation(count: int) -> float:
    """That of the sum of the signs of all pairs, if values come in any order."""
    return math.sqrt(count * (count - 1) * (2 * count + 5) / 18)

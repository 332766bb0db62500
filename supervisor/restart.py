"""When to start a dead child again, and when to leave it. A function from what happened to a decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
STEADY_S = 60.0
"""A child that was up this long had recovered: its next death starts a new series."""
WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Death:
    """`at`: monotonic time in s; `uptime_s`: how long the process had lived."""

    at: float
    uptime_s: float


@dataclass(frozen=True, slots=True)
class Again:
    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


def decide(deaths: Sequence[Death], now: float, limit: int) -> Again | GiveUp:
    """What to do after the last of `deaths` (in order, at least one): wait and start again, or give up after more
    than `limit` deaths within a minute."""
    recent = sum(1 for death in deaths if now - death.at < WINDOW_S)
    if recent > limit:
        return GiveUp(f"died {recent} times within {WINDOW_S:.0f} s")
    series = 1
    for death in reversed(deaths):
        if death.uptime_s >= STEADY_S or series == len(deaths):
            break
        series += 1
    return Again(min(FIRST_DELAY_S * 2 ** min(series - 1, 16), LONGEST_DELAY_S))

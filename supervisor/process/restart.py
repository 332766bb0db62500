"""When to start a dead child again. Functions from what happened to a decision.

A death is an accident, and the next start follows after a short pause that doubles. After more than a number of deaths
within a minute the child has died *too often*; so has one that says itself that it cannot go on. The service cannot do
without its gateway and ends then. A shard is *held* instead: the next start follows after a long pause, which doubles
too, while the other shards serve. A shard that serves for a minute has recovered from both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
STEADY_S = 60.0
"""A child that was up this long had recovered: its next death starts a new series."""
WINDOW_S = 60.0
FIRST_HOLD_S = 10.0
LONGEST_HOLD_S = 120.0
TROUBLE = 3
"""Deaths in a row, without having served, after which a start of the service does not wait for the child any more."""


@dataclass(frozen=True, slots=True)
class Death:
    """`at`: monotonic time in s; `uptime_s`: how long the process had lived."""

    at: float
    uptime_s: float


@dataclass(frozen=True, slots=True)
class Again:
    delay_s: float


@dataclass(frozen=True, slots=True)
class TooOften:
    reason: str


def decide(deaths: Sequence[Death], now: float, limit: int) -> Again | TooOften:
    """What to do after the last of `deaths` (in order, at least one): wait and start again, unless these are
    more than `limit` deaths within a minute."""
    recent = sum(1 for death in deaths if now - death.at < WINDOW_S)
    if recent > limit:
        return TooOften(f"died {recent} times within {WINDOW_S:.0f} s")
    series = 1
    for death in reversed(deaths):
        if death.uptime_s >= STEADY_S or series == len(deaths):
            break
        series += 1
    return Again(min(FIRST_DELAY_S * 2 ** min(series - 1, 16), LONGEST_DELAY_S))


def hold_s(holds: int) -> float:
    """How long a child is held that was held `holds` times in a row before."""
    return min(FIRST_HOLD_S * 2.0 ** min(holds, 16), LONGEST_HOLD_S)

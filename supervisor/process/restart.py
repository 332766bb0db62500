"""Restart policy: functions from the deaths of a child to a decision.

After a death the child is restarted after a short pause, which doubles from death to death. A child with more than
`limit` deaths within a minute died *too often*; a child that sent `Failed` is treated the same way. If this is the only
gateway, the service ends, because it cannot work without a gateway. A shard, or one of several gateways, is *held*
instead: it is restarted after a long pause, which doubles too, while the others serve. Serving for a minute resets both
pauses.

A death over a request does not count: the child is restarted after the shortest pause. Its cause is not with the child,
and the gateway sends no request a third time that was in hand at two deaths (`proto.ipc.suspects`). Nor does the end of
a shard's process that another machine replaces.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_DELAY_S = 0.02
LONGEST_DELAY_S = 5.0
STEADY_S = 60.0
"""A child that was up for this long has recovered: its next death starts a new series."""
WINDOW_S = 60.0
FIRST_HOLD_S = 10.0
LONGEST_HOLD_S = 120.0
TROUBLE = 3
"""Deaths in a row without serving after which the start of the service does not wait for the child any more."""


@dataclass(frozen=True, slots=True)
class Death:
    """Death of a child at monotonic time `at` (s), `uptime_s` seconds after its start."""

    at: float
    uptime_s: float
    excused: bool = False
    """The process had requests in hand, or another machine has its shard."""


@dataclass(frozen=True, slots=True)
class Again:
    delay_s: float


@dataclass(frozen=True, slots=True)
class TooOften:
    reason: str


def decide(deaths: Sequence[Death], now: float, limit: int) -> Again | TooOften:
    """Decide after the last of `deaths` (in order, at least one): restart after a pause, or `TooOften` if more than
    `limit` of them were within a minute."""
    if deaths[-1].excused:
        return Again(FIRST_DELAY_S)
    deaths = [death for death in deaths if not death.excused]
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
    """Seconds for which a child is held that was held `holds` times in a row before."""
    return min(FIRST_HOLD_S * 2.0 ** min(holds, 16), LONGEST_HOLD_S)


def describe(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"

"""Time, as the shard sees it. Every decision that depends on time asks a `Clock`, so that tests drive it.

The wall clock of a machine is set by others, wrongly at times. TTLs, leases, delays and idempotency windows are
durations, and a clock that is a day ahead for a moment would end them all. So `SystemClock` asks the wall clock once,
at its start, and goes on by itself with the time since the machine was started (CLOCK_BOOTTIME, which counts while it
sleeps). It keeps comparing:

    the wall clock is            the shard's time
    up to a second off           is slewed towards it, by a tenth of the time that passes at most
    further off                  goes on as if nothing had happened: a *step*, logged (`clock_stepped`) and counted
    back where it was            goes on; nothing has happened (`clock_back`)
    ahead for five minutes       is set to it (`clock_set`): it has been corrected. Leases, delays, idempotency windows
                                 and sessions move with it (`jumped`), so they last as long as they were to; records
                                 are then older by what was missing, and their TTL counts that
    behind for five minutes      is slewed towards it, nine seconds in ten

It never goes back, so commit times never decrease, and it never stands still, so nothing waits for a time that is far
off. A start has nothing to compare the wall clock with but what is on disk, and believes it. What was written when the
clock was ahead of what it is now is dealt with where it is, so that it concerns nothing else:

    a topic's newest record     is in the future by so much: the topic's own time is ahead by that (`ahead_ms`), for
                                commit times and TTLs, until the clock jumps ahead or the next start looks again
    a queue's newest row        the same: its leases and delays end that much earlier, so none is longer than it was

Durations within one process (parked reads, deadlines, pauses) use `monotonic`, which no step concerns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

TOLERANCE_MS = 1000
"""A wall clock that is further off has been set rather than slewed."""
CONFIRM_S = 300.0
"""A step that lasts so long is believed."""
SLEW = 10
"""Of the time that passes, one part in so many is added or left out at most."""
_MS = 1_000_000
_log: Any = structlog.get_logger()


class Clock(Protocol):
    def now_ms(self) -> int:
        """Time of day, ms since 1970. Never decreases."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never steps backwards. For durations."""

    def on_jump(self, jumped: Callable[[int], None]) -> None:
        """`jumped` is called with the ms that the time of day has jumped ahead."""

    def statistics(self) -> ClockStatistics:
        """What the clock has been through."""


@dataclass(frozen=True, slots=True)
class ClockStatistics:
    """`steps` of the wall clock that were noticed; `offset_ms`: by how much it is ahead of the shard's time."""

    steps: int = 0
    offset_ms: int = 0


class SystemClock:
    """`wall` is in ns since 1970, `elapsed` in ns from an arbitrary start, always forward."""

    def __init__(
        self,
        wall: Callable[[], int] = time.time_ns,
        elapsed: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    ) -> None:
        self._wall = wall
        self._elapsed = elapsed
        self._at = elapsed()
        self._now = wall()
        self._offset = 0
        self._steps = 0
        self._step: tuple[int, int] | None = None
        """Offset of the wall clock since its last step, and when that was noticed; None while it is where it should."""
        self._jumped: Callable[[int], None] = lambda ms: None

    def monotonic(self) -> float:
        return time.monotonic()

    def on_jump(self, jumped: Callable[[int], None]) -> None:
        self._jumped = jumped

    def statistics(self) -> ClockStatistics:
        return ClockStatistics(self._steps, self._offset // _MS)

    def now_ms(self) -> int:
        at = self._elapsed()
        passed = max(at - self._at, 0)
        self._at = at
        now = self._now + passed
        offset = self._wall() - now
        if abs(offset) <= TOLERANCE_MS * _MS:
            if self._step is not None:
                self._step = None
                _log.info("clock_back", off_by_ms=offset // _MS)
            now += _slewed(offset, passed)
        else:
            now += self._stepped(offset, passed, at)
        self._offset = offset
        self._now = now
        return now // _MS

    def _stepped(self, offset: int, passed: int, at: int) -> int:
        """By how much to correct the time, the wall clock being far off."""
        if self._step is None or abs(offset - self._step[0]) > TOLERANCE_MS * _MS:
            self._step = offset, at
            self._steps += 1
            _log.warning("clock_stepped", by_ms=offset // _MS, action=f"ignored unless it lasts {CONFIRM_S:.0f} s")
            return 0
        since = self._step[1]
        if at - since < CONFIRM_S * 1e9:
            return 0
        if offset > 0:
            self._step = None
            _log.warning("clock_set", by_ms=offset // _MS)
            self._jumped(offset // _MS)
            return offset
        correction = _slewed(offset, passed)
        self._step = offset - correction, since
        return correction


def _slewed(offset: int, passed: int) -> int:
    """The part of an offset that may be made up for while so much time has passed."""
    most = passed // SLEW
    return max(-most, min(offset, most))

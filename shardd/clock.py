"""The clock of a shard. Every decision that depends on time asks a `Clock`, so that tests control the time.

The wall clock of a machine may be set to a wrong time. TTLs, leases, delays and idempotency windows are durations, and
a clock that is a day ahead for a moment would end them all. So `SystemClock` reads the wall clock once, at its start.
After that it adds the time since the machine's boot (CLOCK_BOOTTIME, which includes sleep), and compares:

    the wall clock is            the shard's time
    up to a second off           is slewed towards it, by at most a tenth of the time that passes
    further off                  continues unchanged; this is a *step*, logged (`clock_stepped`) and counted
    back where it was            continues unchanged (`clock_back`)
    ahead for five minutes       is set to the wall clock (`clock_set`), which counts as corrected. Leases, delays,
                                 idempotency windows and sessions move with it (`jumped`), so they last as long as
                                 before; a checkpoint saves this. Records are then older by the difference, and their
                                 TTL includes it
    behind for five minutes      is slewed towards it, by at most a tenth of the time that passes

The shard's time never goes back, so commit times never decrease. It never stands still, so nothing waits for a time far
away. A start can compare the wall clock only with the times on disk, and takes it as right: TTLs, durable leases,
delays and idempotency windows that are shorter than its error are over then. Data that was written while the clock was
ahead is handled per topic, so that other topics are not affected:

    a topic's newest record     is in the future: the topic's own time is ahead by the difference (`ahead_ms`), for
                                commit times, TTLs and idempotency windows, until the next start compares again. A
                                jump of the clock makes it smaller
    a queue's newest row        is in the future: its leases and delays end earlier by the difference, so none lasts
                                longer than it was to. The log notes this before the topic's next frame: a later start
                                does not move what was written since

Durations within one process (parked reads, deadlines, pauses) use `monotonic`, which steps do not affect.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import structlog
from structlog.typing import FilteringBoundLogger

from proto.ipc.figures import ClockFigures

TOLERANCE_MS = 1000
"""A wall clock that differs by more than this has been set, not slewed."""
CONFIRM_S = 300.0
"""Seconds after which a step counts as a correction."""
SLEW = 10
"""Slewing adds or leaves out at most one part in `SLEW` of the time that passes."""
_MS = 1_000_000
_since_boot = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
_log: FilteringBoundLogger = structlog.get_logger()


class Clock(Protocol):
    def now_ms(self) -> int:
        """The time of day in ms since 1970. Never decreases."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never steps backwards. For durations."""

    def on_jump(self, jumped: Callable[[int], None]) -> None:
        """Register `jumped`, which is called with the ms by which the time of day has jumped ahead."""

    def statistics(self) -> ClockFigures:
        """Number of steps, and the present offset of the wall clock."""


class SystemClock:
    """The real clock. `wall` is in ns since 1970. `elapsed` is in ns from an arbitrary start and never decreases."""

    def __init__(
        self,
        wall: Callable[[], int] = time.time_ns,
        elapsed: Callable[[], int] = _since_boot,
    ) -> None:
        self._wall = wall
        self._elapsed = elapsed
        self._at = elapsed()
        self._now = wall()
        self._offset = 0
        self._steps = 0
        self._step: tuple[int, int] | None = None
        """Offset of the wall clock since its last step, and when the step was noticed; None if there is no step."""
        self._jumped: Callable[[int], None] = lambda ms: None

    monotonic = staticmethod(time.monotonic)

    def on_jump(self, jumped: Callable[[int], None]) -> None:
        self._jumped = jumped

    def statistics(self) -> ClockFigures:
        return ClockFigures(self._steps, self._offset // _MS)

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
        """The correction of the shard's time in ns, while the wall clock is more than the tolerance off."""
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
    """The part of an offset that slewing corrects in `passed` ns."""
    most = passed // SLEW
    return max(-most, min(offset, most))

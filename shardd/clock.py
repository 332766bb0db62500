"""Time, as the shard sees it. Every decision that depends on time asks a `Clock`, so that tests drive it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, ms since 1970. May step backwards."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never steps backwards. For durations."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

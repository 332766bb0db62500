"""Since when this process serves."""

from __future__ import annotations

from time import monotonic

STARTED = monotonic()


def uptime_ms() -> int:
    """Milliseconds this process has served."""
    return round((monotonic() - STARTED) * 1000)

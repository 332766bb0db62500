"""The uptime of this process."""

from __future__ import annotations

from time import monotonic

STARTED = monotonic()


def uptime_ms() -> int:
    """Milliseconds since this module was loaded, which is when the process starts."""
    return round((monotonic() - STARTED) * 1000)

"""How slowly a client may send a body: a pause has its limit, and so has the whole of it."""

from __future__ import annotations

from time import monotonic

from proto.limits import Limits


class Pace:
    """Of one body. Besides the longest pause, all of it must come at `min_upload_rate` once `body_timeout_ms` has
    passed: a client that sends a byte now and then must not hold the memory that was set aside for its body."""

    __slots__ = ("_begun", "_pause_s", "_rate", "received")

    def __init__(self, limits: Limits) -> None:
        self._pause_s = limits.body_timeout_ms / 1000
        self._rate = limits.min_upload_rate
        self._begun = 0.0
        self.received = 0

    def begin(self) -> None:
        self._begun = monotonic()
        self.received = 0

    def deadline(self) -> float:
        """When the next bytes are due, on the monotonic clock."""
        pause = monotonic() + self._pause_s
        return min(pause, self._begun + self._pause_s + self.received / self._rate) if self._rate else pause

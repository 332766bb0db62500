"""How slowly a client may send a body or read an answer: a pause has its limit, and so has the whole of it. And how
often it may send what brings nothing."""

from __future__ import annotations

from time import monotonic

from proto.model.limits import Limits


def due(now: float, begun: float, moved: int, pause_s: float, rate: int) -> float:
    """When the next bytes must be moved: after the longest pause, and all since `begun` at `rate` bytes a second once
    the first pause could have passed. 0 for any rate."""
    return min(now + pause_s, begun + pause_s + moved / rate) if rate else now + pause_s


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

    def excuse(self, waited_s: float) -> None:
        """That long, the client was not read from."""
        self._begun += waited_s

    def deadline(self) -> float:
        """When the next bytes are due, on the monotonic clock."""
        return due(monotonic(), self._begun, self.received, self._pause_s, self._rate)


class Allowance:
    """So many at once, and so many a second in the long run. Spend with the time on the monotonic clock."""

    __slots__ = ("_at", "_left", "_most", "_per_s")

    def __init__(self, most: int, per_s: float) -> None:
        self._most = most
        self._per_s = per_s
        self._left = float(most)
        self._at = 0.0

    def spend(self, now: float) -> bool:
        """Whether one more is allowed."""
        self._left = min(self._left + (now - self._at) * self._per_s, self._most) if self._at else self._most
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

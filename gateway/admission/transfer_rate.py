"""Transfer rates: how slowly a client may send a body or read a response, and how often it may send empty frames.

For bodies and responses, both each pause and the whole transfer are limited."""

from __future__ import annotations

from time import monotonic

from proto.model.limits import Limits


def due(now: float, begun: float, passed: int, pause_s: float, rate: int) -> float:
    """When the next bytes must have passed, in seconds on the clock of `now`. Each pause may last `pause_s`. Once
    `pause_s` has passed since `begun`, all bytes must also have passed at `rate` bytes a second. Rate 0 means no
    limit on the rate."""
    return min(now + pause_s, begun + pause_s + passed / rate) if rate else now + pause_s


class Pace:
    """The pace of one body. Each pause is limited to `body_timeout_ms`. After that time the whole body must also arrive
    at `min_upload_rate`: a client that sends a byte now and then must not hold the memory reserved for its body."""

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
        """Do not count `waited_s`, during which the client was not read from."""
        self._begun += waited_s

    def deadline(self) -> float:
        """When the next bytes are due, in seconds on the monotonic clock."""
        return due(monotonic(), self._begun, self.received, self._pause_s, self._rate)


class Allowance:
    """A token bucket: `most` at once, and `per_s` a second in the long run."""

    __slots__ = ("_at", "_left", "_most", "_per_s")

    def __init__(self, most: int, per_s: float) -> None:
        self._most = most
        self._per_s = per_s
        self._left = float(most)
        self._at = 0.0

    def spend(self, now: float, tokens: int = 1) -> bool:
        """Take tokens if there are as many; return whether there were. `now` is in seconds on the monotonic clock."""
        self._left = min(self._left + (now - self._at) * self._per_s, self._most) if self._at else self._most
        self._at = now
        if self._left < tokens:
            return False
        self._left -= tokens
        return True

    def earn(self, tokens: int) -> None:
        """Put tokens back, up to `most` of them."""
        self._left = min(self._left + tokens, self._most)

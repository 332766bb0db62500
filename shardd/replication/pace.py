"""Pace: when the next part is created, seen from the part before.

    changes wait for the bucket    as much waits as the part before had, or half of the time has passed that it took
                                   (50 ms at most)
    they do not                    a part of the largest size waits, or the interval has passed

Writers that wait for a part send again when it is there, one a little after the other. Without the pause the first of
them would get a part of its own, and all the others would wait for that one and for the next.
"""

from __future__ import annotations

PART_BYTES = 4 << 20
"""A part is created at once when so many bytes wait. It is not larger, unless a frame is."""
LONGEST_PAUSE_S = 0.05


class Pace:
    """Times are those of one monotonic clock, in seconds."""

    def __init__(self, interval_s: float, waits: bool) -> None:
        self._interval_s = interval_s
        self._waits = waits
        self._enough = 0 if waits else PART_BYTES
        self._under_way = 0
        self._begun = 0.0
        self.due = float("-inf")
        """When the next part is created, whatever waits."""

    def turn(self, now: float) -> None:
        """Waiting frames are put into parts from now on."""
        self.due = now + self._interval_s

    def begun(self, now: float, length: int) -> None:
        """A part with `length` bytes of frames is under way."""
        self._begun, self._under_way = now, length
        if self._waits:
            self._enough = min(length, PART_BYTES)

    def ended(self, now: float) -> None:
        """It is in the bucket."""
        self._under_way = 0
        if self._waits:
            self.due = now + min((now - self._begun) / 2, LONGEST_PAUSE_S)

    def enough(self, waiting_bytes: int) -> bool:
        """Whether a part is created before it is due. `waiting_bytes` are those that are not in the bucket."""
        return waiting_bytes - self._under_way >= self._enough

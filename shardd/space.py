"""Whether the disk has room for more: below `TOPICS_MIN_FREE_BYTES` a shard refuses what would fill it.

Refused are writes to the log and configurations; copies by routers wait. Deletions, positions of readers and
checkpoints go on: they are small, and are what makes room again. What is kept free is for them: a log that meets a full
disk makes its shard read-only.
The system is asked at most every 100 ms, so a disk can be filled by what is written within that time: it should be
far less than the bytes that are kept free.
"""

from __future__ import annotations

from pathlib import Path

from proto.errors import ErrorCode, TopicsError
from shardd.clock import Clock
from shardd.disk import Disk

LOOK_INTERVAL = 0.1
"""Seconds."""
RETRY_AFTER_MS = 5000


class Space:
    def __init__(self, disk: Disk, path: Path, clock: Clock, min_free_bytes: int) -> None:
        self._disk = disk
        self._path = path
        self._clock = clock
        self._min = min_free_bytes
        self._looked_at = float("-inf")
        self._free: int | None = None
        self.refused_total = 0

    @property
    def free_bytes(self) -> int | None:
        """For users without privileges, at most 100 ms old; None if the system does not say."""
        now = self._clock.monotonic()
        if now - self._looked_at >= LOOK_INTERVAL:
            self._looked_at = now
            try:
                self._free = self._disk.free(self._path)
            except OSError:
                self._free = None  # a disk that does not answer shows itself when it is written to
        return self._free

    @property
    def low(self) -> bool:
        """Whether the disk is nearly full."""
        return bool(self._min) and (free := self.free_bytes) is not None and free < self._min

    def check(self) -> None:
        """Raises `429 throttled` if the disk is nearly full."""
        if not self.low:
            return
        free = self._free
        self.refused_total += 1
        raise TopicsError(
            ErrorCode.THROTTLED,
            f"the disk has {free} bytes free, and writes need TOPICS_MIN_FREE_BYTES, {self._min}; delete records or "
            "topics, or give it more room",
            {"limit": "disk_free", "min": self._min, "free": free},
            retry_after_ms=RETRY_AFTER_MS,
        )

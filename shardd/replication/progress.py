"""Progress: how far the log of an open shard is in its bucket, and which part has which frame."""

from __future__ import annotations

from bisect import bisect_left

from shardd.clock import Clock
from shardd.replication.parts import HEADER_SIZE
from shardd.storage.wal import Wal


class Progress:
    """One shard's. `begin` is called when it has a term; before that, nothing is shipped."""

    def __init__(self, log: Wal, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self.shipped_no = 0
        """The last frame in the bucket."""
        self.begun_no = 0
        """The same, when the term began."""
        self.part = 0
        """The last part."""
        self._ends: list[int] = []
        """Last frame of each part from `_first` on."""
        self._first = 1
        self._behind = 0
        self._written = log.bytes_written
        self._oldest_at: float | None = None
        self.parts = self.part_bytes = 0

    def begin(self, part: int, frame_no: int, behind_bytes: int) -> None:
        """Continue after this part and frame. `behind_bytes` of the log's files are behind it."""
        self.part, self._first = part, part + 1
        self.begun_no = self.shipped_no = frame_no
        self._behind, self._written = behind_bytes, self._log.bytes_written
        self.synced()

    def synced(self) -> None:
        """Called after each sync of the log."""
        if self._oldest_at is None and self._log.synced_no > self.shipped_no:
            self._oldest_at = self._clock.monotonic()

    def shipped(self, number: int, last_no: int, length: int, begun: float) -> None:
        """Part `number` is in the bucket, with so many bytes of frames, which were read at the time `begun`."""
        assert number > self.part
        assert last_no > self.shipped_no
        self.part, self.shipped_no = number, last_no
        self._ends.append(last_no)
        self._behind -= length
        self.parts += 1
        self.part_bytes += HEADER_SIZE + length
        self._oldest_at = begun
        if last_no == self._log.next_no - 1:
            self._behind, self._written = 0, self._log.bytes_written
        if last_no >= self._log.synced_no:
            self._oldest_at = None

    def part_of(self, frame_no: int) -> int:
        """The part of this term that has a frame, or an earlier one. Forgets the parts before it."""
        at = min(bisect_left(self._ends, frame_no), len(self._ends) - 1)
        del self._ends[:at]
        self._first += at
        return self._first

    @property
    def lag_bytes(self) -> int:
        return max(self._behind + self._log.bytes_written - self._written, 0)

    @property
    def lag_ms(self) -> int:
        return 0 if self._oldest_at is None else round((self._clock.monotonic() - self._oldest_at) * 1000)

"""How many bytes of request bodies may be held at once.

A body's whole size is reserved before its first byte is read, never bit by bit: bodies that each hold a part and wait
for the rest would wait for ever. Bodies up to `FREE_BYTES` are not counted; the number of connections bounds them.
"""

from __future__ import annotations

from collections import deque

import trio

from proto.errors import ErrorCode, TopicsError

TOTAL_BYTES = 256 << 20
FREE_BYTES = 64 << 10


class Budget:
    """First come, first served. A reservation larger than the total is served alone."""

    def __init__(self, total: int = TOTAL_BYTES, patience_ms: int = 30_000) -> None:
        self.total = total
        self.used = 0
        self._patience_ms = patience_ms
        self._queue: deque[tuple[int, trio.Event]] = deque()

    async def reserve(self, size: int) -> int:
        """Wait until `size` bytes may be held; returns what was counted, for `release`. Raises `429 throttled`."""
        if size <= FREE_BYTES:
            return 0
        size = min(size, self.total)
        if not self._queue and self.used + size <= self.total:
            self.used += size
            return size
        entry = (size, trio.Event())
        self._queue.append(entry)
        try:
            with trio.move_on_after(self._patience_ms / 1000):
                await entry[1].wait()
        except trio.Cancelled:
            self._withdraw(entry)
            raise
        if entry[1].is_set():
            return size
        self._withdraw(entry)
        raise TopicsError(
            ErrorCode.THROTTLED,
            "too many bytes of request bodies are in flight; send smaller batches or fewer at once",
            {"retry_after_ms": 1000},
            retry_after_ms=1000,
        )

    def _withdraw(self, entry: tuple[int, trio.Event]) -> None:
        if entry[1].is_set():
            self.used -= entry[0]
        else:
            self._queue.remove(entry)
        self._admit()

    def shrink(self, counted: int, size: int) -> int:
        """Give back what a reservation of `counted` bytes has beyond `size`; returns what is still counted."""
        kept = min(counted, size)
        if kept < counted:
            self.release(counted - kept)
        return kept

    def release(self, size: int) -> None:
        self.used -= size
        self._admit()

    def _admit(self) -> None:
        while self._queue and self.used + self._queue[0][0] <= self.total:
            size, event = self._queue.popleft()
            self.used += size
            event.set()

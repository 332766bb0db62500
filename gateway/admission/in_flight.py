"""The requests in flight, and draining: whether new ones are still served."""

from __future__ import annotations

import trio


class Flight:
    """Counts requests from their head to the last byte of the response. After `drain`, only those in flight are
    finished."""

    def __init__(self) -> None:
        self.draining = False
        self.count = 0
        self._landed = trio.Event()

    def enter(self) -> None:
        self.count += 1

    def leave(self) -> None:
        self.count -= 1
        if self.draining and not self.count:
            self._landed.set()

    def drain(self) -> None:
        self.draining = True
        if not self.count:
            self._landed.set()

    async def landed(self) -> None:
        """Return once draining has begun and no request is in flight."""
        await self._landed.wait()

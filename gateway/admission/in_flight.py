"""Which requests are in flight, and whether new ones are still wanted."""

from __future__ import annotations

import trio


class Flight:
    """Counts requests from head to last byte of the answer. After `drain`, only what is in flight is finished."""

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
        """Return once draining has begun and nothing is in flight any more."""
        await self._landed.wait()

"""The requests in flight, and whether new ones are still served.

retire    new requests are served, and each connection ends after its response
drain     new requests are refused as well
"""

from __future__ import annotations

import trio


class Flight:
    """Counts requests from their head to the last byte of the response. After `drain`, only those in flight are
    finished."""

    def __init__(self) -> None:
        self.draining = False
        self.leaving = False
        """Whether connections end after their response: after `retire`, and after `drain`."""
        self.count = 0
        self._landed = trio.Event()

    def enter(self) -> None:
        self.count += 1

    def leave(self) -> None:
        self.count -= 1
        if self.draining and not self.count:
            self._landed.set()

    def retire(self) -> None:
        self.leaving = True

    def drain(self) -> None:
        self.draining = self.leaving = True
        if not self.count:
            self._landed.set()

    async def landed(self) -> None:
        """Return once draining has begun and no request is in flight."""
        await self._landed.wait()

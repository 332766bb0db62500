"""The requests in flight, the connections that close after their last answer, and whether new requests are served.

retire    new requests are served, and each connection ends after its response
drain     new requests are refused as well
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Flight:
    """Counts requests from their head to the last byte of the response. After `drain`, only those in flight are
    finished."""

    def __init__(self) -> None:
        self.draining = False
        self.leaving = False
        """Whether connections end after their response: after `retire`, and after `drain`."""
        self.count = 0
        self._closing: set[object] = set()
        self._left = trio.lowlevel.ParkingLot()
        """Where those wait that are to look again when a connection has been closed."""
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

    @contextmanager
    def closes(self, connection: object) -> Iterator[None]:
        """Within it, a connection that has had its last answer waits for its client to close it."""
        self._closing.add(connection)
        try:
            yield
        finally:
            self._closing.discard(connection)
            self._left.unpark_all()

    async def closed(self) -> None:
        """Return once the connections that wait for their clients now are closed. The end of the process would reset
        those with unread input, and answers that their clients have not received yet would be lost."""
        those = self._closing.copy()
        while not those.isdisjoint(self._closing):
            await self._left.park()

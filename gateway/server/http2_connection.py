"""The open streams of an HTTP/2 connection, and whether the connection may be evicted.

    open streams                      the connection
    none                              waits, like HTTP/1.1 between two requests: it is evicted first, and ends when its
                                      idle time is over
    all of them want bytes of a body  starves: it is evicted when no connection waits, after `STARVED_S`
    any other                         stays: a request that has arrived whole is never ended

Frames that open no stream (PING, SETTINGS, PRIORITY, a head that never ends) change nothing: they protect no
connection from eviction.
"""

from __future__ import annotations

import math
import socket
from time import monotonic
from typing import Protocol


class Seat(Protocol):
    """The connection as `gateway.server.eviction` sees it."""

    waiting: bool
    starved_since: float
    deadline: float

    @property
    def expired(self) -> bool: ...


class Carried:
    """The open streams of one connection. An object identifies each stream."""

    def __init__(self, seat: Seat, idle_timeout_ms: int) -> None:
        self._seat = seat
        self._idle_s = idle_timeout_ms / 1000
        self._since: dict[object, float] = {}
        """For each open stream, since when it has wanted bytes of its body; infinity while it wants none."""
        self._tell()

    def wants(self, stream: object) -> None:
        """Note that `stream` waits for bytes of its body."""
        self._since[stream] = monotonic()
        self._tell()

    def has(self, stream: object) -> None:
        """Note that `stream` was opened, or that bytes arrived for it."""
        self._since[stream] = math.inf
        self._tell()

    def closed(self, stream: object) -> None:
        self._since.pop(stream, None)
        self._tell()

    def _tell(self) -> None:
        seat = self._seat
        if seat.expired:
            return  # the connection is ending already
        seat.waiting = not self._since
        seat.deadline = math.inf if self._since else monotonic() + self._idle_s
        seat.starved_since = max(self._since.values(), default=math.inf)


class Handover(Protocol):
    """The server of pages, and of connections over HTTP/2."""

    async def serve(self, raw: socket.socket, read: bytes, carried: Carried | None) -> None:
        """Serve a connection to its end, beginning with the bytes already `read`, and close it. `carried` hears of
        the streams of an HTTP/2 connection. Without `carried`, the connection has one HTTP/1.1 request."""

"""What an HTTP/2 connection carries: which of its streams are open, and so whether it could leave to make room.

    open streams                      the connection
    none                              waits, as one of HTTP/1.1 does between two requests: it leaves first, and when its
                                      idle time is over
    all of them want bytes of a body  starves: it leaves when none waits, after `STARVED_S`
    any other                         stays: what has arrived whole is never ended

Frames that open no stream (PING, SETTINGS, PRIORITY, a head that never ends) change nothing: they keep no place.
"""

from __future__ import annotations

import math
from time import monotonic
from typing import Protocol


class Seat(Protocol):
    """The connection, as `gateway.server.eviction` sees it."""

    waiting: bool
    starved_since: float
    deadline: float

    @property
    def expired(self) -> bool: ...


class Carried:
    """The open streams of one connection, each known by an object of its own."""

    def __init__(self, seat: Seat, idle_timeout_ms: int) -> None:
        self._seat = seat
        self._idle_s = idle_timeout_ms / 1000
        self._since: dict[object, float] = {}
        """Since when each open stream has wanted bytes of its body; infinity while it wants none."""
        self._tell()

    def opened(self, stream: object) -> None:
        self._since[stream] = math.inf
        self._tell()

    def wants(self, stream: object) -> None:
        """It waits for bytes of its body."""
        self._since[stream] = monotonic()
        self._tell()

    def has(self, stream: object) -> None:
        """Bytes came."""
        self._since[stream] = math.inf
        self._tell()

    def closed(self, stream: object) -> None:
        self._since.pop(stream, None)
        self._tell()

    def _tell(self) -> None:
        seat = self._seat
        if seat.expired:
            return  # it leaves already
        seat.waiting = not self._since
        seat.deadline = math.inf if self._since else monotonic() + self._idle_s
        seat.starved_since = max(self._since.values(), default=math.inf)

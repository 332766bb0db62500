"""A proxy that is a bad network. Of the pieces that pass, in both directions, some meet a fault:

    cut        a part of the piece arrives, and the connection ends
    stall      nothing arrives any more, and the connection ends a while later
    delay      the piece arrives late
    trickle    the piece arrives in parts of a few bytes at first, with pauses between them

It invents, changes and reorders nothing, as TCP does.
"""

from __future__ import annotations

import socket
import time
from random import Random

from tests.support.relay import Relay
from tests.support.service import Service

FAULTS = ("cut", "stall", "delay", "trickle")
LONGEST_S = {"stall": 3.0, "delay": 1.0, "trickle": 0.02}
"""Of a trickle each of its pauses."""
PARTS = 40
LONGEST_PART = 9


class BadNetwork(Relay):
    """One port in front of a service. `share` of the pieces meet a fault; `scale` shortens pauses."""

    def __init__(self, service: Service, rng: Random, share: float, scale: float) -> None:
        super().__init__()
        self._service = service
        self._rng = rng
        self._share = share
        self._scale = scale
        self.counts = dict.fromkeys(FAULTS, 0)

    def target(self) -> Service:
        return self._service

    def passed(self, data: bytes, sink: socket.socket, *, back: bool) -> bool:
        if self._rng.random() >= self._share:
            return super().passed(data, sink, back=back)
        fault = self._rng.choice(FAULTS)
        self.counts[fault] += 1
        if fault == "cut":
            sink.sendall(data[: self._rng.randrange(len(data))])
            return False
        if fault == "trickle":
            data = self._trickle(data, sink)
        else:
            self._pause(fault)
        if fault == "stall":
            return False
        sink.sendall(data)
        return True

    def _trickle(self, data: bytes, sink: socket.socket) -> bytes:
        """Send the beginning in small parts. Returns the rest."""
        sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PARTS):
            size = self._rng.randint(1, LONGEST_PART)
            sink.sendall(data[:size])
            data = data[size:]
            self._pause("trickle")
        return data

    def _pause(self, fault: str) -> None:
        time.sleep(self._rng.random() * LONGEST_S[fault] * self._scale)

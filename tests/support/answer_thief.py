"""A proxy that loses answers: it passes a request on, waits until the service has answered, and breaks the connection.

    lost      nothing of the answer arrives
    torn      the beginning of it arrives
    cut       the request does not arrive whole

The client can tell none of them from a request that was not done.
"""

from __future__ import annotations

import socket
from random import Random

from tests.support.relay import Relay
from tests.support.service import Service


class AnswerThief(Relay):
    """One port in front of a service. `share` of the pieces that pass end a connection."""

    def __init__(self, service: Service, rng: Random, share: float) -> None:
        super().__init__()
        self._service = service
        self._rng = rng
        self._share = share
        self.counts = {"lost": 0, "torn": 0, "cut": 0}

    def target(self) -> Service:
        return self._service

    def passed(self, data: bytes, sink: socket.socket, *, back: bool) -> bool:
        if self._rng.random() >= self._share:
            return super().passed(data, sink, back=back)
        fault = self._rng.choice(("lost", "torn") if back else ("cut",))
        self.counts[fault] += 1
        if fault != "lost":
            sink.sendall(data[: self._rng.randrange(len(data))])
        return False

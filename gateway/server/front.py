"""The front: the parts that all connections of a gateway share."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Protocol

from gateway.admission.body_budget import Budget
from gateway.admission.in_flight import Flight
from gateway.api.dispatch import Api
from gateway.http.known_heads import KnownHeads
from gateway.server.http2_connection import Carried
from proto.model.limits import Limits


class Handover(Protocol):
    """The server of pages, and of connections over HTTP/2."""

    async def serve(self, raw: socket.socket, read: bytes, carried: Carried | None) -> None:
        """Serve a connection to its end, beginning with the bytes already `read`, and close it. `carried` hears of
        the streams of an HTTP/2 connection. Without `carried`, the connection has one HTTP/1.1 request."""


@dataclass(frozen=True, slots=True)
class Front:
    """The parts that all connections share."""

    api: Api
    flight: Flight
    limits: Limits
    budget: Budget
    heads: KnownHeads = field(default_factory=KnownHeads)

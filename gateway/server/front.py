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
from gateway.server.pages import Pages
from proto.model.limits import Limits


class Handover(Protocol):
    """The server of HTTP/2 connections."""

    async def serve(self, raw: socket.socket, read: bytes, carried: Carried) -> None:
        """Serve a connection to its end, beginning with the bytes already `read`, and close it. `carried` hears of its
        streams."""


@dataclass(frozen=True, slots=True)
class Front:
    api: Api
    pages: Pages
    http2: Handover
    flight: Flight
    limits: Limits
    budget: Budget
    heads: KnownHeads = field(default_factory=KnownHeads)

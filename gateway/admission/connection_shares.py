"""Connections of one of several gateways: its part of the limits, and which new ones it leaves to the others.

All gateways accept from the same listening sockets, and the kernel wakes all of them for a connection. So that none has
most of them, a gateway is polite: if another one has fewer connections, it sleeps `POLITE_S` before it accepts. The
other one is not asked. If it hangs, or dies while it accepts, the connection waits that long and no longer. A gateway
that has all that it may have leaves a connection to the others for `FULL_S`, before it ends one of its own for it.
"""

from __future__ import annotations

import select
import socket

import trio
from msgspec.structs import replace
from trio.lowlevel import wait_readable

from proto.ipc.gateway_page import Column, Row
from proto.model.limits import Limits

POLITE_S = 0.001
FULL_S = 0.02
EXTRA = 8
"""One in so many connections comes on top of an equal part, because polite gateways differ by a few."""
LEAST = 16


def part(limit: int, gateways: int) -> int:
    """The connections that one of `gateways` may have; 0 means no limit."""
    if gateways == 1 or not limit:
        return limit
    equal = -(-limit // gateways)
    return min(max(equal - (-equal // EXTRA), LEAST), limit)


def divided(limits: Limits, gateways: int) -> Limits:
    """The limits of one of `gateways`."""
    return replace(
        limits,
        max_connections=part(limits.max_connections, gateways),
        protocol_max_connections=part(limits.protocol_max_connections, gateways),
    )


class Sharing:
    """The connections of one protocol, in the column of the page that counts them. Does nothing without a page."""

    def __init__(self, row: Row | None = None, column: Column = Column.HTTP) -> None:
        self._row = row
        self._column = column

    def count(self, connections: int) -> None:
        """Tell the other gateways how many connections this one has."""
        if self._row is not None:
            self._row.put(self._column, connections)

    async def polite(self, listener: socket.socket, connections: int) -> None:
        """If another gateway has fewer connections, wait until one can be accepted, and then `POLITE_S`."""
        if self._row is not None and connections > self._row.least(self._column):
            await wait_readable(listener)
            await trio.sleep(POLITE_S)

    async def others_take(self, listener: socket.socket, connections: int) -> bool:
        """Whether another gateway, which has fewer connections, takes the one that waits, so that this one need not
        make room."""
        if self._row is None or connections <= self._row.least(self._column):
            return False
        await trio.sleep(FULL_S)
        waiting = select.poll()
        waiting.register(listener, select.POLLIN)
        return not waiting.poll(0)

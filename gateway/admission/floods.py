"""Floods over HTTP/2: how long the next connection of an address waits after one of its connections was refused.

A connection may send a burst of frames that bring nothing before it is refused. A client that connects again for each
burst gets `REFUSED_PER_S` bursts a second in the long run, with however many connections: each refusal moves the time
from which the address's connections are read. A connection that waits holds a socket and nothing else.
"""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, ip_address

REFUSED_PER_S = 2
MOST_PAUSE_S = 10.0
"""Seconds that a connection waits at most, however many of its address were refused."""
MOST_ADDRESSES = 1024
"""Addresses that are remembered; the one refused longest ago is forgotten first."""


def network(raw: socket.socket) -> str:
    """Return the address of a client, for IPv6 its network of 64 bits, all of which one client may have."""
    try:
        host = ip_address(raw.getpeername()[0].partition("%")[0])
    except (OSError, ValueError, IndexError):
        return ""  # it is gone already, or has none
    if isinstance(host, IPv6Address):
        return host.packed[:8].hex() if host.ipv4_mapped is None else str(host.ipv4_mapped)
    return str(host)


class Floods:
    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def refused(self, address: str, now: float) -> None:
        """Note that a connection of `address` was refused. `now` is in seconds on the monotonic clock."""
        until = max(self._until.pop(address, now), now) + 1 / REFUSED_PER_S
        self._until[address] = min(until, now + MOST_PAUSE_S)
        if len(self._until) > MOST_ADDRESSES:
            del self._until[next(iter(self._until))]

    def pause(self, address: str, now: float) -> float:
        """Return for how many seconds a new connection of `address` has to wait."""
        until = self._until.get(address)
        if until is None:
            return 0.0
        if until <= now:
            del self._until[address]
            return 0.0
        return until - now

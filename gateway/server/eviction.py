"""How many connections there may be, and who leaves when more want to come."""

from __future__ import annotations

import resource
from collections.abc import Collection
from heapq import nsmallest

from gateway.server.connection import Connection

SPARED_DESCRIPTORS = 128
"""For the sockets to the shards, the listener, libraries."""
SHARE = 32
"""One in so many of those who wait leaves at a time, so that a flood costs one look at all connections each time."""

STARVED_S = 1.0


def most_connections(configured: int, others: int = 0) -> int:
    """As many as configured (0: no number), but no more than there are descriptors for besides `others`. Takes all
    descriptors that the process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    possible = max(hard - SPARED_DESCRIPTORS - others, 16) if hard != resource.RLIM_INFINITY else 1 << 30
    return min(configured or possible, possible)


def who_leaves(connections: Collection[Connection], now: float) -> list[Connection]:
    """Of those that wait for a request or for the rest of its head, the ones that are due first. If there are none, of
    those that have not sent any of a body for a while. What has arrived whole is never ended."""
    waiting = [connection for connection in connections if connection.waiting]
    if not waiting:
        waiting = [connection for connection in connections if connection.starved_since < now - STARVED_S]
    return nsmallest(max(len(waiting) // SHARE, 1), waiting, key=lambda connection: connection.deadline)

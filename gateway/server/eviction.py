"""Eviction: the limit on connections, and which connections end when it is reached."""

from __future__ import annotations

import resource
from collections.abc import Collection
from heapq import nsmallest

from gateway.server.connection import Connection

SPARED_DESCRIPTORS = 128
"""File descriptors kept for the sockets to the shards, the listener and libraries."""
SHARE = 32
"""One in `SHARE` waiting connections is evicted at a time, so a flood scans all connections once per batch."""

STARVED_S = 1.0


def most_connections(configured: int, others: int = 0) -> int:
    """Return the most connections: `configured` (0: no limit), but no more than file descriptors allow besides
    `others`. Raises the soft limit on descriptors to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    possible = max(hard - SPARED_DESCRIPTORS - others, 16) if hard != resource.RLIM_INFINITY else 1 << 30
    return min(configured or possible, possible)


def who_leaves(connections: Collection[Connection], now: float) -> list[Connection]:
    """Return the connections to evict, those with the earliest deadline first. Candidates wait for a request or for the
    rest of its head. Without such, candidates are those whose body has paused for `STARVED_S`. A connection whose
    request has arrived whole is never evicted."""
    waiting = [connection for connection in connections if connection.waiting]
    if not waiting:
        waiting = [connection for connection in connections if connection.starved_since < now - STARVED_S]
    return nsmallest(max(len(waiting) // SHARE, 1), waiting, key=lambda connection: connection.deadline)

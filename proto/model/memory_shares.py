"""Memory shares: divides `TOPICS_MEMORY_BYTES` between the processes of a service.

    half of it       the gateways, in equal parts: bodies, answers and frames queued for streams
                     (`gateway.admission.body_budget`)
    the other half   the shards, in equal parts. Of a shard's part, a quarter is for requests to it not yet answered, a
                     quarter for its answers not yet taken, and the rest for work on them. Several gateways divide each
                     quarter

The memory of an idle process is not included.
"""

from __future__ import annotations

DEFAULT_BYTES = 1 << 30
"""Default when the machine's memory is not known; also the most that `default_for` returns."""
LEAST_BYTES = 256 << 20
SMALLEST_WINDOW = 64 << 10


def default_for(machine: int) -> int:
    """An eighth of a machine's memory, 256 MiB to 1 GiB. All in bytes."""
    return max(LEAST_BYTES, min(machine // 8, DEFAULT_BYTES))


def gateway_share(total: int, gateways: int = 1) -> int:
    return (total or DEFAULT_BYTES) // (2 * gateways)


def window(total: int, shards: int, gateways: int = 1) -> int:
    """Bytes that an asker may have in flight to one shard, and as many from it."""
    return max((total or DEFAULT_BYTES) // (8 * shards * gateways), SMALLEST_WINDOW)

"""How `TOPICS_MEMORY_BYTES` is divided between the processes of a service.

    half of it       the gateway: bodies, answers and what waits for streams (`gateway.admission.body_budget`)
    the other half   the shards, in equal parts. Of a shard's part, a quarter is for messages to it that it has not
                     answered, a quarter for answers of it that were not taken; what is left is for the work on them

What a process needs besides, with nobody connected, is not in it.
"""

from __future__ import annotations

DEFAULT_BYTES = 1 << 30
"""Without a word about the machine."""
LEAST_BYTES = 256 << 20
SMALLEST_WINDOW = 64 << 10


def default_for(machine: int) -> int:
    """An eighth of a machine's memory, within bounds."""
    return max(LEAST_BYTES, min(machine // 8, DEFAULT_BYTES))


def gateway_share(total: int) -> int:
    return (total or DEFAULT_BYTES) // 2


def window(total: int, shards: int) -> int:
    """Bytes that may be on their way to one shard, or from it."""
    return max((total or DEFAULT_BYTES) // (8 * shards), SMALLEST_WINDOW)

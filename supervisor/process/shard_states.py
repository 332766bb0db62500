"""The states of the shards, as the supervisor reports them to the gateways, the shards and the roster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from proto.ipc.control import ShardState
from supervisor.process.child import Child


def states(shards: Sequence[Child], endpoints: Sequence[str], phase: Callable[[int, str], str]) -> list[ShardState]:
    """`phase` says how a phase is reported, by shard."""
    return [
        ShardState(
            index=i,
            phase=phase(i, c.phase),
            endpoint=endpoints[i],
            incarnation=c.incarnation,
            done_bytes=c.done_bytes,
            total_bytes=c.total_bytes,
            hangs=c.hangs,
            deaths=c.deaths,
            holder=c.holder,
            term=c.term,
            damage=c.damage,
            in_hand=c.in_hand,
            holder_at=c.holder_link[0],
            holder_key=c.holder_link[1],
        )
        for i, c in enumerate(shards)
    ]

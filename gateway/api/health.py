"""Health and readiness: the probes of load balancers, answered without asking a shard."""

from __future__ import annotations

from typing import Any

from gateway.contract.responses import plain
from gateway.http.messages import Response
from gateway.shards.client import Shards
from proto import __version__
from proto.ipc.control import HELD_ELSEWHERE
from proto.model.errors import not_ready, shutting_down


def health(uptime_ms: int) -> Response:
    return plain({"status": "ok", "version": __version__, "uptime_ms": uptime_ms})


def ready(shards: Shards, *, draining: bool) -> Response:
    """Return 200 when every shard serves and answers; of several machines, when any does, after all did. Raises
    `503 not_ready` with `replay_progress` in its detail, and `503 shutting_down`."""
    if draining:
        raise shutting_down()
    partly = shards.partly_ready
    if not shards.ready and not partly:
        holder = next((state.holder for state in shards.states if state.phase in HELD_ELSEWHERE and state.holder), "")
        if holder:
            raise not_ready(
                f"this machine is a standby: {holder} holds the shards",
                standby=True,
                holder=holder,
                shards=_shown(shards),
            )
        hung = [index for index in range(len(shards.states)) if shards.serving(index) and not shards.answering(index)]
        raise not_ready(
            f"no answer from shard {', '.join(map(str, hung))}; it is started again if it stays silent"
            if hung
            else "not every shard serves yet; retry shortly",
            replay_progress=shards.links.progress,
            shards=_shown(shards),
        )
    if any(shards.silent) and not partly:
        raise not_ready(
            "this machine could not renew its term in the bucket, so another one may hold the shards",
            reason="term_not_renewed",
            shards=_shown(shards),
        )
    topics = sum(topics for topics, _, _ in shards.counters)
    found: dict[str, Any] = {"status": "ready", "wal_replay_complete": True, "topics": topics}
    if any(shards.disk_full):
        # Reads, deletions and acks are still served, so a load balancer must not take the service away from them.
        full = [index for index, is_full in enumerate(shards.disk_full) if is_full]
        found["detail"] = {"limit": "disk_free", "shards": full}
    if quarantined := sum(shards.quarantined):
        found["topics_quarantined"] = quarantined
    if damaged := sum(shards.bucket_damaged):
        found["bucket_damaged"] = damaged
    return plain(found)


def _shown(shards: Shards) -> list[dict[str, Any]]:
    return [
        {
            "shard": state.index,
            "phase": state.phase,
            "progress": round(state.progress, 4),
            "answers": shards.answering(state.index),
            **({"bucket_damage": state.damage} if state.damage else {}),
        }
        for state in shards.states
    ]

"""Health and readiness: what a load balancer may know without asking a shard anything."""

from __future__ import annotations

from time import monotonic

from gateway.answers import plain
from gateway.http import Response
from gateway.shards import Shards
from proto import __version__
from proto.errors import not_ready, shutting_down

STARTED = monotonic()


def uptime_ms() -> int:
    """Milliseconds this process has served."""
    return round((monotonic() - STARTED) * 1000)


def health() -> Response:
    return plain({"status": "ok", "version": __version__, "uptime_ms": uptime_ms()})


def ready(shards: Shards, *, draining: bool) -> Response:
    """200 when every shard serves. Raises `503 not_ready` with `replay_progress` in its detail, `503 shutting_down`."""
    if draining:
        raise shutting_down()
    if not shards.ready:
        raise not_ready(
            "not every shard serves yet; retry shortly",
            replay_progress=shards.progress,
            shards=[
                {"shard": state.index, "phase": state.phase, "progress": round(state.progress, 4)}
                for state in shards.states
            ],
        )
    return plain({"status": "ready", "wal_replay_complete": True, "topics": shards.statistics().topics})

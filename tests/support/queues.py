"""Requests on the queue of a shard, and what it says of its jobs."""

from __future__ import annotations

from typing import Any

import msgspec

from proto.ipc.message import Reply
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness


def queue(shard: Harness, name: str = "q", **config: Any) -> Harness:
    shard.call("configure", name, {"type": "queue", **config})
    return shard


def claim(shard: Harness, node: str = "w", most: int = 100, topic: str = "q", **fields: Any) -> list[dict[str, Any]]:
    claimed: list[dict[str, Any]] = shard.call("claim", topic, {"node": node, "max": most, **fields})["claimed"]
    return claimed


def seqs(jobs: list[dict[str, Any]]) -> list[int]:
    return [job["$seq"] for job in jobs]


def hold(shard: Harness, op: str, *which: int, node: str = "w", topic: str = "q", **fields: Any) -> Any:
    return shard.call(op, topic, {"node": node, "seqs": list(which), **fields})


def counters(shard: Harness, topic: str = "q") -> tuple[int, int]:
    state = shard.call("state", topic)["queue"]
    return state["ready"], state["in_flight"]


def restarted(shard: Harness, how: str) -> Harness:
    if how == "clean":
        shard.shard.close()
    elif how == "checkpoint":
        shard.shard.commits.sync_now()
        shard.shard.checkpoint_now()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    return shard.restarted(disk.after_crash("process"))


def send_claim(shard: Harness, node: str, most: int, **fields: Any) -> int:
    ident = shard.send("claim", "q", {"node": node, "max": most, **fields})
    shard.shard.flush()
    return ident


def got(shard: Harness, ident: int) -> list[int]:
    shard.shard.commits.sync_now()
    reply = shard.replies[ident]
    assert isinstance(reply, Reply)
    assert reply.error is None
    return seqs(msgspec.json.decode(reply.body)["claimed"])


def take(shard: Harness, stream: str, most: int) -> int:
    ident = shard.send("work_take", "q", stream=stream, node=stream, max=most, lease_ms=None)
    shard.shard.flush()
    return ident


def pushed(shard: Harness, ident: int) -> list[int]:
    shard.shard.commits.sync_now()
    reply = shard.replies[ident]
    assert isinstance(reply, Reply)
    assert reply.error is None
    return seqs(msgspec.json.decode(reply.body))

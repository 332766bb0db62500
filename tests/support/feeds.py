"""Stream reads of a shard, as the gateway asks for them."""

from __future__ import annotations

from typing import Any

import msgspec

from proto.ipc.message import Reply
from tests.support.harness import Harness

OPTIONS: dict[str, Any] = {
    "from_seq": 0,
    "epoch": 0,
    "limit": 256,
    "budget": 1 << 20,
    "nodes": [],
    "tags": False,
    "meta": True,
    "data": True,
    "strong": False,
    "wait_ms": 0,
    "touch": True,
}


def feed(shard: Harness, topic: str = "a", **options: Any) -> tuple[Any, dict[str, Any]]:
    """The payload (None if there is none) and the rest of the reply."""
    reply = shard.reply("feed", topic, **{**OPTIONS, **options})
    return opened(reply)


def opened(reply: Any) -> tuple[Any, dict[str, Any]]:
    assert isinstance(reply, Reply)
    if reply.error is not None:
        raise reply.error
    assert reply.extra is not None
    assert b"\n" not in reply.body
    return (msgspec.json.decode(reply.body) if reply.body else None), {
        k: v for k, v in msgspec.structs.asdict(reply.extra).items() if v is not None
    }

"""Claims about `shardd.process.router_tasks` in a running shard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import trio.testing

from proto.ipc.transport import MessageSocket
from proto.model.limits import Limits
from proto.model.router import RouterConfig, as_map
from shardd.clock import SystemClock
from shardd.delivery.pressure import Sample
from shardd.process.peers import Peers, links
from shardd.process.router_tasks import Forward
from shardd.process.server import Server
from shardd.shard import opened_shard
from shardd.storage.disk import RealDisk
from tests.support.asked import operation, said


async def test_routers_wait_until_pressure_is_low_again(short_path: Path) -> None:
    """No record is lost meanwhile."""
    shard = opened_shard(RealDisk(), SystemClock(), short_path, Limits())
    peers = Peers(shard, 0, links(1, timeout_s=20))
    forward = Forward(shard, peers)
    socket = MessageSocket.router(f"ipc://{short_path}/socket")

    async def ask(op: str, topic: str, body: Any = None, **options: Any) -> Any:
        reply = await peers.request(
            0, operation(op, options), topic, b"" if body is None else msgspec.json.encode(body)
        )
        return msgspec.json.decode(reply.body) if reply.body else said(reply.extra)

    try:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                await nursery.start(Server(shard, socket, Limits()).run)
                await forward.restore()
                await nursery.start(forward.run)
                for topic in ("a", "b"):
                    await ask("configure", topic)
                config = as_map(RouterConfig(source="a", dest="b"))
                await ask("router_put", "b", router="r", config=config, **await ask("router_source", "a"))
                for _ in range(10):
                    shard.pressure.sample(Sample(10_000, 1.0, 1.0, 1.0))
                sample, shard.pressure.sample = shard.pressure.sample, lambda sample: None  # type: ignore[method-assign]
                assert shard.pressure.holding
                await ask("append", "a", {"records": [{"data": 1}, {"data": 2}]})
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert (await ask("state", "b"))["count"] == 0
                for _ in range(10):
                    sample(Sample(0, 0.0, 0.0, 0.0))
                while (await ask("state", "b"))["count"] != 2:
                    await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
    finally:
        socket.close()

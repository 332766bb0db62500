"""Claims about `shardd.process.router_tasks` in a running shard."""

from __future__ import annotations

from errno import EIO
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
from tests.support.routed import Net


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


class _Counted(Peers):
    """Counts what is asked. After far too many requests it answers none, so that a test with a loop ends."""

    asked = 0

    async def request(self, *args: Any, **options: Any) -> Any:
        self.asked += 1
        if self.asked > 1000:
            await trio.sleep_forever()
        return await super().request(*args, **options)


async def test_copies_that_are_undone_for_ever_are_tried_again_with_pauses(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """After a failed sync no other follows: a change of `b` was given up, and each copy would wait for a sync. The
    copies of `c`, which waits for none, are made."""
    net = Net(1)
    harness = net.shards[0]
    for topic in ("a", "b", "c"):
        harness.append(topic, 0, config={"durability": "ephemeral"})
    for dest in ("b", "c"):
        net.router("r", "a", dest)
    peers = _Counted(harness.shard, 0, links(1, timeout_s=20))
    forward = Forward(harness.shard, peers)
    async with trio.open_nursery() as nursery:
        await nursery.start(forward.run)
        await trio.sleep(1)
        harness.append("a", 1)
        await trio.sleep(1)
        assert [net.data(dest) for dest in ("b", "c")] == [[0, 1]] * 2
        harness.disk.fail["sync"] = OSError(EIO, "input/output error")  # type: ignore[attr-defined]
        assert harness.reply("configure", "b", {"cap_records": 10}).error is not None
        assert harness.call("stats")["wal"]["read_only"] == 1
        before = peers.asked
        harness.append("a", 2)
        await trio.sleep(60)
        assert peers.asked - before < 40
        assert [net.data(dest) for dest in ("b", "c")] == [[0, 1], [0, 1, 2]]
        harness.append("a", 3)
        await trio.sleep(1)
        assert net.data("c") == [0, 1, 2, 3]
        nursery.cancel_scope.cancel()


async def test_a_former_source_that_is_deleted_leaves_a_router_that_got_another_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The pull of the former source is still parked then, and answered with `404`."""
    net = Net(1)
    harness = net.shards[0]
    net.router("r", "a", "b")
    harness.call("configure", "c")
    forward = Forward(harness.shard, Peers(harness.shard, 0, links(1, timeout_s=20)))
    async with trio.open_nursery() as nursery:
        await nursery.start(forward.run)
        await trio.sleep(1)
        net.router("r", "c", "b")
        harness.call("delete_topic", "a")
        await trio.sleep(1)
        assert harness.shard.routing.routers()["r"].config.source == "c"
        harness.append("c", 1)
        net.sync()
        await trio.sleep(1)
        assert net.data("b") == [1]
        harness.call("delete_topic", "c")
        await trio.sleep(1)
        net.sync()
        assert not harness.shard.routing.routers()
        nursery.cancel_scope.cancel()

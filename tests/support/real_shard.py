"""A real shard on a disk in memory, behind the staged gateway's socket."""

from __future__ import annotations

from functools import partial

from proto.ipc.control import ShardState
from proto.ipc.message import Cancel, Message, Reply, Request, decode
from tests.support.gateway_stage import FakeShard, Stage, until
from tests.support.harness import Harness


class RealShard(FakeShard):
    def __init__(self, endpoint: str, harness: Harness) -> None:
        super().__init__(endpoint, lambda request: [])
        self.harness = harness
        self.deaf = False
        """Whether the shard ignores all requests."""
        self.ignored = 0

    def _handle(self, group: list[list[bytes]]) -> None:
        shard = self.harness.shard
        if self.deaf:
            self.ignored += len(group)
            return
        for frames in group:
            self._peer = frames[0]
            message = decode(frames[1:])
            if isinstance(message, Request):
                shard.handle(message, "gateway", partial(self._respond))
            elif isinstance(message, Cancel):
                shard.cancel("gateway", message.id)
        self.settle()

    def settle(self) -> None:
        """Write, sync and deliver all pending requests."""
        self.harness.shard.flush()
        self.harness.shard.commits.sync_now()
        self.harness.shard.deliver()

    def _respond(self, message: Message) -> None:
        if isinstance(message, Reply):
            message.counters = self.harness.shard.counters()
        self.send(message)


async def start_real(there: Stage, harness: Harness, incarnation: int = 2) -> RealShard:
    """Replace the stage's only shard with a real one."""
    endpoint = f"ipc://{there.directory}/0-{incarnation}"
    shard = RealShard(endpoint, harness)
    there.shards[0:1] = [shard]
    there.nursery.start_soon(shard.run)
    there.states[0] = ShardState(0, "ready", endpoint, incarnation)
    there.gateway.shards.update(there.states)
    await until(lambda: there.gateway.shards.serving(0))
    return shard

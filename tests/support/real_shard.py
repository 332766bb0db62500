"""A real shard on a disk in memory, behind the staged gateway's socket."""

from __future__ import annotations

from collections.abc import Callable

from proto.ipc.control import ShardState
from proto.ipc.message import Cancel, Request
from proto.ipc.operations import REGISTRAR
from proto.ipc.transport import Group
from proto.model.memory_shares import window
from tests.support.gateway_stage import FakeShard, Stage, until
from tests.support.harness import Harness
from tests.support.registrar import Others


class RealShard(FakeShard):
    def __init__(self, endpoint: str, harness: Harness) -> None:
        super().__init__(endpoint, lambda request: [])
        self.harness = harness
        self.status = harness.shard.status
        self.deaf = False
        """Whether the shard ignores all requests."""
        self.ignored = 0
        self.caller = "gateway"
        """Which gateway asks, for the shard."""

    def _handle(self, group: Group) -> None:
        shard = self.harness.shard
        if self.deaf:
            self.ignored += sum(len(packet.messages) for _, packet in group)
            return
        for self._peer, message in ((peer, message) for peer, packet in group for message in packet.messages):
            if isinstance(message, Request):
                shard.handle(message, self.caller, self.send)
            elif isinstance(message, Cancel):
                shard.cancel(self.caller, message.id)
        self.settle()

    def settle(self) -> None:
        """Write, sync and deliver all pending requests."""
        self.harness.shard.flush()
        self.harness.shard.commits.sync_now()
        self.harness.shard.deliver()


async def start_real(
    there: Stage,
    harness: Harness,
    incarnation: int = 2,
    *,
    index: int = 0,
    make: Callable[[str, Harness], RealShard] = RealShard,
) -> RealShard:
    """Replace a shard of the stage with a real one. Shard 0 is the registrar of the real ones."""
    endpoint = f"ipc://{there.directory}/{index}-{incarnation}"
    shard = make(endpoint, harness)
    shard.window = window(there.gateway.limits.memory_bytes, len(there.states))
    there.shards[index : index + 1] = [shard]
    if index == REGISTRAR:
        others = Others(lambda: [each.harness for each in there.shards if isinstance(each, RealShard)])
        await there.nursery.start(harness.shard.registrar.run, others)
    there.nursery.start_soon(shard.run)
    there.states[index] = ShardState(index, "ready", endpoint, incarnation)
    there.gateway.shards.update(there.states)
    await until(lambda: there.gateway.shards.serving(index))
    return shard

"""Several shards without processes, with routers between their topics. A test does the steps of the gateway and of the
shards' loops itself, in any order."""

from __future__ import annotations

from typing import Any

from proto.ipc.operations import Position
from proto.model.errors import ErrorCode, TopicsError
from proto.model.names import shard_of
from proto.model.router import RouterConfig, as_map
from shardd.routers.copy_plan import Pulled
from shardd.routers.copy_recovery import Restore
from shardd.routers.source import read
from shardd.topic.lane import Lane
from shardd.topic.topic import Topic
from tests.support.fault_disk import FaultDisk, Survival
from tests.support.harness import FakeClock, Harness


class Net:
    def __init__(self, shards: int, **limits: Any) -> None:
        self.clock = FakeClock()
        self.limits = limits
        self.shards = [Harness(FaultDisk(), self.clock, **limits) for _ in range(shards)]

    def of(self, topic: str) -> Harness:
        return self.shards[shard_of(topic, len(self.shards))]

    def topic(self, name: str) -> Topic:
        return self.of(name).shard.directory.find(name)

    def router(self, name: str, source: str, dest: str, **fields: Any) -> Any:
        """The steps of the gateway."""
        self.of(source).call("configure", source)
        self.of(dest).call("configure", dest)
        place = self.of(source).call("router_source", source)
        config = as_map(RouterConfig(source, dest, **fields))
        return self.of(dest).call("router_put", dest, router=name, config=config, **place)

    # Forwarding

    def pull(self, lane: Lane) -> Pulled:
        return read(self._ask(lane))

    def _ask(self, lane: Lane) -> Any:
        reply = self.of(lane.source).reply("pull", lane.source, epoch=lane.epoch, after=lane.cursor)
        if reply.error is not None:
            raise reply.error
        return reply

    def step(self, name: str, upto: int | None = None) -> bool:
        """Do one pull of a destination; return whether its lane moved on. `upto` leaves the rest of the source for
        later."""
        topic = self.topic(name)
        lane = topic.lane
        if lane is None or not lane.routers or lane.held:
            return False
        before = lane.cursor
        pulled = self.pull(lane)
        if upto is not None and upto < pulled.upto:
            pieces = [piece for piece in pulled.pieces if piece.last_seq <= upto]
            last = max(lane.cursor, *(piece.last_seq for piece in pieces)) if pieces else lane.cursor
            pulled = Pulled(pulled.after, last, pulled.head, pieces, pulled.lost)
        self.of(name).shard.copier.copy(topic, pulled)
        self.of(name).shard.flush()
        return lane.cursor > before

    def sync(self) -> None:
        for harness in self.shards:
            harness.shard.commits.sync_now()

    def settle(self) -> None:
        """Forward all records that can be forwarded."""
        moved = True
        while moved:
            self.sync()
            names = [t.name for h in self.shards for t in h.shard.routing.destinations()]
            moved = sum(self.step(name) for name in names) > 0

    # Death and life

    def crash(self, which: list[int] | None = None, survival: Survival = "process", seed: int = 0) -> None:
        """Kill shards and start them again: all of them, or those in `which`."""
        for index in range(len(self.shards)) if which is None else which:
            disk = self.shards[index].disk
            assert isinstance(disk, FaultDisk)
            self.shards[index] = Harness(disk.after_crash(survival, seed), self.clock, **self.limits)
        self.restore()

    def restore(self) -> None:
        work: list[tuple[Harness, Restore]] = [(h, r) for h in self.shards for r in h.shard.restoring.restores()]
        idle = 0
        while work:
            harness, restore = work.pop(0)
            if restore.lane is None:
                restore.nothing_left()
            else:
                try:
                    moved = restore.take(self.pull(restore.lane))
                except TopicsError as error:
                    if error.code is not ErrorCode.TOPIC_NOT_FOUND:
                        raise
                    restore.source_gone()
                    moved = True
                if not moved:
                    moved = restore.looked(self._around(restore), self._around(restore))
                idle = 0 if moved else idle + 1
                assert idle <= 3 * (len(work) + 1), f"{restore.name} waits for something that never comes"
            if not restore.done:
                work.append((harness, restore))
            elif restore.displaced:
                harness.displaced = True
        for harness in self.shards:
            if harness.displaced:
                harness.shard.checkpoint_now()
            harness.displaced = False
            harness.shard.restoring.restored = True
            harness.shard.flush()

    def _around(self, restore: Restore) -> list[Position]:
        way = [restore.position]
        while (source := way[-1].source) is not None and source[0] not in {each.name for each in way}:
            reply = self.of(source[0]).reply("router_position", source[0], epoch=source[1])
            assert isinstance(reply.extra, Position)
            way.append(reply.extra)
        return way

    # Looking

    def seen(self, topic: str) -> dict[int, Any]:
        """Return seq → data of all records that a reader can see."""
        return {record["$seq"]: record["data"] for record in self.of(topic).everything(topic)}

    def data(self, topic: str) -> list[Any]:
        return [record["data"] for record in self.of(topic).everything(topic)]

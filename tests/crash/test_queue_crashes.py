"""Claims about a queue and its dead-letter topic in two shards, with a stop of either before each of its disk calls.

Each job that was accepted is in exactly one of the two topics, once, until it is acked. Then it is in neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import pytest

from proto.ipc.message import Reply
from proto.ipc.operations import Operation
from proto.model.errors import TopicsError, not_ready
from tests.crash.test_queue_model import finish
from tests.support.fault_disk import Crash, FaultDisk, Survival
from tests.support.harness import FakeClock, Harness

Side = Literal["here", "there"]
LIMITS: dict[str, Any] = {"wal_segment_bytes": 4096}


class Way:
    """Send a request to the other shard. A shard that dies during a request does not answer it."""

    def __init__(self, world: World, side: Side) -> None:
        self.world = world
        self.side = side

    def index_of(self, topic: str) -> int:
        return 0

    async def request(self, index: int, operation: Operation[Any], topic: str, body: bytes = b"") -> Reply:
        try:
            reply = self.world.shards[self.side].reply(operation, topic, body)
        except Crash:
            self.world.revive(self.side)
            raise not_ready("it died") from None
        if reply.error is not None:
            raise reply.error
        return reply


class World:
    def __init__(self, survival: Survival) -> None:
        self.clock = FakeClock()
        self.survival = survival
        self.shards: dict[Side, Harness] = {}
        self.shards = {
            "here": Harness(FaultDisk(), self.clock, **LIMITS),
            "there": Harness(FaultDisk(), self.clock, **LIMITS),
        }
        self.taken: set[int] = set()
        self.maybe: set[int] = set()
        """A request during which a shard died: it has been carried out, or it has not."""
        self.acked: set[int] = set()
        self.crashes = 0

    def disk(self, side: Side) -> FaultDisk:
        disk = self.shards[side].disk
        assert isinstance(disk, FaultDisk)
        return disk

    def revive(self, side: Side) -> None:
        self.crashes += 1
        self.shards[side] = Harness(self.disk(side).after_crash(self.survival, self.crashes), self.clock, **LIMITS)

    def play(self) -> None:
        """Run all steps. A shard that dies in a step is restarted before the next one."""
        story: list[tuple[Side, Callable[[], None]]] = [
            ("here", self.configure),
            ("there", lambda: self.shards["there"].call("configure", "dlq", {"durability": "fsync"}) and None),
            ("here", lambda: self.produce(0, 1, 2)),
            ("here", lambda: self.produce(3, 4, delay_ms=50)),
            ("here", lambda: self.claim(ack=1)),
            ("here", self.claim),
            ("here", self.carry),
            ("here", self.checkpoint),
            ("here", lambda: self.produce(5, 6)),
            ("here", self.finish_and_claim),
            ("there", self.redrive),
            ("there", self.bring_back),
            ("here", self.claim),
            ("here", lambda: self.claim(ack=1)),
            ("here", self.carry),
            ("there", self.redrive),
            ("there", self.bring_back),
            ("here", self.checkpoint),
            ("here", lambda: self.claim(ack=2)),
        ]
        for side, step in story:
            try:
                step()
            except Crash:
                self.revive(side)
            except TopicsError:
                pass  # an earlier step that it needs was not carried out
            self.clock.advance(30)

    def configure(self) -> None:
        config = {"durability": "fsync", "leases_durable": True, "max_deliveries": 1, "dead_letter": "dlq"}
        self.shards["here"].call("configure", "q", {"type": "queue", **config})

    def produce(self, *data: int, delay_ms: int = 0) -> None:
        self.maybe |= set(data)
        records = [{"data": each, "delay_ms": delay_ms} for each in data]
        self.shards["here"].call("append", "q", {"records": records, "create": False})
        self.maybe -= set(data)
        self.taken |= set(data)

    def claim(self, ack: int = 0) -> None:
        """Ack some of the claimed jobs, nack the others."""
        shard = self.shards["here"]
        claimed = shard.call("claim", "q", {"node": "w", "max": 3})["claimed"]
        done, others = claimed[:ack], claimed[ack:]
        if done:
            data = {job["data"] for job in done}
            self.taken -= data
            self.maybe |= data
            assert shard.call("ack", "q", {"node": "w", "seqs": [job["$seq"] for job in done]})["acked"] == len(done)
            self.maybe -= data
            self.acked |= data
        if others:
            shard.call("nack", "q", {"node": "w", "seqs": [job["$seq"] for job in others]})

    def finish_and_claim(self) -> None:
        """Take a job, and in one request ack it and take the next, which is given back."""
        shard = self.shards["here"]
        first = shard.call("claim", "q", {"node": "w"})["claimed"]
        done = {job["data"] for job in first}
        self.taken -= done
        self.maybe |= done
        ack = {"ack": {"seqs": [job["$seq"] for job in first]}} if first else {}
        answer = shard.call("claim", "q", {"node": "w", **ack})
        assert not first or answer["ack"] == {"acked": 1, "skipped": []}
        self.maybe -= done
        self.acked |= done
        if answer["claimed"]:
            shard.call("nack", "q", {"node": "w", "seqs": [job["$seq"] for job in answer["claimed"]]})

    def checkpoint(self) -> None:
        self.shards["here"].shard.commits.sync_now()
        self.shards["here"].shard.checkpoint_now()

    def redrive(self) -> None:
        self.shards["there"].send("redrive", "dlq", {"queue": "q"})
        self.shards["there"].shard.commits.sync_now()

    def carry(self) -> None:
        self._move("here", Way(self, "there"))

    def bring_back(self) -> None:
        self._move("there", Way(self, "here"))

    def _move(self, side: Side, way: Way) -> None:
        for _ in range(3):
            self.shards[side].shard.commits.sync_now()
            finish(self.shards[side].shard.mover.carry(way))
            self.shards[side].shard.commits.sync_now()

    def check(self) -> None:
        self.carry()
        self.bring_back()
        self.carry()
        assert not self.shards["here"].shard.mover
        assert not self.shards["there"].shard.mover
        found: Counter[int] = Counter()
        for side, topic in (("here", "q"), ("there", "dlq")):
            try:
                found.update(record["data"] for record in self.shards[side].everything(topic))
            except TopicsError:
                assert not self.taken
        assert {data: found[data] for data in self.taken} == dict.fromkeys(self.taken, 1)
        assert not self.acked & found.keys()
        assert all(found[data] <= 1 for data in self.maybe)
        assert found.keys() <= self.taken | self.maybe


def test_the_story_reaches_everything() -> None:
    world = World("process")
    world.play()
    assert (world.taken | world.acked, world.maybe) == ({0, 1, 2, 3, 4, 5, 6}, set())
    assert len(world.acked) >= 4
    assert world.shards["here"].call("state", "q")["queue"]["dead_lettered"] >= 3
    world.check()


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
@pytest.mark.parametrize("side", ["here", "there"])
def test_a_stop_before_any_disk_call_leaves_each_job_once(side: Side, survival: Survival) -> None:
    probe = World(survival)
    begun = len(probe.disk(side).calls)
    probe.play()
    calls = len(probe.disk(side).calls) - begun
    assert calls > 12
    for number in range(calls):
        world = World(survival)
        world.disk(side).crash_at = begun + number
        world.play()
        assert world.crashes == 1
        world.check()

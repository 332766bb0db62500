"""Claims about the cap over all shards, with clients, routers and dead letters in any order of messages.

The treasurer and the shards are the real ones; only the wire between them is a list. The shards never hold more than
the cap. In the end, when there is room again, every copy and every letter has arrived.

Rings are topics that evict: by number, by bytes, by age, and with records deleted from their middle. Their writes wait
for a sync, so many are staged at a time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Coroutine
from typing import Any

import pytest

from proto.ipc.message import Message, Reply, Request
from proto.ipc.operations import Operation, Room, RoomOrder, RoomReport, RoomWant
from proto.model.errors import not_ready
from proto.model.names import shard_of
from shardd.changes.treasurer import Treasurer
from tests.support import asked as ask_with
from tests.support.routed import Net

CAP = 3000
SHARDS = 3
MOST_TOPICS = 16
DESTS = ("b", "c", "d")
RINGS = {
    "r1": {"cap_records": 3},
    "r2": {"cap_bytes": 150},
    "r3": {"cap_records": 5, "cap_bytes": 200, "ttl_ms": 500},
    "ring": {"cap_records": 2, "ttl_ms": 300},
}
"""The last one is also the destination of a router."""


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.net = Net(SHARDS, max_total_bytes=CAP, max_topics=MOST_TOPICS)
        for name in DESTS:
            self.net.router(f"to-{name}", "a", name)
        for name, config in RINGS.items():
            self.net.of(name).call("configure", name, {"durability": "fsync", **config})
        self.net.router("to-ring", "other", "ring")
        self.net.of("q").call("configure", "q", {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"})
        self.to: list[deque[Request]] = [deque() for _ in range(SHARDS)]
        self.orders: list[deque[RoomOrder]] = [deque() for _ in range(SHARDS)]
        self.reports: deque[tuple[int, RoomOrder, RoomReport]] = deque()
        self.wants: deque[RoomWant] = deque()
        self.ident = 10**6
        self.epoch = 0
        self.cap = CAP
        self.refused = 0
        self.appoint()
        for each in self.net.shards:
            each.shard.allowance.bind(alone=False)

    def appoint(self) -> None:
        """A new treasurer. What is on its way to and from the earlier one stays there."""
        self.epoch += 1
        self.treasurer = Treasurer(Room(MOST_TOPICS, self.cap), SHARDS, (0, self.epoch, 0))

    def index_of(self, topic: str) -> int:
        return shard_of(topic, SHARDS)

    def send(self, index: int, op: str, topic: str = "", body: bytes = b"", **options: Any) -> int:
        self.ident += 1
        self.to[index].append(Request(self.ident, ask_with.operation(op, options), topic, body))
        return self.ident

    # Steps

    def write(self) -> None:
        topic = self.rng.choice(["a", "a", "q", "other", *RINGS, *RINGS])
        body = b'{"records":[%b]}' % b",".join(
            b'{"data":"%b","tag":"t%d"}' % (b"x" * self.rng.randrange(60), self.rng.randrange(3))
            for _ in range(self.rng.randint(1, 4))
        )
        self.send(self.index_of(topic), "append", topic, body)

    def delete(self) -> None:
        topic = self.rng.choice(["b", "c", "d", "dead", "other", "a"])
        there = self.net.of(topic).shard.directory.visible.get(topic)
        if there is not None:
            before = self.rng.randint(1, there.records.head_seq + 1)
            if topic == "a":  # records that are not copied yet stay
                lanes = [self.net.topic(name).lane for name in DESTS]
                before = min(before, *(lane.cursor + 1 for lane in lanes if lane is not None))
            self.send(self.index_of(topic), "delete_records", topic, b'{"before_seq":%d}' % before)

    def thin(self) -> None:
        """Delete records from the middle of a ring, and move a ring's cap."""
        topic = self.rng.choice(list(RINGS))
        if self.rng.random() < 0.8:
            self.send(
                self.index_of(topic), "delete_records", topic, b'{"match":["tag","Eq","t%d"]}' % self.rng.randrange(3)
            )
        else:
            self.send(self.index_of(topic), "configure", topic, b'{"cap_records":%d}' % self.rng.randint(1, 5))

    def claim(self) -> None:
        self.send(self.index_of("q"), "claim", "q", b'{"node":"w","max":5,"lease_ms":100}')
        self.net.clock.advance(60)

    def deliver(self) -> None:
        index = self.rng.randrange(SHARDS)
        if self.to[index]:
            shard = self.net.shards[index].shard

            def respond(message: Message) -> None:
                if isinstance(message, Reply) and message.error is not None:
                    self.refused += 1

            shard.handle(self.to[index].popleft(), "gateway", respond)
            shard.flush()

    def ask(self) -> None:
        index = self.rng.randrange(SHARDS)
        allowance = self.net.shards[index].shard.allowance
        wish = allowance.wish()
        if wish is not None:
            self.wants.append(RoomWant(index, allowance.report.at, allowance.report.limit, wish))

    def tick(self) -> None:
        shard = self.net.shards[self.rng.randrange(SHARDS)].shard
        shard.allowance.tick(shard.monotonic())
        shard.flush()

    def divide(self) -> None:
        for index in range(SHARDS):
            self.treasurer.seen(index, 1, here=True, failed=False)
        for index, order in self.treasurer.orders(self.net.clock.monotonic()):
            self.orders[index].append(order)

    def obey(self) -> None:
        index = self.rng.randrange(SHARDS)
        if self.orders[index]:
            order = self.orders[index].popleft()
            shard = self.net.shards[index].shard
            self.reports.append((index, order, shard.allowance.obey(order)))
            shard.flush()

    def hear(self) -> None:
        if self.wants:
            self.treasurer.wanted(self.wants.popleft(), self.net.clock.monotonic())
        if self.reports:
            index, order, report = self.reports.popleft()
            if order.at[:3] == self.treasurer.epoch:
                self.treasurer.reported(index, order, report)

    def replace(self) -> None:
        if self.rng.random() < 0.02:
            self.appoint()

    def sync(self) -> None:
        self.net.shards[self.rng.randrange(SHARDS)].shard.commits.sync_now()

    def forward(self) -> None:
        self.net.step(self.rng.choice((*DESTS, "ring")))

    def stage_copies(self) -> None:
        """Number of copies that have seqs and are not visible yet."""
        topic = self.net.topic(self.rng.choice((*DESTS, "ring")))
        if topic.lane is not None:
            self.net.of(topic.name).shard.copier.copy(topic, self.net.pull(topic.lane))

    def bury(self) -> None:
        finish(self.net.of("q").shard.mover.carry(self))

    async def request(self, index: int, operation: Operation[Any], topic: str, body: bytes = b"") -> Reply:
        """Send a request for the mover. Does not wait for one that has to wait: it may still be carried out."""
        there = self.net.shards[index]
        self.ident += 1
        replies: list[Reply] = []

        def respond(message: Message) -> None:
            if isinstance(message, Reply):
                replies.append(message)

        there.shard.handle(Request(self.ident, operation, topic, body), "peer", respond)
        there.shard.commits.sync_now()
        if not replies:
            raise not_ready("it waits")
        if replies[0].error is not None:
            raise replies[0].error
        return replies[0]

    def check(self) -> None:
        held = [each.shard.directory.counters() for each in self.net.shards]
        assert sum(size for _, _, size in held) <= self.cap
        assert sum(topics for topics, _, _ in held) <= MOST_TOPICS
        limits = [each.shard.allowance.limit for each in self.net.shards]
        if all(each.shard.allowance.report.at[1] == self.epoch for each in self.net.shards):
            assert sum(limit.bytes for limit in limits) <= self.cap
            assert sum(limit.topics for limit in limits) <= MOST_TOPICS
        for each in self.net.shards:
            assert each.shard.staging.promises.booked >= 0


def finish(coroutine: Coroutine[Any, Any, Any]) -> None:
    with pytest.raises(StopIteration):
        coroutine.send(None)


STEPS = (
    [World.write] * 3 + [World.deliver] * 8 + [World.hear] * 8 + [World.divide] * 4 + [World.obey] * 8
    + [World.ask] * 4 + [World.tick] * 2 + [World.forward] * 3 + [World.stage_copies] + [World.bury] * 2
    + [World.claim] + [World.delete] + [World.thin] + [World.sync] * 3 + [World.replace]
)  # fmt: skip


def live(seed: int, steps: int) -> None:
    world = World(seed)
    for _ in range(steps):
        world.rng.choice(STEPS)(world)
        world.check()
    # There is room again: waiting copies and letters go on, in any order, and none is missing.
    settle = [
        World.deliver, World.hear, World.divide, World.obey, World.ask, World.tick, World.forward, World.bury,
        World.sync,
    ]  # fmt: skip
    world.cap *= 10
    world.appoint()
    lanes = {name: world.net.topic(name).lane for name in DESTS}
    for step in range(3000 + 3 * steps):  # what was sent meanwhile has to be delivered first
        world.rng.choice(settle)(world)
        world.check()
        if step % 10 == 0:
            world.net.clock.advance(1)
    for each in world.net.shards:
        each.shard.flush()
        each.shard.commits.sync_now()
        assert each.shard.staging.promises.booked == 0
    head = world.net.topic("a").records.head_seq
    assert {name: lane.cursor for name, lane in lanes.items() if lane is not None} == dict.fromkeys(DESTS, head)
    assert len(world.net.of("q").shard.mover) == 0


@pytest.mark.parametrize("seed", range(12))
def test_the_cap_holds_whatever_grows_and_what_waits_goes_on(seed: int) -> None:
    live(seed, 600)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_the_cap_holds_in_many_worlds(seed: int) -> None:
    live(seed, 3000)

"""Claims about the cap over all shards, with clients, routers and dead letters in any order of messages.

The gateway's accounts and the shards are the real ones; only the wire between them is a list. The shards never hold
more than the cap. In the end, when there is room again, every copy and every letter has arrived.

Rings are topics that evict: by number, by bytes, by age, and with records deleted from their middle. Their writes wait
for a sync, so many are staged at a time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.shards.client import Shards
from gateway.shards.ledger import Growth, Ledger
from gateway.shards.loans import Allowances
from proto.ipc.message import Message, Reply, Request
from proto.ipc.operations import Operation
from proto.model.errors import not_ready
from proto.model.limits import Limits
from proto.model.names import shard_of
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
        self.ledger = Ledger(SHARDS)
        self.to: list[deque[Request]] = [deque() for _ in range(SHARDS)]
        self.back: list[deque[tuple[Reply, tuple[int, int, int]]]] = [deque() for _ in range(SHARDS)]
        self.loans: list[int | None] = [None] * SHARDS
        self.wants = [(0, 0)] * SHARDS
        self.ident = 10**6
        self.accepted = 0
        self.cap = CAP
        self.allowances = self.lender()
        for index, each in enumerate(self.net.shards):
            each.shard.allowance.bind()
            topics, _, size = each.shard.counters()
            self.ledger.known[index] = (topics, size)

    def lender(self) -> Allowances:
        shards = cast(Shards, SimpleNamespace(ledger=self.ledger, states=[]))
        return Allowances(shards, Limits(max_total_bytes=self.cap, max_topics=MOST_TOPICS))

    def index_of(self, topic: str) -> int:
        return shard_of(topic, SHARDS)

    def send(
        self, index: int, op: str, topic: str = "", body: bytes = b"", growth: Growth | None = None, **o: Any
    ) -> int:
        self.ident += 1
        if growth is not None:
            self.ledger.book(index, self.ident, growth)
        self.to[index].append(Request(self.ident, ask_with.operation(op, o), topic, body))
        return self.ident

    # Steps

    def write(self) -> None:
        topic = self.rng.choice(["a", "a", "q", "other", *RINGS, *RINGS])
        index = self.index_of(topic)
        topics, size = self.ledger.room(index, MOST_TOPICS, CAP)
        body = b'{"records":[%b]}' % b",".join(
            b'{"data":"%b","tag":"t%d"}' % (b"x" * self.rng.randrange(60), self.rng.randrange(3))
            for _ in range(self.rng.randint(1, 4))
        )
        growth = Growth(1, 4 * len(body) + 200)
        self.send(index, "append", topic, body, growth, most_topics=topics, most_bytes=size)

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
                if isinstance(message, Reply):
                    self.back[index].append((message, shard.counters()))

            shard.handle(self.to[index].popleft(), "gateway", respond)
            shard.flush()

    def hear(self) -> None:
        index = self.rng.randrange(SHARDS)
        if self.back[index]:
            reply, (topics, _, size) = self.back[index].popleft()
            self.ledger.heard(index, [reply.id], topics, size)
            if reply.id == self.loans[index]:
                self.loans[index] = None
                self.wants[index] = reply.extra.bytes, reply.extra.topics

    def lend(self) -> None:
        index = self.rng.randrange(SHARDS)
        if self.loans[index] is None:
            size, topics = self.allowances._fitting(self.wants[index])
            growth = Growth(topics, size) if size or topics else None
            asked = self.wants[index]
            self.loans[index] = self.send(index, "allowance", "", b"", growth, bytes=size, topics=topics, asked=asked)

    def renew(self) -> None:
        self.net.shards[self.rng.randrange(SHARDS)].shard.maintain()

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
        held = [each.shard.counters() for each in self.net.shards]
        assert sum(size for _, _, size in held) <= self.cap
        assert sum(topics for topics, _, _ in held) <= MOST_TOPICS
        for index, (topics, _, size) in enumerate(held):
            promises = self.net.shards[index].shard._staging.promises
            assert 0 <= promises.apart <= promises.booked
            known = self.ledger.known[index]
            assert known is not None
            assert topics <= known[0] + self.ledger._topics[index]
            assert size <= known[1] + self.ledger._bytes[index]


def finish(coroutine: Coroutine[Any, Any, Any]) -> None:
    with pytest.raises(StopIteration):
        coroutine.send(None)


STEPS = (
    [World.write] * 3 + [World.deliver] * 8 + [World.hear] * 8 + [World.lend] * 4 + [World.forward] * 3
    + [World.stage_copies] + [World.bury] * 2 + [World.claim] + [World.delete] + [World.thin] + [World.sync] * 3
    + [World.renew]
)  # fmt: skip


def live(seed: int, steps: int) -> None:
    world = World(seed)
    for _ in range(steps):
        world.rng.choice(STEPS)(world)
        world.check()
    # There is room again: waiting copies and letters go on, in any order, and none is missing.
    settle = [World.deliver, World.hear, World.lend, World.forward, World.bury, World.sync, World.renew]
    world.cap *= 10
    world.allowances = world.lender()
    lanes = {name: world.net.topic(name).lane for name in DESTS}
    for _ in range(3000 + 3 * steps):  # what was sent meanwhile has to be delivered first
        world.rng.choice(settle)(world)
        world.check()
    for each in world.net.shards:
        each.shard.flush()
        each.shard.commits.sync_now()
        promises = each.shard._staging.promises
        assert (promises.booked, promises.apart) == (0, 0)
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

"""Claims about feeds: no order of replies has a stream skip or repeat a record when it becomes live; and streams whose
topics wait because their shard is too busy, with a real shard behind the gateway."""

from __future__ import annotations

import json
from random import Random
from typing import Any, cast

import pytest

from gateway.admission.body_budget import Budget, Kind
from gateway.streams.event_ids import Position
from gateway.streams.states import SubscriptionEvent, SubscriptionState
from gateway.streams.subscription import Item, Subscription
from gateway.streams.topic_feed import TopicFeed, TopicFeeds
from gateway.streams.watch_request import Options
from proto.ipc.message import Reply
from proto.ipc.operations import Fed
from proto.model.limits import Limits
from shardd.delivery.pressure import FULL_LAG
from tests.support.gateway_stage import Client, stage, until
from tests.support.harness import Harness
from tests.support.real_shard import start_real
from tests.support.websocket import UPGRADE

SUBSCRIBE = b'{"op":"subscribe","topics":{"low":{},"lower":{},"high":{}}}'


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardd.delivery.pressure.PACE_MS", 20)


async def subscribed(client: Client, kind: str) -> None:
    if kind == "websocket":
        assert (await client.ask("GET", "/v0/ws", headers=UPGRADE)).status == 101
        await client.send(bytes([0x81, 0x80 | len(SUBSCRIBE), 0, 0, 0, 0]) + SUBSCRIBE)
    else:
        made = await client.ask("POST", "/v0/watch", b'{"topics":{"low":{},"lower":{},"high":{}}}')
        assert (await client.ask("GET", made.json["stream_url"])).status == 200


async def passes(client: Client, mark: bytes) -> bytes:
    """Read up to a mark; return all bytes read."""
    while mark not in client.buffer:
        await client._more()
    before, _, client.buffer = client.buffer.partition(mark)
    return before


async def error_here(client: Client) -> dict[str, Any]:
    """The rest of an error whose beginning has been read."""
    found: dict[str, Any] = json.loads(b'{"code":' + await passes(client, b"}") + b"}")
    return found


@pytest.mark.parametrize("kind", ["event stream", "websocket"])
async def test_a_stream_says_which_topics_wait_and_goes_on(kind: str) -> None:
    """429 is advice; the stream stays open, and the delayed records come later."""
    async with stage() as there:
        shard = Harness()
        for name in ("low", "lower", "high"):
            shard.append(name, 1)
        shard.call("configure", "low", {"priority": -1})
        shard.call("configure", "lower", {"priority": -2})
        real = await start_real(there, shard)
        async with there.client() as client, there.client() as writer:
            await subscribed(client, kind)
            caught_up = b"caught-up\n" if kind == "event stream" else b'"op":"caught_up"'
            for _ in range(3):
                await passes(client, caught_up)
            await until(lambda: len(shard.shard.reads) == 3)
            for _ in range(60):
                shard.shard.sample(FULL_LAG)
            for name in ("low", "lower", "high"):
                written = await writer.ask("POST", f"/v0/topics/{name}", b'{"records":[{"data":"late"}]}')
                assert written.status == 200
            shard.clock.advance(20)
            shard.shard.sample(FULL_LAG)
            error = b'event: error\ndata: {"code":' if kind == "event stream" else b'{"op":"error","code":'
            before = await passes(client, error)
            assert before.count(b'"late"') == 1, "the topic of ordinary priority goes on"
            told = await error_here(client)
            if kind == "event stream":
                assert set(told) == {"code", "error", "retry_after_ms", "topics"}
                assert told["code"] == 429
            else:
                assert told["code"] == "throttled"
                assert told["message"]
            assert told["retry_after_ms"] == 20
            topics = {*told["topics"]}
            while topics != {"low", "lower"}:
                assert b"late" not in await passes(client, error)
                topics |= {*(await error_here(client))["topics"]}
            for _ in range(60):
                shard.shard.sample(0.0)
            real.settle()
            await passes(client, b'"late"')
            await passes(client, b'"late"')


EPOCH, MOST = 1, 5
OPTIONS = Options(MOST, 1 << 20, (), False, True, True, False)


class NeverRuns:
    """A nursery for feeds that the test moves."""

    def start_soon(self, *_: Any) -> None:
        """Do nothing."""


class Schedule:
    """A topic, its feed, and streams of it. Replies are made at one moment and arrive at another one, in any order."""

    def __init__(self, seed: int, streams: int = 3) -> None:
        self.rng = Random(seed)
        self.head = 0
        self.budget = Budget()
        self.feeds = TopicFeeds(cast(Any, None), Limits(), self.budget)
        self.feeds.nursery = cast(Any, NeverRuns())
        self.streams = [Reader(self) for _ in range(streams)]
        self._fed: tuple[TopicFeed, Reply[Fed]] | None = None

    def reply(self, seq: int) -> Reply[Fed]:
        to = min(seq + MOST, self.head)
        return Reply(0, b"[]" if to > seq else b"", extra=Fed(to, self.head, 1, EPOCH))

    def feed_asks(self) -> None:
        feed = next(iter(self.feeds._feeds.values()), None)
        if feed is not None and self._fed is None and feed.seq < self.head:
            self._fed = feed, self.reply(feed.seq)

    def feed_gets(self) -> None:
        fed, self._fed = self._fed, None
        if fed is not None and not fed[0].scope.cancel_called:
            assert fed[0]._spread(fed[1])

    def turn(self) -> None:
        stream = self.rng.choice(self.streams)
        self.rng.choice((self.feed_asks, self.feed_gets, stream.asks, stream.gets))()


class Reader:
    """A stream of the topic, and what its client got."""

    def __init__(self, schedule: Schedule) -> None:
        self.feeds = schedule.feeds
        self.generation = 0
        self.throttled: dict[str, Any] = {}
        self.full = 0.1
        """How often it has no room."""
        self.got: list[tuple[int, int]] = []
        self.caught_up: list[int] = []
        self.subscription = Subscription(self, "t", OPTIONS, Position(EPOCH, 0, 0))
        self._schedule = schedule
        self._asked: tuple[Position, Reply[Fed]] | None = None

    def asks(self) -> None:
        if self._asked is None and self.subscription.state is SubscriptionState.BEHIND:
            self._asked = self.subscription.position, self._schedule.reply(self.subscription.seq)

    def gets(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and self.subscription.state is SubscriptionState.BEHIND:
            assert asked[0] == self.subscription.position
            self.subscription.read(asked[1], self._schedule.budget.hold(Kind.STREAM))

    def behind(self, subscription: Subscription) -> None:
        subscription.note(SubscriptionEvent.FALL_BEHIND)

    def offer(self, item: Item) -> bool:
        if self._schedule.rng.random() < self.full:
            return False
        self.put(item)
        return True

    def put(self, item: Item) -> None:
        if item.kind == "record":
            self.got.append((item.what.from_seq, item.what.to_seq))
        elif item.kind == "caught-up":
            self.caught_up.append(item.what["head_seq"])

    def deleted(self, subscription: Subscription) -> None:
        raise AssertionError

    def problem(self, *_: Any, **__: Any) -> Item:
        raise AssertionError


@pytest.mark.parametrize("seed", range(200))
async def test_no_order_of_replies_has_a_stream_skip_or_repeat_a_record(seed: int) -> None:
    schedule = Schedule(seed)
    for _ in range(200):
        if schedule.rng.random() < 0.2:
            schedule.head += schedule.rng.randint(1, MOST)
        schedule.turn()
    for stream in schedule.streams:
        stream.full = 0.0
    for _ in range(1000):
        schedule.turn()
    for stream in schedule.streams:
        assert stream.subscription.state is SubscriptionState.LIVE
        ends = [0, *(to for _, to in stream.got)]
        assert [begin for begin, _ in stream.got] == ends[:-1]
        assert ends[-1] == schedule.head
        assert stream.caught_up == sorted(stream.caught_up)

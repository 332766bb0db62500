"""Claims about streams that catch up while memory is scarce."""

from __future__ import annotations

import gc
from typing import Any, cast

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.admission.body_budget import Budget
from gateway.contract.auth import EVERYBODY, Keyring
from gateway.streams.catch_up import MOST_READS
from gateway.streams.event_ids import Position
from gateway.streams.stream import Stream
from gateway.streams.subscription import Item, Throttle
from gateway.streams.topic_feed import TopicFeeds, frame_bytes
from gateway.streams.watch_request import Options
from proto.ipc.message import Reply
from proto.ipc.operations import Fed
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits

STREAMS = 10
OPTIONS = Options(1000, 1 << 18, (), False, True, True, False)
PATIENCE_S = 30


class Read:
    """A read whose reply comes once the shard answers."""

    def __init__(self, answers: trio.Event) -> None:
        self._answers = answers

    async def reply(self) -> Reply[Fed]:
        await self._answers.wait()
        return Reply(1, b"{}", extra=Fed(1, 1, 1, 1))

    def abandon(self) -> None:
        """The reply has come."""


class HeldShard:
    """A shard that keeps its replies back until `answers` is set, and never has further records."""

    def __init__(self) -> None:
        self.answers = trio.Event()
        self.reads = 0

    def index_of(self, _: str) -> int:
        return 0

    def ask(self, *_: Any) -> Read:
        self.reads += 1
        return Read(self.answers)

    async def call(self, *_: Any) -> None:
        await trio.sleep_forever()


class Live:
    """The hub of the streams. Their owner has memory for the reads of one and a half of them."""

    def __init__(self, shard: HeldShard) -> None:
        self.limits = Limits()
        size = frame_bytes(OPTIONS, self.limits)
        self.budget = Budget(MOST_READS * size * 9 // 4, PATIENCE_S * 1000)
        self.feeds = TopicFeeds(cast(Any, shard), self.limits, self.budget)
        self.keyring = Keyring(None)
        self.names = None
        self.streams: dict[Stream, None] = {}


class Reader(Stream):
    """A stream whose client reads at once."""

    def __init__(self, live: Live) -> None:
        super().__init__(cast(Any, live), EVERYBODY, most_items=1000)
        self.kinds: list[str] = []
        self.caught_up = trio.Event()

    async def send(self) -> None:
        self.kinds.append(self.taken().kind)
        if self.kinds.count("caught-up") == len(self.subscriptions):
            self.caught_up.set()

    def problem(
        self, code: int, message: str, topics: list[str] | None = None, retry_after_ms: int | None = None
    ) -> Item:
        return Item("raw", None, b"", None, 0)


async def test_streams_that_return_together_do_not_wait_for_each_others_memory(autojump_clock: MockClock) -> None:
    shard = HeldShard()
    live = Live(shard)
    streams = [Reader(live) for _ in range(STREAMS)]
    async with trio.open_nursery() as nursery:
        live.feeds.nursery = nursery
        for number, stream in enumerate(streams):
            for topic in range(MOST_READS):
                stream.add(f"{number}:{topic}", OPTIONS, Position(1, 0, 0))
            nursery.start_soon(stream.run, None)
        await wait_all_tasks_blocked()
        assert shard.reads == MOST_READS * 3 // 2
        assert live.budget.waiting >= STREAMS - 2
        shard.answers.set()
        with trio.fail_after(PATIENCE_S / 4):
            for stream in streams:
                await stream.caught_up.wait()
        assert all(stream.kinds.count("record") == MOST_READS for stream in streams)
        assert all("raw" not in stream.kinds and not stream.throttled for stream in streams)
        nursery.cancel_scope.cancel()
    assert live.budget.used == 0


class Refused:
    async def reply(self) -> Reply[Fed]:
        return Reply(1, error=TopicsError(ErrorCode.THROTTLED, "busy", retry_after_ms=5000))

    def abandon(self) -> None:
        """The reply has come."""


class BusyShard(HeldShard):
    """A shard that throttles every read."""

    def ask(self, *_: Any) -> Any:
        return Refused()


async def test_a_read_that_the_shard_throttles_holds_no_memory_until_it_is_repeated(autojump_clock: MockClock) -> None:
    live = Live(BusyShard())
    stream = Reader(live)
    gc.disable()
    try:
        async with trio.open_nursery() as nursery:
            live.feeds.nursery = nursery
            stream.add("a", OPTIONS, Position(1, 0, 0))
            nursery.start_soon(stream.run, None)
            await wait_all_tasks_blocked()
            assert stream.throttled == {"a": Throttle("busy", 5000)}
            assert live.budget.used == 0
            nursery.cancel_scope.cancel()
    finally:
        gc.enable()

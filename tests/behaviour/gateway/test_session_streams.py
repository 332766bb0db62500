"""A session and two gateways: one stream at a time, and each begins where the one before it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from gateway.streams.watch_sessions import Sessions
from shardd.operations.session_streams import TAKE_S
from tests.support.gateway_events import Events
from tests.support.gateway_stage import Stage, stage, until
from tests.support.harness import Harness
from tests.support.real_shard import RealShard, start_real


@asynccontextmanager
async def gateways(count: int = 2) -> AsyncIterator[tuple[Harness, list[Stage], list[RealShard]]]:
    """Gateways in front of the same shard."""
    harness = Harness()
    harness.append("t", 0)
    async with trio.open_nursery() as nursery:
        stages: list[Stage] = []
        over = trio.Event()

        async def run(task_status: trio.TaskStatus[Stage]) -> None:
            async with stage() as there:
                task_status.started(there)
                await over.wait()

        for _ in range(count):
            stages.append(await nursery.start(run))
        shards = [await start_real(there, harness) for there in stages]
        for number, shard in enumerate(shards):
            shard.caller = f"g{number}.1"
        yield harness, stages, shards
        over.set()


class Stream(Events):
    async def taken_over(self) -> None:
        """Read up to the last event of a stream that ends for another one."""
        event, data = await self.next()
        while event != "error":
            event, data = await self.next()
        assert (data["code"], data["error"]) == (409, "another connection has opened this watch session")


def sessions(there: Stage) -> Sessions:
    return there.gateway.api.live.sessions


async def session(there: Stage) -> str:
    async with there.client() as client:
        made = await client.ask("POST", "/v0/watch", b'{"topics":{"t":{"from_seq":0}}}')
        return str(made.json["stream_url"])


@asynccontextmanager
async def streaming(there: Stage, url: str) -> AsyncIterator[Stream]:
    async with there.client() as client:
        await client.send(b"GET " + url.encode() + b" HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        yield Stream(client)


def hang(there: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a gateway take no notice of news."""
    monkeypatch.setattr(sessions(there), "_to_end", lambda index, wid, number: None)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_new_stream_ends_the_first_and_begins_where_that_ended(count: int) -> None:
    async with gateways(count) as (harness, stages, shards):
        url = await session(stages[0])
        async with streaming(stages[0], url) as first:
            assert await first.record() == [0]
            async with streaming(stages[-1], url) as second:
                await first.taken_over()
                harness.append("t", 1)
                shards[-1].settle()
                assert await second.record() == [1], "nothing twice"
                assert sum(len(sessions(there)) for there in stages) == 1


async def test_a_gateway_that_hangs_is_waited_for_two_seconds_and_its_late_positions_count_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gateways() as (harness, (one, two), shards):
        url = await session(one)
        async with streaming(one, url) as first:
            assert await first.record() == [0]
            hang(one, monkeypatch)
            async with streaming(two, url) as second:
                await until(lambda: harness.shard.session_streams.next_due is not None)
                harness.append("t", 1)
                shards[0].settle()
                assert await first.record() == [1]
                assert not len(sessions(two)), "it waits"
                harness.clock.advance(int(TAKE_S * 1000))
                shards[1].settle()
                assert 1 in await second.record()
                harness.append("t", 2)
                for shard in shards:
                    shard.settle()
                await first.taken_over()
                while 2 not in await second.record():
                    pass
        async with streaming(one, url) as third:
            harness.append("t", 3)
            shards[0].settle()
            assert await third.record() == [3], "positions are those of the second stream"


async def test_a_gateway_that_is_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateways() as (harness, (one, two), shards):
        url = await session(one)
        async with streaming(one, url) as first:
            assert await first.record() == [0]
            hang(one, monkeypatch)
            async with streaming(two, url) as second:
                await until(lambda: harness.shard.session_streams.next_due is not None)
                harness.shard.forget("g0.1")
                shards[1].settle()
                harness.append("t", 1)
                shards[1].settle()
                while 1 not in await second.record():
                    pass


@pytest.mark.parametrize("count", [1, 2])
async def test_of_many_connections_one_stream_is_left(count: int) -> None:
    async with gateways(count) as (harness, stages, _shards):
        url = await session(stages[0])
        async with trio.open_nursery() as nursery:
            ended: list[int] = []

            async def connect(number: int) -> None:
                async with streaming(stages[number % count], url) as events:
                    await events.taken_over()
                    ended.append(number)

            for number in range(12):
                nursery.start_soon(connect, number)
            await until(lambda: len(ended) == 11)
            await until(lambda: harness.shard.session_streams.next_due is None)
            assert harness.clock.monotonic() == 0, "no stream waited for the end of its time"
            await until(lambda: sum(len(sessions(there)) for there in stages) == 1)
            nursery.cancel_scope.cancel()


async def test_a_gateway_asks_for_news_once_while_it_has_streams() -> None:
    async with gateways(1) as (harness, (one,), _shards):
        listeners = harness.shard.session_streams._listeners
        url = await session(one)
        assert not listeners
        async with streaming(one, url) as first, streaming(one, await session(one)) as second:
            assert await first.record() == await second.record() == [0]
            assert len(listeners) == 1
            (news,) = listeners.values()
            sessions(one).tell(word=True)
            await sessions(one).told()
            assert [each.ident for each in listeners.values()] == [news.ident]
        await until(lambda: not sessions(one)._progress)
        assert not harness.shard.session_streams._held


async def test_a_connection_that_leaves_before_its_stream_begins_keeps_none_waiting() -> None:
    async with gateways() as (harness, (one, two), shards):
        url = await session(one)
        harness.clock.advance(1)
        shards[0].deaf = True
        async with streaming(one, url):
            await until(lambda: shards[0].ignored > 0)
        shards[0].deaf = False
        async with streaming(two, url) as second:
            assert await second.record() == [0]


async def test_a_stream_that_no_gateway_has_is_reported_over() -> None:
    """The client left before the answer to the take arrived at its gateway."""
    async with gateways() as (harness, (one, two), _shards):
        url = await session(one)
        async with streaming(two, await session(two)) as other:
            assert await other.record() == [0]
            wid = url.rpartition("/")[2]
            assert harness.shard.session_streams._held
            harness.send("session_take", wid, owner=b"")
            harness.shard.flush()
            streams = harness.shard.session_streams
            streams._held[wid] = type(streams._held[wid])(1, "g1.1")
            async with streaming(one, url) as second:
                assert await second.record() == [0]


async def test_a_shard_that_has_started_again_hears_of_the_streams_before_one_is_taken_over() -> None:
    async with gateways(1) as (harness, (one,), _):
        url = await session(one)
        async with streaming(one, url) as first:
            assert await first.record() == [0]
            again = await start_real(one, harness.restarted(), incarnation=3)
            sessions(one).tell()
            async with streaming(one, url) as second:
                await first.taken_over()
                again.harness.append("t", 1)
                again.settle()
                assert await second.record() == [1], "nothing twice"
            streams = again.harness.shard.session_streams
            await until(lambda: not streams._held)


async def test_a_session_that_is_taken_at_once_after_its_shard_has_started_again_repeats_nothing() -> None:
    async with gateways(1) as (harness, (one,), _):
        url = await session(one)
        sessions(one).tell = lambda **word: None  # type: ignore[method-assign]
        async with streaming(one, url) as first:
            assert await first.record() == [0]
            again = await start_real(one, harness.restarted(), incarnation=3)
            async with streaming(one, url) as second:
                await first.taken_over()
                again.harness.append("t", 1)
                again.settle()
                assert await second.record() == [1]


async def test_positions_of_a_shard_that_was_away_are_not_merged_into_a_later_stream() -> None:
    """The session was with another gateway meanwhile, whose client may have gone back."""
    async with gateways() as (harness, (one, two), shards):
        url = await session(one)
        async with streaming(one, url) as first:
            assert await first.record() == [0]
        async with streaming(two, url) as second:
            await until(lambda: len(sessions(two)) == 1)
            harness.append("t", 1)
            shards[1].settle()
            assert await second.record() == [1]
        async with streaming(one, url) as third:
            harness.append("t", 2)
            shards[0].settle()
            assert await third.record() == [2]

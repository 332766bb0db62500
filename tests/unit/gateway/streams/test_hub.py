"""Claims about streams that have ended: they leave no task, stream, feed or slot in the gateway."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio.lowlevel

from tests.support.gateway_stage import Stage, stage, until
from tests.support.harness import Harness
from tests.support.real_shard import start_real
from tests.support.websocket import UPGRADE

CONNECTS = 1000
AT_ONCE = 20


async def _visit(there: Stage, number: int, url: str) -> None:
    async with there.client() as client:
        if number % 2:
            assert (await client.ask("GET", "/v0/ws", headers=UPGRADE)).status == 101
            text = b'{"op":"subscribe","topic":"a"}'
            await client.send(b"\x81" + bytes([0x80 | len(text)]) + bytes(4) + text)
        else:
            assert (await client.ask("GET", url)).status == 200
        if number % 3:
            await client._more()


@pytest.mark.slow
async def test_a_thousand_streams_leave_no_task() -> None:
    async with stage() as there:
        harness = Harness()
        harness.append("a", *range(10))
        await start_real(there, harness)
        live, streams = there.gateway.api.live, there.gateway.api.entry.streams
        async with there.client() as client:
            made = [await client.ask("POST", "/v0/watch", b'{"topics":{"a":{}}}') for _ in range(AT_ONCE)]
        await until(lambda: not there.gateway.flight.count)
        before = trio.lowlevel.current_statistics().tasks_living
        for start in range(0, CONNECTS, AT_ONCE):
            async with trio.open_nursery() as nursery:
                for number in range(AT_ONCE):
                    nursery.start_soon(_visit, there, start + number, made[number].json["stream_url"])
        await until(lambda: not (live.streams or streams.open or there.gateway.flight.count))
        await until(lambda: trio.lowlevel.current_statistics().tasks_living <= before)


async def test_streams_of_a_prefix_share_one_request_to_each_shard_and_leave_none() -> None:
    async with stage() as there:
        harness = Harness()
        harness.append("a:1", 1)
        await start_real(there, harness)
        live, names = there.gateway.api.live, harness.shard.names
        async with AsyncExitStack() as clients:
            for _ in range(10):
                client = await clients.enter_async_context(there.client())
                made = await client.ask("POST", "/v0/watch", b'{"prefix":"a:"}')
                assert made.json["topics"].keys() == {"a:1"}
                assert (await client.ask("GET", made.json["stream_url"])).status == 200
            await until(lambda: len(names) == 1)
            assert len(live.names) == 1
            async with there.client() as writer:
                body = b'{"records":[{"data":1}]}'
                assert (await writer.ask("POST", "/v0/topics/a:2", body)).status == 201
            await until(lambda: all(stream.watching() == 2 for stream in live.streams))
            assert len(names) <= 1
        await until(lambda: not (live.streams or len(live.names) or len(names)))

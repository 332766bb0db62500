"""Claims about streams whose topics wait because their shard is too busy, with a real shard behind the gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

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

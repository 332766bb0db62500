"""Claims about the caps on watch streams and WebSockets, with a real shard behind the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio.testing

from gateway.streams.sse import EventStream
from gateway.streams.subscription import Item
from gateway.streams.websocket_commands import SocketStream
from tests.support.gateway_stage import Answer, Client, Stage, key, stage, until
from tests.support.harness import Harness
from tests.support.real_shard import RealShard, start_real
from tests.support.websocket import UPGRADE

ONE, TWO, THREE = ({"Authorization": f"Bearer {name}"} for name in ("one", "two", "three"))
KINDS = ["event stream", "websocket"]


def refused(answer: Answer, limit: str, most: int) -> None:
    assert (answer.status, answer.code) == (429, "throttled")
    assert answer.json["error"]["detail"] == {"limit": limit, "max": most}
    assert int(answer.headers["retry-after"]) >= 1


async def asked(client: Client, kind: str, headers: dict[str, str]) -> Answer:
    """Try to open a stream; return the response head if it was opened."""
    if kind == "websocket":
        return await client.ask("GET", "/v0/ws", headers=headers | UPGRADE)
    made = await client.ask("POST", "/v0/watch", b'{"topics":{"a":{}}}', headers)
    assert made.status == 200, made.raw
    return await client.ask("GET", made.json["stream_url"], headers=headers)


@asynccontextmanager
async def full(kind: str, **limits: int) -> AsyncIterator[tuple[Stage, Client]]:
    """A gateway at its caps, and the client whose stream the test ends."""
    limits = {"max_sse_connections": 2, "max_sse_connections_per_key": 1, **limits}
    async with stage(keys=[key("one"), key("two"), key("three")], **limits) as there:
        shard = Harness()
        shard.append("a", *range(1000))
        await start_real(there, shard)
        async with there.client() as holder, there.client() as second, there.client() as other:
            assert (await asked(holder, kind, ONE)).status in (200, 101)
            refused(await asked(other, kind, ONE), "max_sse_connections_per_key", 1)
            assert (await asked(second, kind, TWO)).status in (200, 101)
            refused(await asked(other, kind, THREE), "max_sse_connections", 2)
            metrics = await other.ask("GET", "/v0/metrics", headers=ONE)
            assert b"topics_sse_connections 2.0" in metrics.raw
            assert (await other.ask("GET", "/v0/topics/a", headers=ONE)).status == 200, "streams are no requests"
            yield there, holder


async def _leaves(there: Stage, client: Client) -> None:
    await client.stream.aclose()


async def _fails(there: Stage, client: Client) -> None:
    for stream in there.gateway.api.live.streams:

        async def broken() -> None:
            raise RuntimeError("a bug")

        def unformed(item: Item) -> bytes:
            raise RuntimeError("a bug")

        stream.send = broken  # type: ignore[method-assign]
        if isinstance(stream, EventStream):
            stream._form = unformed  # type: ignore[method-assign]
    async with there.client() as writer:
        body = b'{"records":[{"data":1}]}'
        assert (await writer.ask("POST", "/v0/topics/a", body, ONE)).status == 200
        if any(isinstance(stream, SocketStream) for stream in there.gateway.api.live.streams):
            await client.send(b"\x81\x8d\0\0\0\0" + b'{"op":"ping"}')


async def _key_goes(there: Stage, client: Client) -> None:
    there.gateway.keyring.replace([key("two"), key("three")])


async def _shard_dies(there: Stage, client: Client) -> None:
    there.lose_shard(0)
    streams = there.gateway.api.entry.streams
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert streams.open == 2, "a stream waits for its topics' shards to come back"
    await client.stream.aclose()


async def _stops(there: Stage, client: Client) -> None:
    there.nursery.start_soon(there.gateway.drain)


Ends = Callable[[Stage, Client], Awaitable[None]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", [_leaves, _fails, _key_goes, _shard_dies, _stops])
async def test_a_slot_is_free_again_however_the_stream_ends(kind: str, end: Ends) -> None:
    async with full(kind) as (there, holder):
        streams = there.gateway.api.entry.streams
        assert streams.open == 2
        await end(there, holder)
        await until(lambda: not streams._by_key[key("one").digest])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_does_not_read_loses_its_slot(kind: str) -> None:
    async with full(kind, slow_consumer_timeout_ms=200, buffer_grace_ms=100) as (there, holder):
        if kind == "websocket":
            text = b'{"op":"subscribe","topic":"a"}'
            await holder.send(b"\x81" + bytes([0x80 | len(text)]) + bytes(4) + text)
        async with there.client() as writer:
            body = b'{"records":[{"data":"%b"}]}' % (b"x" * 500_000)
            while there.gateway.api.entry.streams._by_key[key("one").digest]:
                answer = await writer.ask("POST", "/v0/topics/a", body, TWO)
                assert answer.status in (200, 429)


async def test_the_service_has_its_own_cap_whoever_asks() -> None:
    async with stage(max_sse_connections=1) as there:
        await start_real(there, Harness())
        async with there.client() as holder, there.client() as other:
            assert (await holder.ask("GET", "/v0/ws", headers=UPGRADE)).status == 101
            refused(await other.ask("GET", "/v0/ws", headers=UPGRADE), "max_sse_connections", 1)


# -- stored objects: routers and sessions


async def _answer(there: Stage, client: Client, request: bytes) -> None:
    await client.send(request)
    assert (await client.receive()).status in (200, 201)


async def _client_goes(there: Stage, client: Client, request: bytes) -> None:
    await client.send(request)
    await client.stream.aclose()


async def _shard_goes(there: Stage, client: Client, request: bytes) -> None:
    shard = there.shards[0]
    assert isinstance(shard, RealShard)
    shard.deaf = True
    await client.send(request)
    await until(lambda: shard.ignored > 0)
    there.lose_shard(0)
    assert (await client.receive()).code == "not_ready"
    await start_real(there, shard.harness.restarted(), incarnation=3)


async def _shard_is_silent(there: Stage, client: Client, request: bytes) -> None:
    shard = there.shards[0]
    assert isinstance(shard, RealShard)
    shard.deaf = True
    await client.send(request)
    await until(lambda: shard.ignored > 0)
    for link in there.gateway.shards.links.open():
        for pending in link.waiting.values():
            pending.deadline = 0
    assert (await client.receive()).code == "not_ready"
    shard.deaf = False


async def _bug(there: Stage, client: Client, request: bytes) -> None:
    handle, there.gateway.api.forwarding.handlers = there.gateway.api.forwarding.handlers, {}
    await client.send(request)
    assert (await client.receive()).code == "internal"
    there.gateway.api.forwarding.handlers = handle


KEPT: dict[str, tuple[str, str, str]] = {
    "max_routers": ("PUT", "/v0/routers/r%d", '{"source":"a","dest":"d%d"}'),
    "max_watch_sessions": ("POST", "/v0/watch", '{"topics":{"a":{}}}'),
}
"""Cap → request that makes one more: method, path, body. A number in it differs each time."""


@pytest.mark.parametrize("how", [_answer, _client_goes, _shard_goes, _shard_is_silent, _bug])
@pytest.mark.parametrize("cap", KEPT)
async def test_what_is_counted_is_what_there_is_however_making_it_ended(
    cap: str, how: Callable[[Stage, Client, bytes], Awaitable[None]]
) -> None:
    method, path, body = KEPT[cap]

    def request(number: int) -> tuple[str, bytes]:
        return path.replace("%d", str(number)), body.replace("%d", str(number)).encode()

    async with stage(max_routers=2, max_watch_sessions=2, request_timeout_ms=1000) as there:
        there.gateway.shards.links.timeout_s = 0.04  # deadlines are checked this often
        harness = Harness(max_routers=2, max_watch_sessions=2)
        harness.append("a", 1)
        await start_real(there, harness)
        there.gateway.shards.links.timeout_s = 20
        target, content = request(0)
        head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        async with there.client() as client:
            await how(there, client, f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        async with there.client() as client:
            made = 0
            for number in range(1, 4):
                target, content = request(number)
                answer = await client.ask(method, target, content)
                if answer.status == 429:
                    refused(answer, cap, 2)
                    break
                assert answer.status in (200, 201), answer.raw
                made += 1
            assert made == {_answer: 1, _client_goes: made}.get(how, 2)
            assert made in (1, 2)
            if cap == "max_routers":
                assert (await client.ask("PUT", "/v0/routers/r1", b'{"allow_cycle":true}')).status == 200, "an update"
                assert (await client.ask("DELETE", "/v0/routers/r1")).status == 200
                target, content = request(9)
                assert (await client.ask(method, target, content)).status == 201


async def test_one_key_cannot_take_all_cursors_of_a_topic() -> None:
    keys = [key("one"), key("two")]
    async with stage(keys=keys, max_cursors_per_topic=5) as there, there.client() as client:
        harness = Harness(max_cursors_per_topic=5)
        harness.append("a", 1)
        await start_real(there, harness)

        async def put(name: str, headers: dict[str, str]) -> Answer:
            return await client.ask("PUT", f"/v0/topics/a/cursors/{name}", b'{"seq":1}', headers)

        for name in "ab":
            assert (await put(name, ONE)).status == 200
        refused(await put("c", ONE), "max_cursors_per_key", 2)
        assert (await put("a", TWO)).status == 200, "it exists"
        await start_real(there, harness.restarted(), incarnation=3)
        refused(await put("c", ONE), "max_cursors_per_key", 2)
        for name in "cd":
            assert (await put(name, TWO)).status == 200
        there.gateway.keyring.replace([key("two")])
        assert (await put("e", TWO)).status == 200, "it is the only key"
        refused(await put("f", TWO), "max_cursors_per_topic", 5)
        there.gateway.keyring.replace([key("two"), key("three")])
        assert (await client.ask("DELETE", "/v0/topics/a/cursors/a", headers=TWO)).status == 200
        refused(await put("f", TWO), "max_cursors_per_key", 2)
        assert (await put("f", THREE)).status == 200, "those of a key that is gone count for none"


async def test_without_keys_a_client_may_make_every_cursor_of_a_topic() -> None:
    async with stage(max_cursors_per_topic=2) as there, there.client() as client:
        harness = Harness(max_cursors_per_topic=2)
        harness.append("a", 1)
        await start_real(there, harness)
        for name in "ab":
            assert (await client.ask("PUT", f"/v0/topics/a/cursors/{name}", b'{"seq":1}')).status == 200
        refused(await client.ask("PUT", "/v0/topics/a/cursors/c", b'{"seq":1}'), "max_cursors_per_topic", 2)
        assert {cursor.maker for cursor in harness.shard.directory.find("a").cursors.values()} == {b""}

"""Claims about the gateway's memory with clients that send much, request much, or read nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
import trio.testing

from gateway.admission.body_budget import Kind
from proto.ipc.message import Message, Reply, Request
from tests.support.gateway_stage import Client, Stage, echo, key, stage, until
from tests.support.harness import Harness
from tests.support.real_shard import start_real

MIB = 1 << 20
CHUNKED = (
    b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer %b\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
DIFF = (
    b"POST /v0/topics/a/diff HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)
LARGE = b'{"max_batch_bytes":8388608}'


@asynccontextmanager
async def small_window(there: Stage) -> AsyncIterator[Client]:
    """A client with a small receive buffer, so that bytes it does not read stay in the gateway."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(there.address)
    async with trio.SocketStream(trio.socket.from_stdlib_socket(raw)) as stream:
        yield Client(stream)


async def test_chunked_heads_of_one_key_do_not_delay_the_write_of_another() -> None:
    keys = [key("greedy"), key("modest")]
    limits = {"max_body_bytes": 8 * MIB, "memory_bytes": 64 * MIB, "body_timeout_ms": 20_000}
    async with stage(keys=keys, **limits) as there, AsyncExitStack() as stack:
        for _ in range(12):
            client = await stack.enter_async_context(there.client())
            await client.send(CHUNKED % b"greedy" + b"2\r\n{ \r\n")
        await until(lambda: len(there.gateway.server.connections) == 12)
        body = b'{"records":[{"data":"%b"}]}' % (b"x" * MIB)
        async with there.client() as client:
            with trio.fail_after(60):
                answer = await client.ask("POST", "/v0/topics/b", body, {"Authorization": "Bearer modest"})
            assert answer.status == 200
        assert there.gateway.budget.used < 12 * MIB
    assert there.gateway.budget.used == 0


@pytest.mark.parametrize("size", [30, 4096])
async def test_a_small_body_that_comes_after_its_head_does_not_wait_for_memory(size: int) -> None:
    head = DIFF.partition(b"%b")[0].replace(b"/diff", b"") % size
    async with stage(memory_bytes=64 * MIB) as there, there.client() as client:
        budget = there.gateway.budget
        holds = [budget.hold(Kind.STREAM), budget.hold(Kind.STREAM)]
        for hold in holds:
            hold.set(budget.total)  # what is there already is counted, also beyond the total
        await client.send(head)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await client.send(b"{}".ljust(size))
        with trio.fail_after(5):
            assert (await client.receive()).status == 200
        for hold in holds:
            hold.release()


async def test_a_body_in_chunks_grows_to_its_limit_and_no_further() -> None:
    async with stage(max_body_bytes=4 * MIB, memory_bytes=32 * MIB) as there, there.client() as client:
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        await client.send((CHUNKED % b"x") + b"2\r\n{}\r\n" + chunk * 63 + b"0\r\n\r\n")
        assert (await client.receive()).status == 200
        await client.send((CHUNKED % b"x") + b"2\r\n{}\r\n" + chunk * 64)
        assert (await client.receive()).code == "payload_too_large"
        await until(lambda: there.gateway.budget.used == 0)


@pytest.mark.slow
async def test_answers_that_are_not_read_are_bounded_and_the_rest_waits() -> None:
    full = b'{"x":"%b"}' % (b"x" * (8 * MIB - 100))

    def script(request: Request) -> list[Message]:
        return [Reply(request.id, full)] if request.op == "diff" else echo(request)

    async with stage(script, memory_bytes=64 * MIB) as there, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(small_window(there)) for _ in range(6)]
        for client in clients:
            await client.send(DIFF % (len(LARGE), LARGE))
        budget = there.gateway.budget
        await until(lambda: budget.waiting == 4)
        await until(lambda: len(there.shards[0].requests) == 2)
        async with there.client() as other:
            assert (await other.ask("POST", "/v0/topics/b", b" " * 100_000 + b"{}")).status == 200
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client.receive)
        await until(lambda: budget.used == 0)


@pytest.mark.slow
async def test_polls_that_are_all_answered_at_once_get_their_room_one_after_the_other() -> None:
    limits = {"memory_bytes": 12 * MIB, "max_record_bytes": MIB, "body_timeout_ms": 300_000}
    async with stage(**limits) as there, AsyncExitStack() as stack:
        harness = Harness(**limits)
        harness.append("a", 0)
        shard = await start_real(there, harness)
        poll = b'{"from_seq":1,"wait_ms":20000,"max_batch_bytes":4194304}'
        clients = [await stack.enter_async_context(small_window(there)) for _ in range(10)]
        for client in clients:
            await client.send(DIFF % (len(poll), poll))
        await until(lambda: len(harness.shard.reads) == 10)
        await until(lambda: there.gateway.budget.used == 0)
        harness.append("a", *["x" * 600_000] * 6)
        shard.settle()
        most = 0
        seqs: list[int] = []

        async def read(client: Client) -> None:
            nonlocal most
            answer = await client.receive()
            most = max(most, there.gateway.budget.used)
            seqs.append(len(json.loads(answer.raw)["records"]))

        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(read, client)
        assert seqs == [6] * 10
        assert most <= there.gateway.budget.total
        await until(lambda: there.gateway.budget.used == 0)


@pytest.mark.slow
async def test_a_client_that_trickles_its_answer_is_left() -> None:
    full = b'{"x":"%b"}' % (b"x" * (32 * MIB))
    limits = {"body_timeout_ms": 1000, "min_download_rate": 50_000_000}
    async with stage(lambda request: [Reply(request.id, full)], **limits) as there, small_window(there) as client:

        async def trickle() -> None:
            while True:
                await client.stream.receive_some(20_000)
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            await client.send(DIFF % (2, b"{}"))
            await until(lambda: len(there.shards[0].requests) == 1)
            nursery.start_soon(trickle)
            await until(lambda: not there.gateway.server.connections)
            nursery.cancel_scope.cancel()
        await until(lambda: there.gateway.budget.used == 0)


@pytest.mark.parametrize("frame", [8 * MIB, 100_000])
async def test_a_stream_that_is_not_read_holds_what_is_promised(frame: int) -> None:
    limits = {"watch_queue_bytes": 2 * MIB, "max_record_bytes": MIB, "cache_bytes": 64 * MIB}
    async with stage(**limits) as there, AsyncExitStack() as stack:
        harness = Harness(**limits)
        for _ in range(16):
            harness.append("a", *["x" * 50_000] * 20)
        await start_real(there, harness)
        budget, live = there.gateway.budget, there.gateway.api.live
        wish = b'{"topics":{"a":{"from_seq":0}},"max_batch_bytes":%d}' % frame
        for _ in range(4):
            async with there.client() as client:
                made = (await client.ask("POST", "/v0/watch", wish)).json
            unread = await stack.enter_async_context(small_window(there))
            await unread.send(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % made["stream_url"].encode())
        await until(lambda: len(live.streams) == 4 and all(stream.queue for stream in live.streams))
        steady, seen = 0, -1
        while steady < 50:
            await trio.sleep(0.005)
            assert all(stream._held_bytes <= 2 * MIB for stream in live.streams)
            assert budget.used <= 4 * 2 * MIB
            steady, seen = (steady + 1, seen) if budget.used == seen else (0, budget.used)
        assert budget.used >= 2 * MIB
        await stack.aclose()
        await until(lambda: budget.used == 0)


async def test_names_by_the_million_are_refused_before_they_are_taken_apart() -> None:
    names = b'{"topics":{%b}}' % b",".join(b'"t%d":{}' % number for number in range(150_000))
    async with stage() as there, there.client() as client:
        assert (await client.ask("POST", "/v0/watch", names)).code == "payload_too_large"

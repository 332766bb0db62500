"""A gateway that retires accepts nothing, serves the connections that it has, and ends them."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from time import monotonic

import pytest
import trio
import trio.testing

from gateway import process
from gateway.protocols import tcp_server
from gateway.server import connection
from proto.ipc.message import Message, Parked, Reply, Request
from tests.support.gateway_stage import Stage, echo, stage, until

BODY = b'{"from_seq":0,"wait_ms":30000}'


def parks(request: Request) -> list[Message]:
    return [Parked(request.id)] if request.op == "diff" else echo(request)


async def retire(there: Stage, over: trio.Event) -> None:
    await there.gateway.retire()
    over.set()


async def retire_while_one_waits(
    there: Stage, ask: Callable[..., Awaitable[object]], nursery: trio.Nursery
) -> tuple[trio.Event, Request]:
    """Begin to retire once a request is parked. Returns an event that is set when the gateway has retired, and the
    request."""
    over = trio.Event()
    nursery.start_soon(ask, "POST", "/v0/topics/a/diff", BODY)
    await until(lambda: any(each.op == "diff" for each in there.shards[0].requests))
    there.nursery.start_soon(retire, there, over)
    await until(lambda: there.gateway.flight.leaving)
    return over, next(each for each in there.shards[0].requests if each.op == "diff")


async def test_a_request_that_waits_gets_its_answer_and_then_the_connection_ends() -> None:
    async with stage(parks) as there, there.client() as client:
        async with trio.open_nursery() as nursery:
            over, waiting = await retire_while_one_waits(there, client.ask, nursery)
            assert not over.is_set()
            there.shards[0].send(Reply(waiting.id, b'{"records":[]}'))
        assert await client.ended()
        assert not over.is_set(), "it stays open until the client closes it"
        await client.stream.aclose()
        await over.wait()
        assert there.gateway.server.connections == set()


async def test_an_open_connection_is_served_once_more_and_its_client_hears_that_it_ends() -> None:
    async with stage() as there, there.client() as client:
        assert "connection" not in (await client.ask("GET", "/v0/health")).headers
        over = trio.Event()
        there.nursery.start_soon(retire, there, over)
        await until(lambda: there.gateway.flight.leaving)
        answer = await client.ask("POST", "/v0/topics/a", b"{}")
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.ended()
        assert not over.is_set(), "it stays open until the client closes it"
        await client.stream.aclose()
        await over.wait()


async def test_a_connection_without_a_request_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "IDLE_S", 0.05)
    async with stage() as there, there.client() as client:
        await client.ask("GET", "/v0/health")
        over = trio.Event()
        there.nursery.start_soon(retire, there, over)
        assert await client.ended()
        await over.wait()


async def test_a_new_connection_is_left_to_other_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LINGER_PAUSE_S", 0.05)
    async with stage(parks) as there, there.client() as client, trio.open_nursery() as nursery:
        over, waiting = await retire_while_one_waits(there, client.ask, nursery)
        async with there.client() as late:
            await late.send(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await trio.testing.wait_all_tasks_blocked()
            assert len(there.gateway.server.connections) == 1
            there.shards[0].send(Reply(waiting.id, b'{"records":[]}'))
            await over.wait()


async def test_what_is_not_over_in_time_is_drained() -> None:
    async with stage(parks, drain_timeout_ms=100) as there, there.client() as client:
        over = trio.Event()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process, "MAX_WAIT_MS", 0)
            async with trio.open_nursery() as nursery:
                answers = []

                async def ask() -> None:
                    answers.append(await client.ask("POST", "/v0/topics/a/diff", BODY))

                nursery.start_soon(ask)
                await until(lambda: any(each.op == "diff" for each in there.shards[0].requests))
                there.nursery.start_soon(retire, there, over)
                await over.wait()
        assert [(answer.status, answer.code) for answer in answers] == [(503, "shutting_down")]


async def test_a_stop_while_it_retires_drains_at_once() -> None:
    async with stage(parks) as there, there.client() as client:
        async with trio.open_nursery() as nursery:
            over, _ = await retire_while_one_waits(there, client.ask, nursery)
            await there.gateway.drain()
        await over.wait()


async def test_a_request_that_has_arrived_when_its_idle_connection_is_to_end_is_answered() -> None:
    """On a busy machine, the end may come before the turn in which the request is read."""
    async with stage() as there, there.client() as client, there.client() as idle:
        for each in (client, idle):
            await each.ask("GET", "/v0/health")
        there.gateway.flight.retire()
        there.gateway.server.end_idle(0)
        os.write(client.stream.socket.fileno(), b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        there.gateway.server.sweep(monotonic())
        answer = await client.receive()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await idle.ended()


async def test_a_client_that_has_sent_ahead_reads_its_last_answer() -> None:
    """Closing with unread input would reset the connection."""
    async with stage() as there, there.client() as client:
        there.gateway.flight.retire()
        await client.send(4000 * b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = await client.receive()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.ended()


async def test_connections_of_other_protocols_end_once_they_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "IDLE_S", 0.05)
    monkeypatch.setattr(tcp_server, "SWEEP_S", 0.01)
    async with stage() as there:
        walrus = there.gateway.walrus_server
        with socket.create_server(("127.0.0.1", 0)) as listener:
            there.nursery.start_soon(walrus.run, [listener])
            async with await trio.open_tcp_stream(*listener.getsockname()) as client:
                await until(lambda: len(walrus.connections) == 1)
                over = trio.Event()
                there.nursery.start_soon(retire, there, over)
                assert await client.receive_some() == b""
                await over.wait()

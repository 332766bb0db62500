"""Connections that make room for others when there are too many."""

from __future__ import annotations

import trio
import trio.testing

from proto.ipc.gateway_page import Column, Page, Row
from proto.ipc.message import Parked, Reply
from tests.support.gateway_stage import stage, until

DIFF = (
    b"POST /v0/topics/a/diff HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer one\r\n"
    b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n"
)


async def test_when_connections_run_out_those_that_only_wait_make_room() -> None:
    async with stage(max_connections=8) as there:
        async with trio.open_nursery() as nursery:
            idle = [await trio.open_tcp_stream(*there.address) for _ in range(30)]
            for stream in idle:
                nursery.start_soon(stream.send_all, b"GET /v0/health HTTP/1.1\r\nHo")
        async with there.client() as client:
            assert (await client.ask("GET", "/v0/health")).status == 200
            assert len(there.gateway.server.connections) <= 8
        for stream in idle:
            await stream.aclose()


async def test_a_full_gateway_makes_room_if_no_other_takes_the_connection() -> None:
    page = Page(3)
    Row(page.descriptor, 3, 1).put(Column.ACCEPTING, 1)  # it hangs
    try:
        async with stage(max_connections=2, page=page) as there, there.client(), there.client():
            await until(lambda: len(there.gateway.server.connections) == 2)
            async with there.client() as client:
                assert (await client.ask("GET", "/v0/health")).status == 200
    finally:
        page.close()


async def test_requests_at_work_are_never_ended_for_newcomers() -> None:
    parks = stage(lambda request: [Parked(request.id)], max_connections=2)
    async with parks as there, there.client() as one, there.client() as two:
        for client in (one, two):
            await client.send(DIFF + b"{}")
        await until(lambda: len(there.shards[0].requests) == 2)
        async with there.client() as late:
            await late.send(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for request in there.shards[0].requests:
                there.shards[0].send(Reply(request.id, b"{}"))
            for client in (one, two, late):
                assert (await client.receive()).status == 200

"""Claims about the request log: one line for each request, without secrets."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from structlog.testing import capture_logs

from gateway.observe.request_log import RequestLog
from proto.ipc.message import Message, Parked, Request
from proto.process import trace
from tests.behaviour.gateway.test_streamed_answers import PIECES, play
from tests.support.gateway_stage import Stage, key, stage, until

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PATIENT = b'{"wait_ms":20000}'


@asynccontextmanager
async def logged(**options: Any) -> AsyncIterator[tuple[Stage, list[Any]]]:
    with capture_logs() as lines:
        async with stage(**options) as there:
            there.gateway.api.outcomes.observers.append(RequestLog())
            yield there, lines


def of(lines: list[Any], event: str = "request") -> list[Any]:
    return [line for line in lines if line["event"] == event]


async def test_a_request_is_a_line_without_names_payloads_or_secrets() -> None:
    async with logged(keys=[key("secret")]) as (there, lines), there.client() as client:
        bearer = {"Authorization": "Bearer secret"}
        answer = await client.ask("POST", "/v0/topics/my-name?token=secret", b'{"records":[]}', bearer)
        (line,) = of(lines)
        assert (line["method"], line["path"], line["status"]) == ("POST", "/v0/topics/{topic}", 200)
        assert (line["received_bytes"], line["sent_bytes"]) == (14, len(answer.raw))
        assert 0 < line["ms"] < 30_000
        assert line["key"] == hashlib.sha256(b"secret").hexdigest()[:8]
        for hidden in ("my-name", "records", "token", "secret"):
            assert hidden not in str(lines)


async def test_what_is_refused_is_a_line_too() -> None:
    async with logged(keys=[key("k")]) as (there, lines), there.client() as client:
        await client.ask("GET", "/v0/topics/a")
        await client.ask("PROPFIND", "/secret-path")
        assert [(line["method"], line["path"], line["status"]) for line in of(lines)] == [
            ("GET", "/v0/topics/{topic}", 401),
            ("_OTHER", "", 404),
        ]
        assert "key" not in of(lines)[0]
    async with logged() as (there, lines), there.client() as client:
        await client.send(b"no http\r\n\r\n")
        assert (await client.receive()).status == 400
        assert [line["status"] for line in of(lines)] == [400]


async def test_a_client_that_leaves_is_a_499() -> None:
    def script(request: Request) -> list[Message]:
        return [Parked(request.id)]

    async with logged(script=script) as (there, lines):
        async with there.client() as client:
            head = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(PATIENT)
            await client.send(b"POST /v0/topics/a/diff HTTP/1.1\r\n" + head + PATIENT)
            await until(lambda: bool(there.shards[0].requests))
        await until(lambda: bool(of(lines)))
        assert of(lines)[0]["status"] == 499


async def test_a_stream_is_a_line_when_it_opens_and_one_when_it_ends() -> None:
    async with logged() as (there, lines), there.client() as client:
        closed = trio.Event()
        play(there, PIECES, closed)
        await client.send(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await client.receive()
        await closed.wait()
        await until(lambda: bool(of(lines, "stream_ended")))
        (opened,), (ended,) = of(lines), of(lines, "stream_ended")
        assert (opened["stream"], opened["sent_bytes"]) == (True, 0)
        assert (ended["path"], ended["sent_bytes"]) == ("/v0/health", sum(map(len, PIECES)))
        assert ended["ms"] >= opened["ms"]


async def test_a_traceparent_goes_to_the_shard_and_to_no_other_request() -> None:
    async with stage() as there, there.client() as client:
        for sent in (TRACEPARENT, None, "00-broken", None):
            await client.ask("GET", "/v0/topics/a", headers={"traceparent": sent} if sent else {})
        assert [request.traceparent for request in there.shards[0].requests] == [TRACEPARENT, "", "", ""]
        assert trace.current() == ""


async def test_unless_it_is_asked_for_nobody_looks_on() -> None:
    with capture_logs() as lines:
        async with stage() as there, there.client() as client:
            assert there.gateway.api.outcomes.observers == []
            await client.ask("GET", "/v0/topics/a")
        assert of(lines) == []

"""Claims about responses that are sent piece by piece."""

from typing import Any

import trio

from gateway.http.messages import Gone, Response, Write
from tests.support.gateway_stage import Stage, stage, until

PIECES = [b"event: a\n\n", b"x" * 200_000, b"end"]


def play(there: Stage, pieces: list[bytes], closed: trio.Event, *, forever: bool = False) -> None:
    """Make the health operation send pieces, and then last until its client leaves."""

    async def live(write: Write, gone: Gone) -> bool:
        try:
            for piece in pieces:
                await write(piece)
            if forever:
                await gone()
            return not forever
        finally:
            closed.set()

    async def handler(*_: Any) -> Response:
        return Response(200, content_type=b"text/event-stream", live=live)

    there.gateway.api.forwarding.handlers["health"] = handler


def unchunked(raw: bytes) -> bytes:
    body = b""
    while True:
        size, _, raw = raw.partition(b"\r\n")
        if not int(size, 16):
            assert raw == b"\r\n"
            return body
        body += raw[: int(size, 16)]
        assert raw[int(size, 16) :][:2] == b"\r\n"
        raw = raw[int(size, 16) + 2 :]


async def read_to_end(stream: trio.SocketStream) -> tuple[bytes, bytes]:
    head, _, body = b"".join([bytes(piece) async for piece in stream]).partition(b"\r\n\r\n")
    return head, body


async def test_http_1_1_streams_are_chunked() -> None:
    async with stage() as there, there.client() as client:
        closed = trio.Event()
        play(there, PIECES, closed)
        await client.send(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head, body = await read_to_end(client.stream)
        assert b"transfer-encoding: chunked" in head
        assert b"content-length" not in head
        assert unchunked(body) == b"".join(PIECES)
        assert closed.is_set()


async def test_http_1_0_streams_end_with_the_connection() -> None:
    async with stage() as there, there.client() as client:
        play(there, PIECES, trio.Event())
        await client.send(b"GET /v0/health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        head, body = await read_to_end(client.stream)
        assert b"transfer-encoding" not in head
        assert body == b"".join(PIECES)


async def test_a_connection_is_used_again_after_a_stream() -> None:
    async with stage() as there, there.client() as client:
        play(there, [b"a"], trio.Event())
        await client.send(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await client.receive()
        while client.buffer != b"1\r\na\r\n0\r\n\r\n":
            await client._more()
        client.buffer = b""
        assert (await client.ask("GET", "/v0/ready")).status == 200


async def test_a_stream_whose_client_leaves_is_closed() -> None:
    async with stage() as there:
        closed = trio.Event()
        async with there.client() as client:
            play(there, [], closed, forever=True)
            await client.send(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await client.receive()
        await closed.wait()
        await until(lambda: not there.gateway.flight.count)


BROWSER = {"Accept": "text/event-stream"}


async def test_a_stream_that_cannot_be_opened_now_tells_a_browser_to_come_back() -> None:
    """An EventSource never retries after a status other than 200."""
    async with stage() as there:
        there.lose_shard(0)
        async with there.client() as client:
            answer = await client.ask("GET", "/v0/topics/q/work?node=n", headers=BROWSER)
            assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            assert answer.raw.startswith(b'retry: 2000\n\nevent: error\ndata: {"code":503,"error":"')
            assert answer.raw.endswith(b"\n\n")
            answer = await client.ask("GET", "/v0/topics/q/work?node=n", headers={"Accept": "application/json"})
            assert answer.status == 503
            there.gateway.flight.drain()
            for path in ("/v0/topics/q/work?node=n", "/v0/watch/w"):
                async with there.client() as late:
                    answer = await late.ask("GET", path, headers=BROWSER)
                    assert (answer.status, answer.raw.count(b'"code":503')) == (200, 1)
                    assert (answer.headers["retry-after"], b'"retry_after_ms":1000' in answer.raw) == ("2", True)
                for accept in (None, "*/*", "text/*", "application/json", "text/event-stream;q=0, */*"):
                    async with there.client() as late:
                        answer = await late.ask("GET", path, headers={"Accept": accept} if accept else {})
                        assert (answer.status, answer.code) == (503, "shutting_down"), accept
                        assert answer.headers["retry-after"] == "1"

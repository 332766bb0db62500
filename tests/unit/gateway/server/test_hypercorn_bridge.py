"""Claims about the connections that Hypercorn serves: pages, HTTP/2, WebSocket upgrades."""

import math
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.resources import files

import h2.config
import h2.connection
import h2.events
import pytest
import trio.testing

from proto.ipc.message import Message, Parked, Reply, Request
from tests.support.gateway_stage import Script, Stage, echo, stage, until

HTML = files("gateway.server").joinpath("status_page.html").read_text()


@asynccontextmanager
async def prepared(script: Script = echo, **limits: int) -> AsyncIterator[Stage]:
    async with stage(script, **limits) as there:
        await there.gateway.handover.prepare()
        yield there


async def test_the_status_page_is_served_and_then_the_connection_ends() -> None:
    async with prepared() as there, there.client() as client:
        answer = await client.ask("GET", "/")
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.raw.decode() == HTML
        assert await client.ended()


async def test_a_client_that_shuts_down_its_side_gets_the_page_too() -> None:
    async with prepared() as there:
        for _ in range(5):
            async with there.client() as client:
                await client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await client.stream.send_eof()
                assert (await client.receive()).raw.decode() == HTML
                assert await client.ended()
            stream = await trio.open_tcp_stream(*there.address)
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await stream.aclose()  # the client is gone, and no end of file is passed on
        async with there.client() as client:
            await client.ask("GET", "/v0/health")  # so all earlier connections have been accepted
            await until(lambda: len(there.gateway.server.connections) == 1)


@pytest.mark.parametrize("path", ["/", "/docs", "/console"])
async def test_no_page_has_code_in_it_or_may_be_framed(path: str) -> None:
    async with prepared() as there, there.client() as client:
        answer = await client.ask("GET", path)
    page = answer.raw.decode()
    assert not re.search(r"<style|<script(?![^>]* src=)|\son[a-z]+=|\sstyle=|javascript:", page)
    policy = dict(each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    links = re.findall(r'<(?:script|link rel="stylesheet")[^>]* (?:src|href)="([^"]+)"', page)
    async with prepared() as there:
        for link in links:
            async with there.client() as client:
                assert (await client.ask("GET", link)).status == 200, link
    assert links


async def test_every_answer_says_that_its_type_is_right() -> None:
    async with prepared() as there:
        asked = [("GET", path) for path in ("/", "/docs", "/console", "/console/nothing", "/v0/health", "/v0/metrics")]
        asked += [
            ("GET", "/v0/topics/a"),
            ("GET", "/nothing"),
            ("POST", "/"),
            ("PUT", "/v0/topics/a"),
            ("GET", "/v0/ws"),
        ]
        for method, path in asked:
            async with there.client() as client:
                answer = await client.ask(method, path, b"{}" if method != "GET" else None)
                assert answer.headers["x-content-type-options"] == "nosniff", path
            async with there.client() as client:
                http2 = Http2(client.stream)
                await http2.ask(method, path)
                assert http2.headers.count(("x-content-type-options", "nosniff")) == 1, path
        async with there.client() as client:
            await client.send(b"GET / HTTP/1.1\r\nbroken\r\n\r\n")
            assert (await client.receive()).headers["x-content-type-options"] == "nosniff"


async def test_a_page_asked_with_the_wrong_method_is_a_canonical_405() -> None:
    async with prepared() as there, there.client() as client:
        answer = await client.ask("POST", "/", b"{}")
        assert (answer.status, answer.code) == (405, "method_not_allowed")
        assert "get" in answer.headers["allow"]


async def test_a_connection_that_comes_before_the_pages_are_loaded_waits_for_them() -> None:
    async with stage() as there, there.client() as client:
        there.nursery.start_soon(there.gateway.handover.prepare)
        assert (await client.ask("GET", "/")).status == 200


async def test_a_websocket_upgrade_elsewhere_is_a_canonical_404_and_nothing_after_it_is_read() -> None:
    async with prepared() as there, there.client() as client:
        await client.send(
            b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        answer = await client.receive()
        assert (answer.status, answer.code) == (404, "not_found")
        assert await client.ended()


class Http2:
    """A small client with prior knowledge."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.connection.initiate_connection()
        self.headers: list[tuple[str, str]] = []
        """Those of the last answer."""

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        authority: str = "localhost",
        headers: Iterable[tuple[str, str]] = (),
        announced: bool = True,
    ) -> tuple[int, bytes]:
        fields = list(headers)
        if body:
            fields += [("content-type", "application/json")]
            fields += [("content-length", str(len(body)))] if announced else []
        stream_id = await self.begin(method, path, *fields, authority=authority, end=not body)
        return await self.answer(stream_id, body)

    async def begin(
        self, method: str, path: str, *headers: tuple[str, str], authority: str = "localhost", end: bool = False
    ) -> int:
        stream_id = self.connection.get_next_available_stream_id()
        fields = [(":method", method), (":path", path), (":scheme", "http"), (":authority", authority), *headers]
        self.connection.send_headers(stream_id, fields, end_stream=end)
        await self.flush()
        return stream_id

    async def flush(self) -> None:
        await self.stream.send_all(self.connection.data_to_send())

    async def answer(self, stream_id: int, body: bytes = b"") -> tuple[int, bytes]:
        """Send `body`, and receive the response: its status and bytes."""
        status, answer, ended = 0, b"", False
        while not ended:
            while body and (window := self.connection.local_flow_control_window(stream_id)):
                piece = body[: min(window, self.connection.max_outbound_frame_size)]
                body = body[len(piece) :]
                self.connection.send_data(stream_id, piece, end_stream=not body)
            await self.flush()
            for event in self.connection.receive_data(bytes(await self.stream.receive_some(65536))):
                if isinstance(event, h2.events.ResponseReceived):
                    self.headers = list(event.headers)
                    status = int(dict(self.headers)[":status"])
                elif isinstance(event, h2.events.DataReceived):
                    answer += event.data
                    self.connection.acknowledge_received_data(event.flow_controlled_length, stream_id)
                elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                    ended = True
        return status, answer


async def test_http_2_with_prior_knowledge_reaches_the_same_api() -> None:
    async with prepared(max_body_bytes=300_000) as there, there.client() as client:
        http2 = Http2(client.stream)
        assert (await http2.ask("GET", "/v0/ready"))[0] == 200
        body = b'"' + b"x" * 200_000 + b'"'
        assert (await http2.ask("POST", "/v0/topics/a", body))[0] == 200
        assert there.shards[0].requests[0].body == body
        status, answer = await http2.ask("GET", "/nope")
        assert status == 404
        assert b'"not_found"' in answer
        status, answer = await http2.ask("POST", "/v0/topics/a")
        assert status == 400
        assert there.gateway.budget.used == 0


async def test_a_body_over_http_2_needs_no_length() -> None:
    async with prepared(max_body_bytes=300_000) as there, there.client() as client:
        http2 = Http2(client.stream)
        body = b'{"type":"queue"}'
        assert (await http2.ask("PUT", "/v0/topics/a", body, announced=False))[0] == 200
        large = b'"' + b"x" * 200_000 + b'"'
        assert (await http2.ask("POST", "/v0/topics/a", large, announced=False))[0] == 200
        assert (await http2.ask("PUT", "/v0/topics/a"))[0] == 200, "no body at all, and so no Content-Type either"
        assert [request.body for request in there.shards[0].requests] == [body, large, b""]
        status, answer = await http2.ask("POST", "/v0/topics/a", b"x" * 300_001, announced=False)
        assert (status, b"payload_too_large" in answer) == (413, True)
        await until(lambda: there.gateway.budget.used == 0)


async def test_a_body_that_comes_in_pieces_is_read_until_the_stream_ends() -> None:
    async with prepared() as there, there.client() as client:
        http2 = Http2(client.stream)
        stream_id = await http2.begin("POST", "/v0/topics/a", ("content-type", "application/json"))
        for piece in (b"", b"{", b"", b"}"):
            http2.connection.send_data(stream_id, piece)
            await http2.flush()
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert there.shards[0].requests == []
        http2.connection.end_stream(stream_id)
        await http2.flush()
        await until(lambda: [request.body for request in there.shards[0].requests] == [b"{}"])


PING = b"\0\0\x08\x06\0\0\0\0\0" + b"12345678"


async def served(there: Stage) -> None:
    """Check that a new client is admitted and answered."""
    with trio.fail_after(60):
        async with there.client() as client:
            assert (await client.ask("GET", "/v0/health")).status == 200


async def test_http_2_connections_without_streams_make_room() -> None:
    async with prepared(max_connections=4) as there, AsyncExitStack() as opened:
        for _ in range(4):
            client = await opened.enter_async_context(there.client())
            await Http2(client.stream).flush()
            await client.send(PING)
            await client.stream.receive_some(65536)
        assert len(there.gateway.server.connections) == 4
        for _ in range(8):
            await served(there)


async def test_an_open_stream_keeps_its_connection() -> None:
    asked: list[Request] = []

    def script(request: Request) -> list[Message]:
        asked.append(request)
        return [Parked(request.id)]

    async with prepared(script, max_connections=2) as there, there.client() as client, there.client() as idle:
        busy = Http2(client.stream)
        stream_id = await busy.begin("GET", "/v0/topics/a", end=True)
        await until(lambda: len(asked) == 1)
        await Http2(idle.stream).flush()
        for _ in range(4):
            await served(there)
        there.shards[0].send(Reply(asked[0].id, b'{"late":true}'))
        status, answer = await busy.answer(stream_id)
        assert (status, answer[:12]) == (200, b'{"late":true')


@pytest.mark.slow
async def test_a_stream_whose_body_never_comes_makes_room() -> None:
    async with prepared(max_connections=2) as there, AsyncExitStack() as opened:
        for _ in range(2):
            client = await opened.enter_async_context(there.client())
            await Http2(client.stream).begin("POST", "/v0/topics/a", ("content-type", "application/json"))
        await until(lambda: all(c.starved_since < math.inf for c in there.gateway.server.connections))
        await served(there)


async def test_an_idle_http_2_connection_ends_like_any_other() -> None:
    async with prepared(idle_timeout_ms=100) as there, there.client() as client:
        http2 = Http2(client.stream)
        assert (await http2.ask("GET", "/v0/health"))[0] == 200
        with trio.fail_after(60):
            while await client.stream.receive_some(65536):
                pass

"""Claims about what Hypercorn serves: pages, HTTP/2, WebSocket upgrades."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import h2.config
import h2.connection
import h2.events
import trio
from gateway_stage import Stage, stage, until

from gateway.page import HTML


@asynccontextmanager
async def prepared(**limits: int) -> AsyncIterator[Stage]:
    async with stage(**limits) as there:
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
                await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
                await client.stream.send_eof()
                assert (await client.receive()).raw.decode() == HTML
                assert await client.ended()
            stream = await trio.open_tcp_stream(*there.address)
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            await stream.aclose()  # gone for good, and nobody tells
        async with there.client() as client:
            await client.ask("GET", "/v0/health")  # whoever came before has been accepted
            await until(lambda: len(there.gateway.server.connections) == 1)


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
            b"GET /v0/health HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            b"GET /v0/health HTTP/1.1\r\nHost: h\r\n\r\n"
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

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        stream_id = self.connection.get_next_available_stream_id()
        headers = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "h")]
        if body:
            headers += [("content-type", "application/json"), ("content-length", str(len(body)))]
        self.connection.send_headers(stream_id, headers, end_stream=not body)
        status, answer, ended = 0, b"", False
        while not ended:
            while body and (window := self.connection.local_flow_control_window(stream_id)):
                piece = body[: min(window, self.connection.max_outbound_frame_size)]
                body = body[len(piece) :]
                self.connection.send_data(stream_id, piece, end_stream=not body)
            await self.stream.send_all(self.connection.data_to_send())
            for event in self.connection.receive_data(bytes(await self.stream.receive_some(65536))):
                if isinstance(event, h2.events.ResponseReceived):
                    status = int(dict(event.headers)[":status"])
                elif isinstance(event, h2.events.DataReceived):
                    answer += event.data
                    self.connection.acknowledge_received_data(event.flow_controlled_length, stream_id)
                elif isinstance(event, h2.events.StreamEnded):
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
        assert there.gateway.server._front.budget.used == 0

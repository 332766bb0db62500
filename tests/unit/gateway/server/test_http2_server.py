"""Claims about HTTP/2 connections: streams that are not read, bodies that wait, frames that never end, draining."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress

import h2.events
import pytest
import structlog
import trio
import trio.testing
from hpack import Encoder

from gateway.server import http2_server
from proto.ipc.message import Message, Reply, Request
from proto.model.limits import MAX_HEADER_COUNT
from tests.support import http2 as raw
from tests.support.gateway_stage import Script, Stage, echo, stage, until
from tests.unit.gateway.server.test_hypercorn_bridge import HTML, Http2

LARGE = 300_000


def large(request: Request) -> list[Message]:
    return [Reply(request.id, b'{"a":"%b"}' % (b"y" * LARGE))]


def used(there: Stage) -> int:
    return there.gateway.budget.used


class Client(Http2):
    async def events(self) -> AsyncIterator[h2.events.Event]:
        """What comes, without making room for more of it. Ends with the connection."""
        while data := await self.stream.receive_some(1 << 16):
            for event in self.connection.receive_data(bytes(data)):
                yield event
            await self.flush()

    async def first(self, kind: type[h2.events.Event], stream_id: int | None = None) -> h2.events.Event:
        async with aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, kind) and stream_id in (None, getattr(event, "stream_id", None)):
                    return event
        raise AssertionError(f"the connection ended without {kind}")


@asynccontextmanager
async def client(script: Script = echo, **limits: int) -> AsyncIterator[tuple[Stage, Client]]:
    async with stage(script, **limits) as there, there.client() as connected:
        yield there, Client(connected.stream)


async def test_an_answer_that_is_not_read_ends_and_returns_its_bytes_and_other_streams_go_on() -> None:
    async with client(large, body_timeout_ms=1000) as (there, http2):
        first = await http2.begin("GET", "/v0/topics/a", end=True)
        window = 0
        async with aclosing(http2.events()) as events:
            async for event in events:
                window += len(event.data or b"") if isinstance(event, h2.events.DataReceived) else 0
                if window == 65535:
                    break
        assert used(there) >= LARGE, "what is unsent is counted"
        http2.connection.increment_flow_control_window(65535)
        assert (await http2.ask("GET", "/v0/health"))[0] == 200
        reset = await http2.first(h2.events.StreamReset, first)
        assert isinstance(reset, h2.events.StreamReset)
        await until(lambda: used(there) == 0)
        assert there.gateway.flight.count == 0
        assert (await http2.ask("GET", "/v0/health"))[0] == 200


async def frames(stream: trio.SocketStream) -> AsyncIterator[tuple[int, int, int, bytes]]:
    """The frames that come, whatever they say: kind, flags, stream, payload."""
    buffer = b""
    while data := await stream.receive_some(1 << 16):
        buffer += data
        while len(buffer) >= 9 and len(buffer) >= (end := 9 + int.from_bytes(buffer[:3], "big")):
            yield buffer[3], buffer[4], int.from_bytes(buffer[5:9], "big"), buffer[9:end]
            buffer = buffer[end:]


async def test_an_answer_that_is_read_a_little_at_a_time_ends_too() -> None:
    async with client(large, body_timeout_ms=200, min_download_rate=1 << 20) as (_, http2):
        await http2.stream.send_all(raw.begun(window=1) + raw.request(1, "GET", "/v0/topics/a"))
        pieces = 0
        async with aclosing(frames(http2.stream)) as found:
            with trio.fail_after(60):
                async for kind, _, _, payload in found:
                    if kind == raw.RST_STREAM:
                        break
                    if kind == raw.DATA:
                        assert len(payload) == 1
                        pieces += 1
                        await trio.sleep(0.02)
                        await http2.stream.send_all(raw.frame(raw.WINDOW_UPDATE, b"\0\0\0\1", 0, 1))
                else:
                    raise AssertionError("the connection ended")
        assert pieces > 2, "no pause was too long"


async def test_an_answer_waits_for_room_and_comes_whole() -> None:
    async with client(large) as (there, http2):
        status, body = await http2.ask("GET", "/v0/topics/a")
        assert (status, body.count(b"y")) == (200, LARGE)
        await until(lambda: used(there) == 0)


async def test_pages_and_their_refusals_come_over_http_2() -> None:
    async with client() as (_, http2):
        status, body = await http2.ask("GET", "/")
        assert (status, body.decode()) == (200, HTML)
        status, body = await http2.ask("POST", "/", b"{}")
        assert (status, b"method_not_allowed" in body) == (405, True)


async def test_a_head_is_bounded_and_its_path_is_one() -> None:
    async with client() as (_, http2):
        many = [(f"x-{each}", "1") for each in range(MAX_HEADER_COUNT)]
        assert (await http2.ask("GET", "/v0/health", headers=many))[0] == 431
        assert (await http2.ask("GET", "*"))[0] == 400
        assert (await http2.ask("GET", "/v0/health#x"))[0] == 400
        assert (await http2.ask("GET", "/v0/health"))[0] == 200


@pytest.mark.parametrize("kind", raw.FLOODS)
async def test_a_flood_ends_with_goaway(kind: str) -> None:
    async with client() as (there, http2):
        codes: list[int] = []

        async def look() -> None:
            async with aclosing(frames(http2.stream)) as found:
                async for sort, _, _, payload in found:
                    if sort == raw.GOAWAY:
                        codes.append(int.from_bytes(payload[4:8], "big"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await http2.stream.send_all(raw.begun())
            with suppress(trio.BrokenResourceError):
                for round_ in range(100):
                    await http2.stream.send_all(raw.FLOODS[kind](round_))
        # h2 has a bound of its own on the frames of one head.
        assert codes == [1 if kind == "continuation" else 11]
        await http2.stream.aclose()
        await until(lambda: not there.gateway.server.connections and there.gateway.flight.count == 0)


async def test_settings_of_a_client_are_not_kept_and_no_table_grows() -> None:
    async with client() as (there, http2):
        settings = b"".join(raw.setting(0x1000 + each, 1) for each in range(40)) + raw.setting(1, 1 << 30)
        await http2.stream.send_all(http2.connection.data_to_send() + raw.frame(raw.SETTINGS, settings))
        await http2.first(h2.events.SettingsAcknowledged)
        server = await there.gateway.handover.http2()
        (connection,) = server._connections
        await until(lambda: connection._h2.encoder.header_table_size == 4096)
        assert 0x1000 not in connection._h2.remote_settings
        assert (await http2.ask("GET", "/v0/health"))[0] == 200


async def test_streams_count_like_connections() -> None:
    waiting: list[Request] = []

    def script(request: Request) -> list[Message]:
        waiting.append(request)
        return []

    async with client(script, max_connections=3) as (there, http2):
        opened = [await http2.begin("GET", "/v0/topics/a", end=True) for _ in range(4)]
        reset = await http2.first(h2.events.StreamReset, opened[3])
        assert isinstance(reset, h2.events.StreamReset)
        assert reset.error_code == 7
        await until(lambda: len(waiting) == 3)
        for each in waiting:
            there.shards[0].send(Reply(each.id, b"{}"))
        await until(lambda: there.gateway.flight.count == 0)
        assert (await http2.ask("GET", "/v0/health"))[0] == 200


async def test_a_head_that_never_ends_ends_its_connection() -> None:
    async with client(header_timeout_ms=100) as (there, http2):
        await http2.flush()
        await http2.stream.send_all(raw.frame(raw.HEADERS, b"\x82", 0, 1))
        await http2.first(h2.events.ConnectionTerminated)
        await until(lambda: not there.gateway.server.connections)


@pytest.mark.parametrize(
    "head",
    [
        [("AUTHORIZATION", "Bearer s3cret")],
        [("authorization: Bearer s3cret", "x")],
        [("authorization", "Bearer s3cret\0")],
        [("authorization", " s3cret")],
        [(":s3cret", "x")],
        [("content-length", "s3cret")],
        [("content-length", "1"), ("content-length", "2s3cret")],
        [("te", "s3cret")],
        [("connection", "s3cret")],
    ],
)
async def test_a_broken_head_leaves_nothing_of_it_in_the_log(head: list[tuple[str, str]]) -> None:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", "/v0/health"), (":authority", "localhost"), *head]
    block = bytes(Encoder().encode(fields, huffman=False))
    with structlog.testing.capture_logs() as lines:
        async with client() as (_, http2):
            await http2.flush()
            await http2.stream.send_all(raw.frame(raw.HEADERS, block, raw.END_STREAM | raw.END_HEADERS, 1))
            await http2.stream.send_all(raw.frame(raw.DATA, b"s3cret", raw.END_STREAM, 1))
            await http2.first(h2.events.ConnectionTerminated)
    assert "s3cret" not in str(lines)


async def test_a_drained_server_finishes_its_streams_refuses_new_ones_and_says_goodbye(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2_server, "LINGER_PAUSE_S", 0.05)
    waiting: list[Request] = []

    def script(request: Request) -> list[Message]:
        waiting.append(request)
        return []

    async with client(script) as (there, http2), there.client() as idle:
        other = Client(idle.stream)
        assert (await other.ask("GET", "/v0/health"))[0] == 200
        number = await http2.begin("GET", "/v0/topics/a", end=True)
        await until(lambda: len(waiting) == 1)
        await there.gateway.handover.drain()
        await other.first(h2.events.ConnectionTerminated)
        refused = await http2.begin("GET", "/v0/health", end=True)
        await http2.first(h2.events.StreamReset, refused)
        there.shards[0].send(Reply(waiting[0].id, b'{"late":true}'))
        assert (await http2.answer(number))[0] == 200
        assert await http2.stream.receive_some(1 << 16) is not None
        await until(lambda: not there.gateway.server.connections)


async def test_a_client_that_leaves_gets_the_answers_of_its_requests_before_its_connection_ends() -> None:
    waiting: list[Request] = []

    def script(request: Request) -> list[Message]:
        waiting.append(request)
        return []

    async with client(script) as (there, http2):
        number = await http2.begin("GET", "/v0/topics/a", end=True)
        await until(lambda: len(waiting) == 1)
        ping = raw.frame(raw.PING, b"12345678")
        await http2.stream.send_all(raw.frame(raw.GOAWAY, bytes(8)) + ping)
        await http2.first(h2.events.PingAckReceived)
        there.shards[0].send(Reply(waiting[0].id, b'{"a":"%b"}' % (b"y" * LARGE)))
        status, body = await http2.answer(number)
        assert (status, body.count(b"y")) == (200, LARGE)
        while await http2.stream.receive_some(1 << 16):
            pass
        await http2.stream.aclose()
        await until(lambda: not there.gateway.server.connections and there.gateway.flight.count == 0)


@pytest.mark.parametrize("code", [0, 2])
async def test_a_connection_ends_when_its_client_leaves_without_a_stream_or_by_an_error(code: int) -> None:
    waiting: list[Request] = []

    def script(request: Request) -> list[Message]:
        waiting.append(request)
        return []

    async with client(script) as (there, http2):
        assert (await http2.ask("GET", "/v0/health"))[0] == 200
        if code:
            await http2.begin("GET", "/v0/topics/a", end=True)
            await until(lambda: len(waiting) == 1)
        await http2.stream.send_all(raw.frame(raw.GOAWAY, bytes(7) + bytes([code])))
        for request in waiting:
            there.shards[0].send(Reply(request.id, b'{"late":true}'))
        while await http2.stream.receive_some(1 << 16):
            pass
        await http2.stream.aclose()
        await until(lambda: not there.gateway.server.connections and there.gateway.flight.count == 0)


async def test_a_stream_that_comes_as_its_connection_ends_is_left_unserved_and_resets_nothing() -> None:
    async with client() as (there, http2):
        assert (await http2.ask("GET", "/v0/health"))[0] == 200
        await until(lambda: there.gateway.flight.count == 0)
        there.gateway.handover.retire()
        late = await http2.begin("GET", "/v0/health", end=True)
        said = await http2.first(h2.events.ConnectionTerminated)
        assert isinstance(said, h2.events.ConnectionTerminated)
        assert (said.last_stream_id or 0) < late, "its client may send it again"
        assert await http2.stream.receive_some(1 << 16) == b""


async def test_a_stream_that_has_arrived_when_the_end_of_its_connection_is_decided_is_left_unserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If it were opened, it would be lost, and its client would be told that it was served."""
    received = http2_server.Http2Connection._receive
    over = trio.Event()

    async def receive(connection: http2_server.Http2Connection) -> bytes:
        data = await received(connection)
        if over.is_set():
            there.gateway.handover.retire()
        return data

    monkeypatch.setattr(http2_server.Http2Connection, "_receive", receive)
    async with client() as (there, http2):
        assert (await http2.ask("GET", "/v0/health"))[0] == 200
        await until(lambda: there.gateway.flight.count == 0)
        over.set()
        late = await http2.begin("GET", "/v0/topics/a", end=True)
        said = await http2.first(h2.events.ConnectionTerminated)
        assert isinstance(said, h2.events.ConnectionTerminated)
        assert (said.last_stream_id or 0) < late, "its client may send it again"
        assert there.shards[0].requests == []


async def test_after_a_flood_the_next_connection_of_its_address_waits_and_others_over_http_1_do_not() -> None:
    async with stage(echo) as there:
        for _ in range(3):
            async with there.client() as flooding:
                await flooding.stream.send_all(raw.begun() + raw.frame(raw.PING, b"12345678") * 400)
                with suppress(trio.BrokenResourceError):
                    async for _ in frames(flooding.stream):
                        pass
        answered: list[str] = []

        async def over_http2() -> None:
            assert (await Http2(second.stream).ask("GET", "/v0/health"))[0] == 200
            answered.append("2")

        async with there.client() as first, there.client() as second, trio.open_nursery() as nursery:
            nursery.start_soon(over_http2)
            for _ in range(20):
                assert (await first.ask("GET", "/v0/health")).status == 200
            answered.append("1.1")
        assert answered == ["1.1", "2"]

"""Claims about the WebSocket transport, over real sockets: upgrade, frames, closes, slots."""

from __future__ import annotations

import json
import socket as sockets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.frame_protocol import CloseReason

from gateway.admission.body_budget import Budget
from gateway.http.websocket import IDLE_FRAMES, WebSocket, accept
from proto.model.errors import TopicsError
from proto.model.keys import Scope
from proto.model.limits import Limits
from proto.process.faults import faults
from tests.support.gateway_stage import Answer, Stage, key, stage, until
from tests.support.harness import Harness
from tests.support.real_shard import start_real
from tests.support.websocket import UPGRADE


class Socket:
    """wsproto's client side."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.connection = WSConnection(ConnectionType.CLIENT)
        self.events: list[Event] = []
        self.answers_pings = True

    async def open(self, **headers: str) -> Event:
        extra = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.say(Request(host="localhost", target="/v0/ws", extra_headers=extra))
        return await self.next()

    async def say(self, event: Event) -> None:
        await self.stream.send_all(self.connection.send(event))

    async def next(self) -> Event:
        while not self.events:
            data = bytes(await self.stream.receive_some(1 << 16))
            self.connection.receive_data(data or None)
            self.events = list(self.connection.events())
        event = self.events.pop(0)
        if isinstance(event, Ping) and self.answers_pings:
            await self.say(event.response())
        return event

    async def command(self, op: str, **fields: Any) -> None:
        await self.say(TextMessage(json.dumps({"op": op, **fields})))

    async def answer(self) -> Any:
        text = ""
        while True:
            event = await self.next()
            if isinstance(event, TextMessage):
                text += event.data
                if event.message_finished:
                    return json.loads(text)
            else:
                assert isinstance(event, Ping), event

    async def closed(self) -> CloseConnection:
        while not isinstance(event := await self.next(), CloseConnection):
            pass
        return event


@asynccontextmanager
async def staged(**limits: Any) -> AsyncIterator[Stage]:
    async with stage(**limits) as there:
        await start_real(there, Harness())
        yield there


@asynccontextmanager
async def connected(there: Stage, **headers: str) -> AsyncIterator[Socket]:
    stream = await trio.open_tcp_stream(*there.address)
    async with stream:
        socket = Socket(stream)
        assert isinstance(await socket.open(**headers), AcceptConnection)
        yield socket


async def all_free(there: Stage) -> None:
    await until(lambda: there.gateway.api.entry.streams.open == 0 and there.gateway.flight.count == 0)


async def test_commands_are_answered() -> None:
    async with staged() as there, connected(there) as socket:
        await socket.command("ping", request_id="x")
        assert await socket.answer() == {"op": "pong", "request_id": "x"}
        await socket.command("publish", topic="a", records=[{"data": "x" * 70_000}, {"data": 2}])
        assert (await socket.answer())["last_seq"] == 2
        await socket.command("subscribe", topic="a")
        assert (await socket.answer())["op"] == "subscribed"
        record = await socket.answer()
        assert [each["data"] for each in record["records"]] == ["x" * 70_000, 2]


async def test_a_command_may_come_in_fragments_with_control_frames_between() -> None:
    async with staged() as there, connected(there) as socket:
        text = json.dumps({"op": "ping", "request_id": "in pieces"})
        for part in text[:-1]:
            await socket.say(TextMessage(part, message_finished=False))
        await socket.say(Ping(b"there?"))
        pong = await socket.next()
        assert isinstance(pong, Pong)
        assert pong.payload == b"there?"
        await socket.say(TextMessage(text[-1:]))
        assert (await socket.answer())["request_id"] == "in pieces"


async def test_what_is_sent_with_the_upgrade_is_not_lost() -> None:
    async with staged() as there:
        stream = await trio.open_tcp_stream(*there.address)
        async with stream:
            socket = Socket(stream)
            upgrade = socket.connection.send(Request(host="localhost", target="/v0/ws"))
            mask = bytes(4)
            text = b'{"op":"ping"}'
            await stream.send_all(upgrade + bytes([0x81, 0x80 | len(text)]) + mask + text)
            assert isinstance(await socket.next(), AcceptConnection)
            assert await socket.answer() == {"op": "pong"}


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (BytesMessage(b"{}"), CloseReason.UNSUPPORTED_DATA),
        (TextMessage("x" * 2000), CloseReason.MESSAGE_TOO_BIG),
        (CloseConnection(1000, "bye"), CloseReason.NORMAL_CLOSURE),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_the_socket_ends_with_a_code_that_says_why(event: Event, code: CloseReason) -> None:
    async with staged(max_body_bytes=1024) as there:
        async with connected(there) as socket:
            await socket.say(event)
            assert (await socket.closed()).code == code
        await all_free(there)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x81\x82\0\0\0\0\xff\xff", CloseReason.INVALID_FRAME_PAYLOAD_DATA),
        (b"\x81\x02{}", CloseReason.PROTOCOL_ERROR),  # not masked
        (b"\x83\x80\0\0\0\0", CloseReason.PROTOCOL_ERROR),  # no such opcode
        (b"\x89\xfe\0\xff\0\0\0\0", CloseReason.PROTOCOL_ERROR),  # a ping that long
    ],
)
async def test_bytes_that_are_no_frames_end_the_socket(frame: bytes, code: CloseReason) -> None:
    async with staged() as there:
        async with connected(there) as socket:
            await socket.stream.send_all(frame)
            assert (await socket.closed()).code == code
        await all_free(there)


async def test_a_message_is_counted_in_bytes() -> None:
    async with staged(max_body_bytes=1024) as there, connected(there) as socket:
        await socket.command("ping", request_id="x" * 900)
        assert (await socket.answer())["op"] == "pong"
        await socket.say(TextMessage('{"op":"ping","request_id":"' + "é" * 600 + '"}'))
        assert (await socket.closed()).code == CloseReason.MESSAGE_TOO_BIG


NOTHING = {
    "pongs": b"\x8a\x80\0\0\0\0",
    "pings": b"\x89\x80\0\0\0\0",
    "empty fragments": b"\0\x80\0\0\0\0",
}


@pytest.mark.parametrize("flood", NOTHING)
async def test_a_flood_of_frames_that_bring_nothing_ends_the_socket(flood: str) -> None:
    async with staged() as there:
        async with connected(there) as socket:
            if flood == "empty fragments":
                await socket.stream.send_all(b"\x01\x80\0\0\0\0")
            await socket.stream.send_all(NOTHING[flood] * (2 * IDLE_FRAMES))
            with trio.fail_after(60):
                assert (await socket.closed()).code == CloseReason.POLICY_VIOLATION
        await all_free(there)


async def test_a_client_that_answers_and_asks_now_and_then_is_left_alone() -> None:
    async with staged() as there, connected(there) as socket:
        for _ in range(IDLE_FRAMES // 2):
            await socket.say(Pong())
            await socket.say(Ping())
            assert isinstance(await socket.next(), Pong)
        await socket.command("ping")
        assert await socket.answer() == {"op": "pong"}


class Rush:
    """A channel that delivers many messages at once."""

    def __init__(self, messages: int) -> None:
        self._bytes = b"\x81\x82\0\0\0\0{}" * messages

    async def receive_some(self) -> bytes:
        await trio.lowlevel.checkpoint()
        data, self._bytes = self._bytes, b""
        return data

    async def send_some(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()


async def test_others_have_their_turn_while_a_rush_of_frames_is_looked_at() -> None:
    limits = Limits()
    connection = WSConnection(ConnectionType.SERVER)
    client = WSConnection(ConnectionType.CLIENT)
    connection.receive_data(client.send(Request(host="test", target="/v0/ws")))
    list(connection.events())
    connection.send(AcceptConnection())
    socket = WebSocket(connection, Rush(8192), key("x"), limits, Budget())
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(8192):
            assert await socket.receive() in (b"{}", "{}")
        nursery.cancel_scope.cancel()
    assert turns >= 50


async def test_a_silent_client_is_asked_once_and_then_left() -> None:
    async with staged(websocket_ping_ms=100) as there, connected(there) as socket:
        for _ in range(3):
            assert isinstance(await socket.next(), Ping)  # and answers
        socket.answers_pings = False
        assert isinstance(await socket.next(), Ping)
        assert await socket.stream.receive_some(100) == b""
        await all_free(there)


async def test_a_ping_with_the_close_behind_it_in_one_piece_gets_the_close() -> None:
    async with staged() as there, connected(there) as socket:
        await socket.stream.send_all(
            socket.connection.send(Ping()) + socket.connection.send(CloseConnection(CloseReason.NORMAL_CLOSURE))
        )
        assert (await socket.closed()).code == CloseReason.NORMAL_CLOSURE
        await all_free(there)


async def test_a_client_that_does_not_answer_the_close_is_asked_for_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.websocket.CLOSE_S", 0.3)
    failed = faults.counts["connection"]
    async with staged(websocket_ping_ms=100) as there, connected(there) as socket:
        await socket.say(BytesMessage(b"x"))
        assert (await socket.closed()).code == CloseReason.UNSUPPORTED_DATA
        assert await socket.stream.receive_some(100) == b""
        await all_free(there)
    assert faults.counts["connection"] == failed


async def test_a_large_message_that_comes_too_slowly_gives_its_place_back() -> None:
    async with staged(body_timeout_ms=200) as there:
        async with connected(there) as socket:
            await socket.say(TextMessage("x" * 70_000, message_finished=False))
            assert (await socket.closed()).code == CloseReason.POLICY_VIOLATION
        await all_free(there)
        assert there.gateway.budget.used == 0


@pytest.mark.parametrize("how", ["reset", "end", "close"])
async def test_a_slot_is_held_until_the_socket_ends_however_it_does(how: str) -> None:
    async with staged(max_sse_connections=1) as there:
        async with connected(there) as socket:
            async with there.client() as client:
                answer = await client.ask("GET", "/v0/ws", headers=UPGRADE)
                assert (answer.status, answer.code) == (429, "throttled")
                assert answer.json["error"]["detail"] == {"limit": "max_sse_connections", "max": 1}
            if how == "reset":
                linger = sockets.SO_LINGER
                socket.stream.socket.setsockopt(sockets.SOL_SOCKET, linger, b"\1\0\0\0\0\0\0\0")
            elif how == "close":
                await socket.say(CloseConnection(1000))
        await all_free(there)
        async with connected(there):
            pass
        await all_free(there)


async def test_a_drain_says_so_and_closes() -> None:
    async with staged() as there, connected(there) as socket:
        await socket.command("ping")
        await socket.answer()
        there.nursery.start_soon(there.gateway.drain)
        assert (await socket.answer())["code"] == "shutting_down"
        assert (await socket.closed()).code == CloseReason.SERVICE_RESTART


async def _refusal(there: Stage, headers: dict[str, str], method: str = "GET", body: bytes | None = None) -> Answer:
    async with there.client() as client:
        return await client.ask(method, "/v0/ws", body, headers)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "invalid_request"),
        ({"Upgrade": "websocket"}, "invalid_request"),  # without Connection, Upgrade offers nothing
        ({"Connection": "Upgrade", "Upgrade": "h2c"}, "invalid_request"),
        (UPGRADE | {"Sec-WebSocket-Version": "8"}, "invalid_request"),
        ({name: value for name, value in UPGRADE.items() if name != "Sec-WebSocket-Key"}, "invalid_request"),
    ],
)
async def test_what_is_no_upgrade_gets_an_answer(headers: dict[str, str], code: str) -> None:
    async with staged() as there:
        answer = await _refusal(there, headers)
        assert (answer.status, answer.code) == (400, code)
        await all_free(there)


async def test_an_upgrade_with_a_body_is_refused() -> None:
    async with staged() as there:
        assert (await _refusal(there, UPGRADE, body=b"{}")).status == 400


@pytest.mark.parametrize(
    ("origin", "status"), [("http://localhost", 101), ("https://evil.example", 403), ("null", 403)]
)
async def test_without_keys_a_browser_must_be_of_the_same_origin(origin: str, status: int) -> None:
    async with staged() as there:
        assert (await _refusal(there, UPGRADE | {"Origin": origin})).status == status


async def test_the_key_comes_in_the_header_and_with_it_any_origin_may() -> None:
    async with stage(keys=[key("secret", Scope.READ)]) as there:
        await start_real(there, Harness())
        wrong = UPGRADE | {"Authorization": "Bearer wrong"}
        assert (await _refusal(there, wrong)).status == 401
        async with there.client() as client:
            assert (await client.ask("GET", "/v0/ws?token=secret", headers=UPGRADE)).status == 401
        async with connected(there, Authorization="Bearer secret", Origin="https://app.example") as socket:
            await socket.command("publish", topic="a", records=[{"data": 1}])
            assert (await socket.answer())["code"] == "forbidden"


async def test_a_socket_may_be_refused_with_an_ordinary_answer() -> None:
    async with stage(keys=[key("secret")]) as there:
        stream = await trio.open_tcp_stream(*there.address)
        async with stream:
            refused = await Socket(stream).open(Authorization="Bearer wrong")
            assert isinstance(refused, RejectConnection)
            assert refused.status_code == 401


def test_a_host_that_is_no_text_is_no_upgrade() -> None:
    headers = {
        b"host": b"loc\xc2alhost",
        b"connection": b"Upgrade",
        b"upgrade": b"websocket",
        b"sec-websocket-version": b"13",
        b"sec-websocket-key": b"AAAAAAAAAAAAAAAAAAAAAA==",
    }
    with pytest.raises(TopicsError, match="not a WebSocket upgrade"):
        accept("/v0/ws", headers)

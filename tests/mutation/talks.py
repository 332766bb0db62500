"""Whole connections that are no HTTP: WebSockets, Walrus and Rog, each with mutated commands and mutated bytes."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from random import Random
from typing import Any

import trio

from gateway.process import Gateway
from gateway.protocols.tcp_server import Session, TcpConnection
from proto.wire.byte_parser import MAX_SKIP_BYTES
from proto.wire.walrus import MAX_FRAME_BYTES
from tests.mutation import values
from tests.mutation.examples import COMMANDS, EXAMPLES, LOG, ROG, WALRUS, Example
from tests.mutation.judge import problem_of_error, strict_json
from tests.mutation.scene import PATIENCE_S, TOGETHER, Scene
from tests.support.gateway_stage import Client

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_STREAMED = frozenset(("record", "tombstone", "caught_up", "topic_deleted"))
_ANSWERS = frozenset(("subscribed", "unsubscribed", "ack", "pong", "authenticated", "error"))


def frame(content: bytes, code: int = TEXT, *, last: bool = True, masked: bool = True) -> bytes:
    """A frame of a client. Its mask is zero, so the content is readable."""
    first, mask = code | 0x80 * last, 0x80 * masked
    size = len(content)
    if size < 126:
        head = struct.pack("!BB", first, mask | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, mask | 126, size)
    else:
        head = struct.pack("!BBQ", first, mask | 127, size)
    return head + b"\0\0\0\0" * masked + content


class Frames:
    """The frames that a client receives."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def _take(self, size: int) -> bytes:
        client = self._client
        while len(client.buffer) < size:
            data = bytes(await client.stream.receive_some(65536))
            if not data:
                raise EOFError
            client.buffer += data
        taken, client.buffer = client.buffer[:size], client.buffer[size:]
        return taken

    async def next(self) -> tuple[int, bytes]:
        """The next frame's code and content. Raises EOFError at the end of the connection."""
        first, size = await self._take(2)
        if size == 126:
            (size,) = struct.unpack("!H", await self._take(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self._take(8))
        assert first & 0xF0 == 0x80, "a frame of the service is whole"
        return first & 0x0F, await self._take(size)


@asynccontextmanager
async def open_socket(scene: Scene) -> AsyncIterator[tuple[Client, Frames]]:
    async with scene.place.client() as client:
        await client.send(upgrade(scene))
        answer = await client.receive()
        assert answer.status == 101, answer.raw
        yield client, Frames(client)


def upgrade(scene: Scene) -> bytes:
    headers = {name.encode(): value.encode() for name, value in EXAMPLES["websocket"][0].headers.items()}
    return scene.request("GET", b"/v0/ws", None, headers)


def commands(random: Random, rounds: int) -> Iterator[bytes]:
    for examples in COMMANDS.values():
        for example in examples:
            yield json.dumps(example).encode()
            yield from values.bodies(example, random, rounds)


async def in_commands(scene: Scene, made: Iterable[bytes]) -> None:
    """Send commands, some on each socket, and look at all that the socket gets. Messages that are not UTF-8 end it."""
    texts = [text for text in made if _is_text(text)]
    for begin in range(0, len(texts), TOGETHER):
        await scene.prepare(Example(before=LOG))
        await _conversation(scene, texts[begin : begin + TOGETHER])


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


async def _conversation(scene: Scene, texts: Sequence[bytes]) -> None:
    judge = scene.judge
    end = b'{"op":"ping","request_id":"the end"}'
    answered = 0
    async with open_socket(scene) as (client, frames):
        with trio.move_on_after(PATIENCE_S):
            await client.send(b"".join(map(frame, (*texts, end))))
            try:
                while True:
                    code, content = await frames.next()
                    if code != TEXT:
                        continue
                    said = strict_json(content)
                    problem = _problem_of_message(said)
                    if problem:
                        judge.tell(f"websocket: {problem}", texts[min(answered, len(texts) - 1)], content)
                    if said.get("request_id") == "the end":
                        break
                    answered += said["op"] in _ANSWERS
            except (EOFError, ValueError, trio.BrokenResourceError) as error:
                judge.tell(f"websocket: the conversation ended: {error!r}", texts[min(answered, len(texts) - 1)])
                answered = len(texts)
            if answered != len(texts):
                judge.tell(f"websocket: {answered} of {len(texts)} commands were answered", texts)
            judge.tried += len(texts)
            return
        judge.tell("websocket: an answer does not come", texts[min(answered, len(texts) - 1)])


def _problem_of_message(said: Any) -> str:
    if not isinstance(said, dict) or said.get("op") not in _ANSWERS | _STREAMED:
        return "the message is none that is known"
    if said["op"] != "error":
        return ""
    if said.get("code") == "internal":
        return "a client's message has ended in an internal error"
    return problem_of_error(said)


def streams_of_frames(random: Random, rounds: int) -> Iterator[bytes]:
    """The bytes of whole conversations: fragments, control frames of odd sizes, wrong masks, and edits of all that."""
    subscribe = json.dumps({"op": "subscribe", "topic": "m-log"}).encode()
    publish = json.dumps({"op": "publish", "topic": "m-log", "records": [{"data": 1}]}).encode()
    ping = b'{"op":"ping"}'
    usual = [
        frame(subscribe),
        frame(publish[:9], last=False),
        frame(b"", PING),
        frame(publish[9:], 0),
        frame(b"x" * 125, PONG),
        frame(ping),
        frame(struct.pack("!H", 1000) + b"bye", CLOSE),
    ]
    yield b"".join(usual)
    for code in range(16):
        for content in (b"", b"x", b"x" * 125, b"x" * 126, ping):
            for last in (True, False):
                yield frame(content, code, last=last) + frame(ping)
    for number in (0, 1, 999, 1000, 1004, 1005, 1006, 1012, 1015, 2999, 3000, 4999, 5000, 65535):
        for reason in (b"", b"bye", b"\xff", b"x" * 123, b"x" * 124):
            yield frame(struct.pack("!H", number) + reason, CLOSE)
    yield from (frame(ping, masked=False), frame(ping, TEXT | 0x40), frame(b"\xff\xfe"), frame(b"\xed\xa0\x80"))
    yield frame(b"\xe2\x82", last=False) + frame(b"\xac", 0)
    yield frame(ping, last=False) + frame(ping)
    yield frame(ping, 0)
    for size in (126, 65535, 65536, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1):
        yield struct.pack("!BBQ", 0x81, 0xFF, size) + b"\0\0\0\0" + ping
        if size < 1 << 16:
            yield struct.pack("!BBH", 0x81, 0xFE, size) + b"\0\0\0\0" + ping
    yield b"".join(frame(b"", 0, last=False) for _ in range(400))
    yield frame(b"", PING) * 400
    yield from values.cuts(b"".join(usual[:4]))
    for _ in range(rounds):
        yield values.edited(b"".join(usual), random, bytes(range(256)))


def first_messages(random: Random, rounds: int) -> Iterator[bytes]:
    """What a client without a key may send first of all."""
    [auth] = COMMANDS["auth"]
    yield from map(frame, values.bodies(auth, random, rounds))
    yield frame(b"x" * 9000)


async def in_frames(scene: Scene, made: Iterable[bytes], *, keyed: bool = True) -> None:
    """Send bytes on sockets, one each, and the end of the connection behind them. The service ends it too."""
    head = upgrade(scene) if keyed else scene.without_key(upgrade(scene))
    for raw in made:
        scene.judge.tried += 1
        async with scene.place.client() as client:
            received = await said(client.stream, head + raw)
        if received is None:
            scene.judge.tell("websocket: the connection does not end", raw)
        elif received and not received.startswith(b"HTTP/1.1 101 "):
            scene.judge.tell("websocket: the upgrade was not answered", raw, received)
        elif b'"code":"internal"' in received:
            scene.judge.tell("websocket: an internal error", raw, received)


# Walrus and Rog


def _edges(raw: bytes, begin: int, form: struct.Struct, sizes: Iterable[int]) -> Iterator[bytes]:
    """The command with other numbers at an offset."""
    most = 2 ** (8 * form.size)
    (real,) = form.unpack_from(raw, begin)
    for size in {*sizes, 0, 1, real - 1, real + 1, most // 2 - 1, most // 2, most - 1}:
        if 0 <= size < most:
            yield raw[:begin] + form.pack(size) + raw[begin + form.size :]


def walrus_inputs(random: Random, rounds: int) -> Iterator[bytes]:
    """Bytes after which the connection may have lost its place."""
    for raw in (raw for examples in WALRUS.values() for raw in examples):
        yield from values.cuts(raw)
        yield from _edges(
            raw, 0, struct.Struct("<I"), (MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, MAX_SKIP_BYTES, MAX_SKIP_BYTES + 1)
        )
        for _ in range(rounds):
            yield values.edited(raw, random) + raw


def walrus_commands(random: Random, rounds: int) -> Iterator[bytes]:
    """Commands with other texts: the frames are whole, so each has one answer."""
    for raw in (raw for examples in WALRUS.values() for raw in examples):
        text = raw[4:]
        yield raw
        bent = [
            each
            for awkward in (*values.JSON_VALUES, *values.WORDS)
            for each in (text + b" " + awkward, text.replace(b"m-walrus", awkward), awkward)
        ]
        bent += [values.edited(text, random) for _ in range(rounds)]
        yield from (struct.pack("<I", len(each)) + each for each in bent)


def rog_inputs(random: Random, rounds: int) -> Iterator[bytes]:
    size_at = 3 + len("m-rog")
    for number, raw in enumerate(raw for examples in ROG.values() for raw in examples):
        yield from values.cuts(raw)
        for at in (0, 1, 2, size_at):
            if at < len(raw):
                for byte in (0, 1, 2, 4, 127, 128, 255):
                    yield raw[:at] + bytes((byte,)) + raw[at + 1 :] + raw
        if number == 1:
            yield from _edges(raw, size_at, struct.Struct(">Q"), (MAX_SKIP_BYTES, MAX_SKIP_BYTES + 1, 1 << 20))
        if number > 1:
            for size in (*values.EDGES, 255, 256):
                if 0 <= size < 2**56:
                    yield raw[:size_at] + struct.pack(">Q", size) + raw[size_at + 1 :] + raw
        for _ in range(rounds):
            yield values.edited(raw, random, bytes(range(256))) + raw


def rog_commands(random: Random, rounds: int) -> Iterator[bytes]:
    size_at = 3 + len("m-rog")
    for raw in (raw for examples in ROG.values() for raw in examples):
        yield raw
        edits = (values.edited(b"m-rog", random, bytes(range(256))) for _ in range(rounds))
        for name in (*values.JSON_VALUES, *values.WORDS, *edits):
            name = name[:255]
            yield raw[:2] + bytes((len(name),)) + name + raw[size_at:]


Exchange = Callable[[bytes], Awaitable[bytes | None]]
"""Sends bytes on a connection, and its end behind them. Returns what was received, None if it does not end."""


async def in_protocol(scene: Scene, name: str, exchange: Exchange, made: Iterable[bytes], together: int = 1) -> None:
    """Send commands, so many on each connection. Every answer is a whole one."""
    problem_of = {"walrus": _problem_of_walrus, "rog": _problem_of_rog}[name]
    inputs = iter(made)
    while batch := list(islice(inputs, together)):
        scene.judge.tried += len(batch)
        received = await exchange(b"".join(batch))
        problem = "the connection does not end" if received is None else problem_of(received)
        if problem:
            scene.judge.tell(f"{name}: {problem}", batch, received)


async def protocols(scene: Scene, walrus: Exchange, rog: Exchange, random: Random, rounds: int) -> None:
    await in_protocol(scene, "walrus", walrus, walrus_inputs(random, rounds))
    await in_protocol(scene, "walrus", walrus, walrus_commands(random, rounds), TOGETHER)
    await in_protocol(scene, "rog", rog, rog_inputs(random, rounds))
    await in_protocol(scene, "rog", rog, rog_commands(random, rounds), TOGETHER)


def exchanges(gateway: Gateway) -> tuple[Exchange, Exchange]:
    """Connections of Walrus and of Rog to a gateway in this process."""

    async def exchange(session: Callable[[], Session], raw: bytes) -> bytes | None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        connection = TcpConnection(theirs, session(), gateway.limits, gateway.flight, gateway.budget)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            received = await said(trio.SocketStream(trio.socket.from_stdlib_socket(ours)), raw)
            nursery.cancel_scope.cancel()
        return received

    return partial(exchange, gateway.walrus.session), partial(exchange, gateway.rog.session)


async def said(stream: trio.SocketStream, raw: bytes) -> bytes | None:
    """Send bytes and the end of the connection; return all that comes back, None if that does not end."""
    received = b""
    async with stream:
        with trio.move_on_after(PATIENCE_S):
            try:
                await stream.send_all(raw)
                await stream.send_eof()
                while data := await stream.receive_some(65536):
                    received += data
            except trio.BrokenResourceError:
                pass
            return received
    return None


def _problem_of_walrus(received: bytes) -> str:
    while received:
        if len(received) < 4:
            return "an answer is cut"
        (size,) = struct.unpack_from("<I", received)
        text, received = received[4 : 4 + size], received[4 + size :]
        if len(text) < size:
            return "an answer is cut"
        if text.startswith(b"ERR internal error"):
            return "a client's command has ended in an internal error"
        if text.startswith(b"{"):
            strict_json(text)
        text.decode()
    return ""


def _problem_of_rog(received: bytes) -> str:
    """Only errors have a text: an answer of success has one only to a fetch, which cannot be told from the bytes."""
    if b"Internal error" in received or b"internal error" in received:
        return "a client's command has ended in an internal error"
    if received[:1] not in (b"", b"\0", b"\1"):
        return "an answer begins with neither success nor error"
    return ""

"""The WebSocket transport: from the upgrade to text messages in and out. What they say is in `gateway.live_ws`.

    HTTP request ──accept──► open ──close, or the client's──► ended
                     └─► 400, 403 like any other answer

wsproto does the handshake and reads frames; text frames to send are made here, because one rendered batch goes to many
sockets as it is. Compression is not agreed to.

    the client sends           what it gets
    a binary message           close 1003
    text that is not UTF-8     close 1007
    more than a body may have  close 1009
    ping                       pong, as soon as its messages are read again
    nothing for a while        ping; close if nothing comes then either
    a large message, slowly    close 1008: its place is wanted by others
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from time import monotonic
from urllib.parse import urlsplit

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from gateway.budget import Budget
from gateway.http import Channel, ClientGone
from gateway.pace import Pace
from proto.errors import ErrorCode, TopicsError, invalid
from proto.keys import Key
from proto.limits import Limits

PATH = "/v0/ws"
CLOSE_S = 2.0
"""How long a client may take to answer a close."""
MAX_REASON_CHARS = 100
SMALL_MESSAGE_BYTES = 64 << 10
"""Larger messages are counted with the bodies of requests."""
UNSUPPORTED, TOO_SLOW, TOO_LARGE, TRY_LATER = 1003, 1008, 1009, 1013


def not_an_upgrade() -> TopicsError:
    return invalid(f"{PATH} is a WebSocket: connect with an HTTP/1.1 upgrade (Upgrade: websocket)")


def check_origin(headers: Mapping[bytes, bytes]) -> None:
    """Raises `403 forbidden` for a browser on another site's page. Where nobody is asked for a key, only the origin
    tells such a page from a client of this machine, and browsers let any page open any WebSocket."""
    origin = headers.get(b"origin", b"")
    if origin and urlsplit(origin).netloc.lower() != headers.get(b"host", b"").lower():
        raise TopicsError(
            ErrorCode.FORBIDDEN,
            "without keys, a browser may connect only from a page of this service's own origin; serve the page and the "
            "service from one origin, or configure keys",
            {"reason": "origin"},
        )


def accept(path: str, headers: Mapping[bytes, bytes]) -> tuple[bytes, WSConnection]:
    """The bytes that answer an upgrade, and the protocol's state after it. Raises `400`."""
    connection = WSConnection(ConnectionType.SERVER)
    try:
        connection.initiate_upgrade_connection(list(headers.items()), path)
        list(connection.events())
        return connection.send(AcceptConnection()), connection
    except (RemoteProtocolError, LocalProtocolError) as error:
        raise invalid(f"not a WebSocket upgrade: {error}") from None


class WebSocket:
    """One open socket. `receive` and `send` may be called from one task each at the same time."""

    def __init__(self, connection: WSConnection, channel: Channel, key: Key, limits: Limits, budget: Budget) -> None:
        self.key = key
        self._connection = connection
        self._channel = channel
        self._most = limits.max_body_bytes
        self._ping_s = limits.websocket_ping_ms / 1000
        self._budget = budget
        self._reserved = 0
        self._pace = Pace(limits)
        self._sending = trio.Lock()
        self._events: list[Event] = []
        self._closing = False

    async def receive(self) -> str:
        """The next text message. Raises `ClientGone` when there will be none; the client has been told why."""
        self._release()
        try:
            return await self._message()
        except BaseException:
            self._release()
            raise

    async def _message(self) -> str:
        pieces: list[str] = []
        size = 0
        while True:
            event = await self._next()
            if isinstance(event, TextMessage):
                pieces.append(event.data)
                size += len(event.data)
                if size > self._most:
                    await self._refuse(TOO_LARGE, f"a message may have {self._most} bytes")
                if size > SMALL_MESSAGE_BYTES and not self._reserved:
                    await self._reserve()
                if event.message_finished:
                    return pieces[0] if len(pieces) == 1 else "".join(pieces)
            elif isinstance(event, BytesMessage):
                await self._refuse(UNSUPPORTED, "messages are text: JSON")
            elif isinstance(event, Ping):
                await self._write(self._connection.send(event.response()))
            elif isinstance(event, CloseConnection):
                await self._answer_close(event)
                raise ClientGone

    async def send(self, text: bytes) -> None:
        """Send a text message, UTF-8; returns when the socket has taken it. Raises `ClientGone`, OSError."""
        size = len(text)
        if size < 126:
            head = struct.pack("!BB", 0x81, size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x81, 126, size)
        else:
            head = struct.pack("!BBQ", 0x81, 127, size)
        await self._write(head + text)

    async def close(self, code: int, reason: str) -> None:
        """End the socket with a close frame; gives the client a moment to answer it."""
        self._release()
        if self._closing:
            return
        self._closing = True
        with trio.move_on_after(CLOSE_S):
            await self._write(self._connection.send(CloseConnection(code, reason)))
            while not isinstance(await self._next(), CloseConnection):
                pass

    async def _refuse(self, code: int, reason: str) -> None:
        try:
            await self.close(code, reason)
        except OSError:
            pass
        raise ClientGone

    async def _answer_close(self, event: CloseConnection) -> None:
        """The client's close is answered with its own code; what is not WebSocket, with the code that says so."""
        try:
            with trio.move_on_after(CLOSE_S):
                await self._write(self._connection.send(event.response()))
        except (OSError, LocalProtocolError):
            pass

    async def _next(self) -> Event:
        while not self._events:
            data = await self._read()
            if not data:
                raise ClientGone
            try:
                self._connection.receive_data(data)
            except RemoteProtocolError:
                raise ClientGone from None  # bytes after the close
            self._events = list(self._connection.events())[::-1]
        return self._events.pop()

    async def _read(self) -> bytes:
        """What comes next; a client that is silent is asked whether it is there, once. Raises `ClientGone`."""
        if self._reserved:
            with trio.move_on_after(max(self._pace.deadline() - monotonic(), 0)):
                data = await self._channel.receive_some()
                self._pace.received += len(data)
                return data
            await self._refuse(TOO_SLOW, "the client sent its message too slowly")
        asked = False
        while True:
            with trio.move_on_after(self._ping_s):
                return await self._channel.receive_some()
            if self._sending.locked():
                continue  # the client does not read either; who sends looks after that
            if asked:
                raise ClientGone
            asked = True
            with trio.move_on_after(self._ping_s):
                await self._write(self._connection.send(Ping()))

    async def _write(self, data: bytes) -> None:
        async with self._sending:
            await self._channel.send_some(data)

    async def _reserve(self) -> None:
        try:
            self._reserved = await self._budget.reserve(self._most)
        except TopicsError as error:
            await self._refuse(TRY_LATER, error.message[:MAX_REASON_CHARS])
        self._pace.begin()

    def _release(self) -> None:
        if self._reserved:
            self._budget.release(self._reserved)
            self._reserved = 0

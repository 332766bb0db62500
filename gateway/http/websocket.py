"""The WebSocket transport: from the upgrade to text messages in and out. `gateway.streams.websocket_commands` gives the
messages their meaning.

    HTTP request ──accept──► open ──close, or the client's──► ended
                     └─► 400, 403 like any other response

wsproto does the handshake and parses frames. This module encodes text frames, because one rendered batch goes to many
sockets unchanged. The transport never agrees to compression. It parses input in small pieces, and other connections
get a turn between two pieces: one read of a socket may bring a thousand frames.

    the client sends           the transport answers
    a binary message           close 1003
    text that is not UTF-8     close 1007
    more than a body may have  close 1009
    ping                       pong, as soon as its messages are read again
    nothing for a while        ping; the connection ends if nothing comes then either
    frames without content     close 1008 above some hundreds: pongs, pings, tiny fragments
    a large message, slowly    close 1008: other clients need the memory it holds
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from gateway.admission.body_budget import Budget, Kind
from gateway.admission.transfer_rate import Allowance, Pace
from gateway.http.messages import Channel, ClientGone
from proto.model.errors import TopicsError, invalid
from proto.model.keys import Key
from proto.model.limits import Limits

CLOSE_S = 2.0
"""Seconds that a client has to answer a close frame."""
MAX_REASON_CHARS = 100
SMALL_MESSAGE_BYTES = 64 << 10
"""A larger message is counted against the budget of memory as a request body of that size is."""
GROWTH = 4
PIECE_BYTES = 1 << 10
"""Bytes parsed in one go, except inside a message."""
SMALL_FRAME_BYTES = 64
"""A fragment below this size counts as a frame without content."""
IDLE_FRAMES, IDLE_FRAMES_PER_S = 300, 50
"""Frames without content that a client may send: at once, and a second in the long run."""
UNSUPPORTED, TOO_SLOW, POLICY, TOO_LARGE, TRY_LATER = 1003, 1008, 1008, 1009, 1013


def accept(path: str, headers: Mapping[bytes, bytes]) -> tuple[bytes, WSConnection]:
    """Return the bytes that answer an upgrade, and the protocol's state after it. Raises `400`."""
    connection = WSConnection(ConnectionType.SERVER)
    try:
        connection.initiate_upgrade_connection(list(headers.items()), path)
        list(connection.events())
        return connection.send(AcceptConnection()), connection
    except (RemoteProtocolError, LocalProtocolError) as error:
        raise invalid(f"not a WebSocket upgrade: {error}") from None
    except UnicodeError:  # wsproto decodes the Host header
        raise invalid("not a WebSocket upgrade: a header is not text") from None


class WebSocket:
    """One open WebSocket. One task may call `receive` while another calls `send`."""

    def __init__(self, connection: WSConnection, channel: Channel, key: Key, limits: Limits, budget: Budget) -> None:
        self.key = key
        self._budget = budget
        self._connection = connection
        self._channel = channel
        self._most = limits.max_body_bytes
        self._ping_s = limits.websocket_ping_ms / 1000
        self._hold = budget.hold(Kind.BODY, key)
        self._pace = Pace(limits)
        self._sending = trio.Lock()
        self._events: list[Event] = []
        self._unread = b""
        """Bytes received and not parsed yet."""
        self._inside = False
        """Whether the parser is in the middle of a text frame."""
        self._idle = Allowance(IDLE_FRAMES, IDLE_FRAMES_PER_S)
        self._stuck_s = limits.slow_consumer_timeout_ms / 1000
        self._closing = False

    def belongs_to(self, key: Key) -> None:
        """Set the key of a socket that was opened without one."""
        self.key = key
        self._hold = self._budget.hold(Kind.BODY, key)

    async def first(self, most: int) -> bytes:
        """Return the first message of a client without a key. It may have `most` bytes. Raises `ClientGone`."""
        usual, self._most = self._most, most
        try:
            return await self.receive()
        finally:
            self._most = usual

    async def receive(self) -> bytes:
        """Wait for the next text message and return it as UTF-8. Raises `ClientGone` when there will be none; a refused
        client has been sent a close frame with the reason."""
        self._hold.release()
        try:
            return await self._message()
        except BaseException:
            self._hold.release()
            raise

    async def _message(self) -> bytes:
        message = bytearray()
        while True:
            event = await self._next()
            if isinstance(event, TextMessage):
                piece = event.data.encode()
                if len(message) + len(piece) > self._most:
                    await self._refuse(TOO_LARGE, f"a message may have {self._most} bytes")
                if event.message_finished and not message:
                    return piece
                message += piece
                if len(message) > max(self._hold.size, SMALL_MESSAGE_BYTES) and not event.message_finished:
                    await self._reserve(len(message))
                if event.message_finished:
                    return bytes(message)
                if event.frame_finished and len(piece) < SMALL_FRAME_BYTES:
                    await self._brought_nothing()
            elif isinstance(event, BytesMessage):
                await self._refuse(UNSUPPORTED, "messages are text: JSON")
            elif isinstance(event, Ping):
                await self._brought_nothing()
                await self._pong(event)
            elif isinstance(event, Pong):
                await self._brought_nothing()
            elif isinstance(event, CloseConnection):
                await self._answer_close(event)
                raise ClientGone

    async def _brought_nothing(self) -> None:
        if not self._idle.spend(monotonic()):
            await self._refuse(TOO_SLOW, "too many control frames or tiny fragments")

    async def _pong(self, ping: Ping) -> None:
        with trio.move_on_after(self._stuck_s):
            await self._write_control(ping.response())
            return
        raise ClientGone

    async def send(self, text: bytes) -> None:
        """Send a text message, UTF-8; return when the socket has taken it. Raises `ClientGone` and OSError."""
        size = len(text)
        if size < 126:
            head = struct.pack("!BB", 0x81, size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x81, 126, size)
        else:
            head = struct.pack("!BBQ", 0x81, 127, size)
        await self._write(head + text)

    async def close(self, code: int, reason: str) -> None:
        """Send a close frame and wait up to `CLOSE_S` for the client's. Does nothing the second time."""
        self._hold.release()
        if self._closing:
            return
        self._closing = True
        with trio.move_on_after(CLOSE_S):
            await self._write(self._connection.send(CloseConnection(code, reason)))
            while not isinstance(await self._next(), CloseConnection):
                pass

    async def _refuse(self, code: int, reason: str) -> None:
        with suppress(OSError):
            await self.close(code, reason)
        raise ClientGone

    async def _answer_close(self, event: CloseConnection) -> None:
        """Answer the client's close with its own code, and invalid WebSocket bytes with the code of the error."""
        with suppress(OSError, LocalProtocolError), trio.move_on_after(CLOSE_S):
            await self._write(self._connection.send(event.response()))

    async def _next(self) -> Event:
        while not self._events:
            if self._unread:
                await trio.lowlevel.checkpoint()
            else:
                self._unread = await self._read()
                if not self._unread:
                    raise ClientGone
            size = len(self._unread) if self._inside else PIECE_BYTES
            piece, self._unread = self._unread[:size], self._unread[size:]
            try:
                self._connection.receive_data(piece)
            except RemoteProtocolError:
                raise ClientGone from None  # bytes after the close
            self._events = list(self._connection.events())[::-1]
            last = self._events[0] if self._events else None
            self._inside = isinstance(last, TextMessage) and not last.frame_finished
        return self._events.pop()

    async def _read(self) -> bytes:
        """Wait for bytes and return them. A silent client gets one ping. Raises `ClientGone` when it stays silent, or
        sends a large message too slowly."""
        if self._hold.size:
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
                continue  # the client does not read either; the sending task limits that
            if asked:
                raise ClientGone
            asked = True
            with trio.move_on_after(self._ping_s):
                await self._write_control(Ping())

    async def _write_control(self, event: Ping | Pong) -> None:
        """Send a ping or pong, unless either side has closed: a ping and the close after it may come in one piece."""
        if self._connection.state is ConnectionState.OPEN:
            await self._write(self._connection.send(event))

    async def _write(self, data: bytes) -> None:
        async with self._sending:
            await self._channel.send_some(data)

    async def _reserve(self, size: int) -> None:
        """Grow the hold of a message as it arrives, because its size is not announced."""
        if not self._hold.size:
            self._pace.begin()
        since = monotonic()
        try:
            await self._hold.grow(min(GROWTH * size, self._most))
        except TopicsError as error:
            await self._refuse(TRY_LATER, error.message[:MAX_REASON_CHARS])
        self._pace.excuse(monotonic() - since)

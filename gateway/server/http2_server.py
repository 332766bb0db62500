"""HTTP/2 connections with prior knowledge: a reader, a writer, and a task for each stream. The one module that imports
h2, which speaks the protocol without I/O.

    reader    socket ─► Frames (counts, cuts) ─► h2 ─► streams         stops while the client takes no answers
    writer    streams, h2 ─► 64 KiB at a time ─► socket                a frame of each stream in turn
    streams   the API, as over HTTP/1.1

The reader passes on a few frames at a time, and other connections get a turn between them. The writer takes bytes of a
stream only as far as the client's windows allow, and what it has taken and the kernel has not is bounded for the whole
connection. Priorities of streams are not followed. WebSockets are not offered over HTTP/2, so clients use HTTP/1.1.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic

import structlog
import trio
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error, ProtocolError
from h2.settings import SettingCodes, Settings
from structlog.typing import FilteringBoundLogger

from gateway.admission.floods import Floods, network
from gateway.api.dispatch import Api
from gateway.contract import responses
from gateway.http.http2_frames import EARNED_BY_ANSWER, EARNED_BY_DATA, MAX_FRAME_BYTES, Frames, Refused
from gateway.http.messages import ClientGone, Request, Response, address_of
from gateway.server.connection import GATHER_BYTES, LINGER_PAUSE_S, RECEIVE_BYTES
from gateway.server.http2_connection import Carried
from gateway.server.http2_stream import FIRST_WINDOW_BYTES, Http2Stream
from gateway.server.page_paths import is_page
from proto.model.errors import TopicsError
from proto.model.limits import MAX_HEADER_BYTES
from proto.process.driven import readable, writable
from proto.process.faults import faults
from proto.process.tracebacks import kind

MAX_STREAMS = 100
"""Streams that one connection may have open."""
TABLE_BYTES = 4 << 10
"""Bytes of headers that h2 remembers to compress answers by, whatever the client would allow."""
MOST_UNSENT = 64 << 10
"""Bytes that wait for the writer, beyond which the reader stops."""
LINGER_BYTES = 128 << 10
FULL_DATA_BYTES = 1 << 10
"""A smaller DATA frame with more after it was cut by a tiny window, so nothing is earned by it."""

_KNOWN = frozenset(SettingCodes)
_log: FilteringBoundLogger = structlog.get_logger()


class _Protocol(H2Connection):
    MAX_CLOSED_STREAMS = 1000
    DEFAULT_MAX_INBOUND_FRAME_SIZE = MAX_FRAME_BYTES


class Http2Server:
    def __init__(self, api: Api, page: Callable[[Request], Awaitable[Response]]) -> None:
        """`page` answers the requests for pages."""
        self.api = api
        self.draining = False
        self.leaving = False
        """Whether connections end with their last stream."""
        self.floods = Floods()
        self.open = 0
        """Streams that are open on all connections."""
        self._page = page
        self._connections: set[Http2Connection] = set()
        self._drains = trio.Event()

    def drain(self) -> None:
        """Refuse new streams, and close connections as their last stream ends."""
        self.draining = True
        self.retire()

    def retire(self) -> None:
        """Close connections as their last stream ends."""
        self.leaving = True
        self._drains.set()
        for connection in tuple(self._connections):
            connection.close_if_idle()

    def has_room(self) -> bool:
        """Whether a stream may be opened. A stream costs what a connection does, so the limit on connections holds."""
        most = self.api.limits.max_connections
        return not self.draining and (not most or self.open < most)

    async def respond(self, request: Http2Stream) -> Response:
        try:
            request.resolve()
        except TopicsError as error:
            self.api.outcomes.refused(error)
            return responses.failure(error, None)
        if is_page(request.path) and self.api.origins.admits(request):
            response = await self._page(request)
            request.hold_answer().set(len(response.body))
            return response
        return await self.api.handle(request)

    async def serve(self, raw: socket.socket, read: bytes, carried: Carried) -> None:
        """Serve a connection to its end, beginning with the bytes already `read`."""
        address = network(raw)
        if pause := self.floods.pause(address, monotonic()):
            with trio.move_on_after(pause):
                await self._drains.wait()
        connection = Http2Connection(self, raw, carried, address)
        self._connections.add(connection)
        try:
            await connection.run(read)
        finally:
            self._connections.discard(connection)


class Http2Connection:
    def __init__(self, server: Http2Server, raw: socket.socket, carried: Carried, address: str) -> None:
        self.carried = carried
        self.limits = server.api.limits
        self._server = server
        self._raw = raw
        self._address = address
        self._frames = Frames()
        self._streams: dict[int, Http2Stream] = {}
        self._ready: deque[Http2Stream] = deque()
        """Streams that have something to send and were not found blocked since."""
        self._blocked: dict[int, Http2Stream] = {}
        """Streams that wait for their window, or the connection's."""
        self._out = bytearray()
        """Frames that the writer has not taken yet."""
        self._wanted = trio.Event()
        self._taken = trio.Event()
        self._dead = False
        """Whether the socket takes no more bytes."""
        self._reading = trio.CancelScope()
        self._over = False
        self._tasks: trio.Nursery
        self._h2 = _Protocol(H2Configuration(client_side=False, header_encoding=None))
        self._h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
                SettingCodes.INITIAL_WINDOW_SIZE: FIRST_WINDOW_BYTES,
                SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
            },
        )
        self._h2.initiate_connection()

    async def run(self, read: bytes) -> None:
        self._frames.feed(read)
        async with trio.open_nursery() as tasks:
            tasks.start_soon(self._write)
            async with trio.open_nursery() as self._tasks:
                with self._reading:
                    self.close_if_idle()
                    await self._read()
                self._lose_all()
            self._over = True
            self._close(ErrorCodes.NO_ERROR)
            tasks.cancel_scope.deadline = trio.current_time() + LINGER_PAUSE_S
            self._wake()
            if self._reading.cancelled_caught and (self._server.leaving or self._frames.goes) and not self._dead:
                await self._linger()

    def peer(self) -> str:
        return address_of(self._raw)

    def close_if_idle(self) -> None:
        """Once the server drains or retires, or the client leaves, end the connection if it has no stream."""
        if (self._server.leaving or self._frames.goes) and not self._streams:
            self._reading.cancel()

    # -- reading

    async def _read(self) -> None:
        frames = self._frames
        try:
            while True:
                # A stream that is opened as the connection ends would be lost, and count as served.
                await trio.lowlevel.checkpoint_if_cancelled()
                while data := frames.take(self._streams, monotonic()):
                    for event in self._h2.receive_data(data):
                        self._on(event)
                    self._wake()
                    await trio.lowlevel.checkpoint()
                self.close_if_idle()
                self._wake()
                while len(self._out) > MOST_UNSENT and not self._dead:
                    self._taken = trio.Event()
                    await self._taken.wait()
                if not (data := await self._receive()):
                    return
                frames.feed(data)
        except Refused as error:
            _log.warning("http2_refused", error=str(error))
            self._server.floods.refused(self._address, monotonic())
            self._close(ErrorCodes(error.code))
        except ProtocolError as error:
            _log.debug("protocol_broken", http2=True, error=kind(error))
        except OSError:
            return
        await self._linger()

    async def _receive(self) -> bytes:
        """Wait for bytes; b"" at the end of the connection, or when the client owes the rest of a head for too long."""
        owed = self.limits.header_timeout_ms / 1000 if self._frames.inside_head else float("inf")
        with trio.move_on_after(owed):
            while True:
                await readable(self._raw)
                try:
                    return self._raw.recv(RECEIVE_BYTES)
                except BlockingIOError:
                    continue
        return b""

    async def _linger(self) -> None:
        """Give the client time to read why its connection ends. Closing with unread input resets the connection."""
        self._lose_all()
        self._over = True
        self._wake()
        allowed = LINGER_BYTES
        with trio.move_on_after(LINGER_PAUSE_S), suppress(OSError), self._server.api.flight.closes(self):
            while allowed > 0 and (data := await self._receive()):
                allowed -= len(data)

    def _on(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._open(event)
        elif isinstance(event, DataReceived):
            assert event.stream_id is not None
            stream = self._streams.get(event.stream_id)
            if stream is not None:
                stream.receives(event.data or b"", event.flow_controlled_length or 0)
            else:
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
        elif isinstance(event, StreamEnded):
            if (stream := self._streams.get(event.stream_id or 0)) is not None:
                stream.received_all()
        elif isinstance(event, StreamReset):
            if (stream := self._streams.get(event.stream_id or 0)) is not None:
                self._blocked.pop(stream.number, None)
                stream.lost()
        elif isinstance(event, WindowUpdated):
            self._unblock(event.stream_id or 0)
        elif isinstance(event, RemoteSettingsChanged):
            self._settle(event)
        elif isinstance(event, ConnectionTerminated):
            self._reading.cancel()

    def _settle(self, event: RemoteSettingsChanged) -> None:
        """Follow the client's settings, but keep no unknown ones and let no table grow as it pleases."""
        for code in event.changed_settings:
            if code not in _KNOWN:
                self._h2.remote_settings.pop(code, None)
        if SettingCodes.HEADER_TABLE_SIZE in event.changed_settings:
            encoder = self._h2.encoder
            encoder.header_table_size = min(encoder.header_table_size, TABLE_BYTES)
        if SettingCodes.INITIAL_WINDOW_SIZE in event.changed_settings:
            self._unblock(0)

    def _unblock(self, number: int) -> None:
        """Look again at a stream, or at all of them for 0."""
        if number:
            if (stream := self._blocked.pop(number, None)) is not None:
                self._ready.append(stream)
        elif self._blocked and self._h2.outbound_flow_control_window > 0:
            self._ready.extend(self._blocked.values())
            self._blocked.clear()

    # -- streams

    def _open(self, event: RequestReceived) -> None:
        number = event.stream_id
        assert number is not None
        server = self._server
        if not server.has_room():
            self.reset(number, ErrorCodes.REFUSED_STREAM)
            return
        whole = event.stream_ended is not None
        stream = Http2Stream(self, number, event.headers or [], server.api.budget, whole=whole)
        self._streams[number] = stream
        server.open += 1
        server.api.flight.enter()
        self.carried.has(stream)
        self._tasks.start_soon(self._serve, stream)

    async def _serve(self, stream: Http2Stream) -> None:
        code: ErrorCodes | None = ErrorCodes.CANCEL
        try:
            await stream.answer(await self._server.respond(stream))
            self._frames.idle.earn(EARNED_BY_ANSWER)
            code = None if stream.whole else ErrorCodes.NO_ERROR
        except ClientGone:
            pass
        except Exception:
            code = ErrorCodes.INTERNAL_ERROR
            faults.failed("http2")
        finally:
            stream.finish()
            if code is not None:
                self.reset(stream.number, code)
            del self._streams[stream.number]
            self._blocked.pop(stream.number, None)
            stream.lost()
            self.carried.closed(stream)
            self._server.open -= 1
            self._server.api.flight.leave()
            self._wake()
            self.close_if_idle()

    def _lose_all(self) -> None:
        """Tell all streams that the client is gone. Their tasks end by themselves."""
        self._blocked.clear()
        self._ready.clear()
        for stream in tuple(self._streams.values()):
            stream.lost()

    def reset(self, number: int, code: ErrorCodes) -> None:
        with suppress(H2Error):  # the stream or the connection is closed already
            self._h2.reset_stream(number, code)

    # -- what streams call

    def send_head(self, stream: Http2Stream, fields: list[tuple[bytes, bytes]], *, end: bool = False) -> None:
        if stream.gone:
            raise ClientGone
        try:
            self._h2.send_headers(stream.number, fields, end_stream=end)
        except H2Error:
            raise ClientGone from None
        self._wake()

    def send_left(self, stream: Http2Stream) -> None:
        self._ready.append(stream)
        self._wake()

    def widen(self, stream: Http2Stream, size: int) -> None:
        try:
            self._h2.increment_flow_control_window(size, stream.number)
        except H2Error:
            raise ClientGone from None
        self._wake()

    def acknowledge(self, stream: Http2Stream, size: int) -> None:
        try:
            self._h2.acknowledge_received_data(size, stream.number)
        except H2Error:
            pass  # the connection is closed already
        self._wake()

    # -- writing

    def _wake(self) -> None:
        self._out += self._frames.replies
        self._frames.replies.clear()
        self._out += self._h2.data_to_send()
        if self._out or self._ready or self._over:
            self._wanted.set()

    def _close(self, code: ErrorCodes) -> None:
        if self._h2.state_machine.state is not ConnectionState.CLOSED:
            self._h2.close_connection(code)

    async def _write(self) -> None:
        try:
            while True:
                sent = self._gather()
                out, self._out = self._out, bytearray()
                if not out:
                    if self._over:
                        self._raw.shutdown(socket.SHUT_WR)
                        return
                    self._wanted = trio.Event()
                    await self._wanted.wait()
                    continue
                self._taken.set()
                await self._send(out)
                for stream, (size, last) in sent.items():
                    stream.queued = stream.queued and not last
                    stream.moved(size)
        except OSError:
            self._dead = True
            self._taken.set()
            self._lose_all()
            self._reading.cancel()

    def _gather(self) -> dict[Http2Stream, tuple[int, bool]]:
        """Take frames of ready streams, in turn. Returns the bytes taken of each, and whether nothing is left of it."""
        taken: dict[Http2Stream, tuple[int, bool]] = {}
        while self._ready and len(self._out) < GATHER_BYTES:
            stream = self._ready.popleft()
            if stream.gone:
                continue
            try:
                self._take(stream, taken)
            except H2Error:
                stream.lost()
            self._out += self._h2.data_to_send()
        return taken

    def _take(self, stream: Http2Stream, taken: dict[Http2Stream, tuple[int, bool]]) -> None:
        """Take a frame of a stream, if its window and the connection's have room."""
        left, number, size = stream.left, stream.number, 0
        if left.nbytes:
            window = self._h2.local_flow_control_window(number)
            size = min(left.nbytes, window, self._h2.max_outbound_frame_size, MAX_FRAME_BYTES)
            if size <= 0:
                self._blocked[number] = stream
                return
        stream.left = left[size:]
        last = not stream.left.nbytes
        self._h2.send_data(number, left[:size], end_stream=last and stream.ending)
        taken[stream] = (taken.get(stream, (0, False))[0] + size, last)
        if not last:
            self._ready.append(stream)
        if last or size >= FULL_DATA_BYTES:
            self._frames.idle.earn(EARNED_BY_DATA)

    async def _send(self, out: bytearray) -> None:
        at = 0
        with memoryview(out) as view:
            while at < len(out):
                try:
                    at += self._raw.send(view[at:])
                except BlockingIOError:
                    await writable(self._raw)

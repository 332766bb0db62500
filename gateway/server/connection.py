"""One HTTP/1.1 connection: its coroutine reads requests, passes them to the API and writes the responses, in order.

Every response, parse errors included, is the API's canonical JSON. The connection's coroutine is driven by
`gateway.server.reactor`, and carried by a task only while a request needs one. A request costs no task, cancel scope or
timer of its own. The connection has one `deadline`, which its coroutine moves; `gateway.server.listener` sweeps the
deadlines.

HTTP/2 connections and requests for pages go, with the bytes read so far, to `handover`.
"""

from __future__ import annotations

import math
import re
import socket
from contextlib import suppress
from time import monotonic

import trio

from gateway.admission.body_budget import FREE_BYTES, Hold, Kind
from gateway.admission.transfer_rate import Pace, due
from gateway.api.dispatch import Api
from gateway.contract import responses
from gateway.contract.routes import unknown_path
from gateway.http import response_head
from gateway.http.chunked_body import ChunkDecoder
from gateway.http.known_heads import cut
from gateway.http.messages import ClientGone, Response, address_of
from gateway.http.request_head import CHUNKED, PREFACE, check_beginning, parse
from gateway.server.http1_request import Http1Request, Pieces
from gateway.server.http2_connection import Carried, Handover
from gateway.server.page_paths import is_page
from gateway.server.reactor import Drive
from proto.model.errors import ErrorCode, TopicsError, invalid
from proto.model.limits import MAX_HEADER_BYTES
from proto.process.driven import Driven, in_driver, in_task, readable, turn, writable
from proto.process.faults import faults

WEBSOCKET_PATH = "/v0/ws"
RECEIVE_BYTES = 64 << 10
CHUNKED_BYTES = 16 << 10
"""Bytes read at a time from a chunked body. Chunks of one or two bytes take a thousand times more processor time."""
LINGER_PAUSE_S = 2.0
"""Longest pause between two reads from a client that still sends after its request was refused."""
LINGER_TOTAL_S = 15.0
SMALL_HEAD_BYTES = 8 << 10
"""Bytes each connection may hold uncounted: the beginning of a head, or requests sent ahead of their turn."""
FIRST_GROWTH_BYTES, GROWTH = 256 << 10, 4
"""The budget of a body of unknown length: its first size in bytes, and the factor of each growth."""
GATHER_BYTES = 64 << 10
"""Bytes. Larger bodies are sent without a copy; joining smaller ones with the head is cheaper."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_EMPTY_LINES = re.compile(rb"\A(?:\r\n)+")


class Connection:
    """A client's connection. `deadline` is when `expire` is due (`monotonic`); `phase` names what the client is sending
    by then."""

    __slots__ = (
        "_api",
        "_handover",
        "_owned",
        "_raw",
        "budget",
        "buffer",
        "deadline",
        "drive",
        "expired",
        "head_hold",
        "heads",
        "limits",
        "pace",
        "phase",
        "starved_since",
        "waiting",
    )

    def __init__(self, api: Api, handover: Handover, raw: socket.socket) -> None:
        self.limits = api.limits
        self.heads = api.heads
        self._api = api
        self._handover = handover
        self.buffer = b""
        self.drive: Drive
        """Drives `run`. The listener sets it."""
        self.deadline = math.inf
        self.phase = "idle"
        self.expired = False
        self.budget = api.budget
        self.head_hold: Hold | None = None
        self.waiting = False
        """Whether the connection is between requests or inside a head: ending it loses no request."""
        self.starved_since = math.inf
        """Since when the connection has waited for more of a body; infinity while it waits for none."""
        self.pace = Pace(api.limits)
        self._raw = raw
        self._owned = True

    async def run(self) -> None:
        await self._guarded(self._serve())

    def following(self) -> Driven | None:
        """The `408` of a client that was too slow in the middle of a request."""
        if not self.expired or self.phase == "idle":
            return None
        error = TopicsError(ErrorCode.REQUEST_TIMEOUT, f"the client sent its {self.phase} too slowly")
        self.phase = "idle"
        self.deadline = math.inf
        return self._guarded(self._refuse(error))

    async def _guarded(self, part: Driven) -> None:
        try:
            await part
        except (OSError, ClientGone):
            self.phase = "idle"  # the client is gone, so no response can be sent
        except Exception:
            self.phase = "idle"
            faults.failed("connection")

    def close(self) -> None:
        if self._owned:
            self._raw.close()

    def expire(self) -> None:
        """End the connection. A client in the middle of a request gets `408`."""
        self.expired = True
        self.deadline = math.inf
        self.drive.stop()
        if not self._owned:
            # Hypercorn shields its sends from cancellation, even to a client that does not read.
            with suppress(OSError):  # it is closed already
                self._raw.shutdown(socket.SHUT_RDWR)

    def asks(self) -> bool:
        """Whether bytes of a request have arrived that were not read yet. An end now would lose that request."""
        if not self.waiting or self.buffer or not self._owned:
            return False
        try:
            return bool(self._raw.recv(1, socket.MSG_PEEK))
        except OSError:
            return False  # nothing has arrived, or the client is gone

    def peer(self) -> str:
        return address_of(self._raw)

    def evict(self) -> None:
        """End the connection without a response, to make room for another one."""
        self.phase = "idle"
        self.expire()

    async def _serve(self) -> None:
        api = self._api
        while True:
            await in_driver()
            try:
                raw = await self._read_head()
                if raw is None:
                    return
                if raw == PREFACE:
                    await self._hand_over(raw, http2=True)
                    return
                known, length = cut(raw)
                head = (self.heads.find(known) if known else None) or parse(raw)
                if head.upgrade == b"websocket" and head.path != WEBSOCKET_PATH:
                    # The bytes that follow are not HTTP, so none of them may be read as a request.
                    raise unknown_path(head.path)
            except TopicsError as error:
                await self._refuse(error)
                return
            request = Http1Request(self, head, head.length if length is None else length, known)
            # A head with a plan was the API's before.
            if head.plan is None and is_page(request.path) and api.origins.admits(request):
                self.buffer = b""
                await self._hand_over(head.plain(), http2=False)
                return
            self.deadline = math.inf
            api.flight.enter()
            try:
                response = await api.handle(request)
                if not request.read and 0 < request.length <= len(self.buffer):
                    self.take(request.length)
                    request.read = True
                keep = head.keep_alive and request.read and not api.flight.leaving
                if response.live is not None or response.upgraded is not None:
                    keep = await self._send_lasting(response, request, keep)
                else:
                    await self._send(
                        response_head.head(response, keep, http_1_0=head.http_1_0), response.body, head.method == "HEAD"
                    )
            finally:
                request.finish()
                api.flight.leave()
            if not keep:
                if not request.read or api.flight.leaving:
                    await self._linger()
                return
            if self.buffer:
                # Pipelined requests never wait for input, so other connections need a turn here.
                await turn()

    # -- reading

    async def _read_head(self) -> bytes | None:
        """Return a whole head, empty line included, or None when the client ended the connection between requests."""
        self.waiting = True
        try:
            return await self._receive_head()
        finally:
            self.waiting = False
            if self.head_hold is not None:
                self.head_hold.release()
                self.head_hold = None

    async def _receive_head(self) -> bytes | None:
        raw = self._raw
        limits = self.limits
        buffer = self.buffer
        begun, empty = False, 0
        self.phase = "idle"
        self.deadline = monotonic() + limits.idle_timeout_ms / 1000
        while True:
            if buffer[:2] == b"\r\n":  # empty lines before a request are allowed, and some old clients send them
                empty += len(buffer)
                buffer = self.buffer = _EMPTY_LINES.sub(b"", buffer, count=1)
                empty -= len(buffer)
                if empty > MAX_HEADER_BYTES:
                    raise invalid("malformed HTTP request: too many empty lines before it")
            end = buffer.find(b"\r\n\r\n")
            if end >= 0:
                self.buffer = buffer[end + 4 :]
                return buffer[: end + 4]
            if buffer not in (b"", b"\r"):
                check_beginning(buffer)
                if not begun:
                    begun = True
                    self.phase = "request head"
                    self.deadline = monotonic() + limits.header_timeout_ms / 1000
                if len(buffer) > SMALL_HEAD_BYTES:
                    self.head_hold = self.head_hold or self.budget.hold(Kind.HEAD)
                    await self.head_hold.grow(MAX_HEADER_BYTES)
            await readable(raw)
            try:
                data = raw.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue
            if not data:
                if begun:
                    raise invalid("malformed HTTP request: the connection ended inside its head")
                return None
            buffer = self.buffer = buffer + data if buffer else data

    def take(self, size: int) -> bytes:
        """Remove and return the first `size` bytes of the buffer."""
        buffer = self.buffer
        if len(buffer) == size:
            self.buffer = b""
            return buffer
        self.buffer = buffer[size:]
        return buffer[:size]

    async def receive_body(self, length: int, expects_continue: bool, hold: Hold) -> bytes:
        """Read the rest of a body that did not arrive with its head. Raises 400, 413, 429 and `ClientGone`."""
        early = bool(self.buffer)
        self.deadline = math.inf
        if length != CHUNKED:
            if length > FREE_BYTES:
                await hold.grow(length)
            if expects_continue and not early:
                await self._ask_for_body()
            pieces = [self.take(len(self.buffer))]
            missing = length - len(pieces[0])
            self.pace.begin()
            while missing:
                pieces.append(await self._receive(missing))
                missing -= len(pieces[-1])
            self.deadline = math.inf
            return b"".join(pieces)
        limit = self.limits.max_body_bytes
        decoder = ChunkDecoder(limit)
        decoder.feed(self.take(len(self.buffer)))
        if not decoder.done:
            await hold.grow(min(FIRST_GROWTH_BYTES, limit))
            if expects_continue and not early:
                await self._ask_for_body()
            self.pace.begin()
            while not decoder.done:
                if len(decoder.body) + CHUNKED_BYTES > hold.size:
                    # The length is unknown, so the hold grows as bytes arrive. The client is not timed while the
                    # connection waits for budget.
                    self.deadline = math.inf
                    since = monotonic()
                    await hold.grow(min(GROWTH * hold.size, limit))
                    self.pace.excuse(monotonic() - since)
                decoder.feed(await self._receive(CHUNKED_BYTES))
        self.buffer = decoder.rest
        body = bytes(decoder.body)
        hold.set(len(body))
        self.deadline = math.inf
        return body

    async def _ask_for_body(self) -> None:
        try:
            await self._send(_CONTINUE, b"", False)
        except OSError:
            raise ClientGone from None

    async def _receive(self, most: int) -> bytes:
        self.phase = "request body"
        self.starved_since = monotonic()
        self.deadline = self.pace.deadline()
        while True:
            await readable(self._raw)
            try:
                data = self._raw.recv(min(most, RECEIVE_BYTES * 4))
            except BlockingIOError:
                continue
            except OSError:
                raise ClientGone from None
            if not data:
                raise invalid("the connection ended before the body was complete")
            self.pace.received += len(data)
            self.starved_since = math.inf
            return data

    async def disconnected(self) -> None:
        """Return when the client has closed its side. A request sent ahead stays in the buffer for its turn."""
        while len(self.buffer) < SMALL_HEAD_BYTES:
            await readable(self._raw)
            try:
                data = self._raw.recv(SMALL_HEAD_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not data:
                return
            self.buffer += data
        await trio.sleep_forever()  # a client that sends this much ahead is not gone; further bytes stay unread

    async def receive_some(self) -> bytes:
        """The next bytes of an upgraded connection; b"" at its end."""
        if self.buffer:
            return self.take(len(self.buffer))
        while True:
            await readable(self._raw)
            try:
                return self._raw.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue

    # -- writing

    async def send_some(self, data: bytes) -> None:
        """Send on an upgraded connection, or a piece of a live response. Sets no deadline: the caller decides how long
        the client may take."""
        await self._send(data, b"", False, forever=True)

    async def _send(self, head: bytes, body: bytes, head_only: bool, *, forever: bool = False) -> None:
        if head_only or len(body) <= GATHER_BYTES:
            data = head if head_only or not body else head + body
            try:
                sent = self._raw.send(data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                await self._send_rest([memoryview(data)[sent:]], sent, forever=forever)
        else:
            await self._send_rest([memoryview(head), memoryview(body)], 0, forever=forever)
        self.deadline = math.inf

    async def _send_rest(self, views: list[memoryview], total: int, *, forever: bool) -> None:
        """Send the rest of a response, of which `total` bytes are sent."""
        limits = self.limits
        begun = 0.0
        while True:
            try:
                sent = self._raw.sendmsg(views) if len(views) > 1 else self._raw.send(views[0])
            except BlockingIOError:
                sent = 0
            total += sent
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if not views:
                return
            if sent:
                views[0] = views[0][sent:]
            self.phase = "idle"  # a client that does not read this response gets no 408 after it
            if not forever:
                now = monotonic()
                begun = begun or now
                self.deadline = due(now, begun, total, limits.body_timeout_ms / 1000, limits.min_download_rate)
            await writable(self._raw)

    async def _send_lasting(self, response: Response, request: Http1Request, keep: bool) -> bool:
        """Send a live response, or upgrade; return whether the connection can be used again. Raises `ClientGone`."""
        await in_task()
        if response.upgraded is not None:
            await self._send(response.body, b"", False)
            await response.upgraded(self)
            return False
        assert response.live is not None
        head = request.head
        keep = keep and not head.http_1_0
        await self._send(response_head.head(response, keep, http_1_0=head.http_1_0), b"", False)
        if head.method == "HEAD":
            return keep

        write = Pieces(self, self._raw, chunked=not head.http_1_0)
        if not await response.live(write, self.disconnected):
            raise ClientGone
        if not head.http_1_0:
            await self._send(b"0\r\n\r\n", b"", False)
        return keep

    async def _refuse(self, error: TopicsError) -> None:
        """Send an error for bytes that are no valid request, and end the connection."""
        self._api.outcomes.refused(error)
        response = responses.failure(error, None)
        await self._send(response_head.head(response, False), response.body, False)
        await self._linger()

    async def _linger(self) -> None:
        """Wait until the client has stopped sending, within limits, before the caller closes. Closing with unread input
        resets the connection, and the reset can overtake the response."""
        self._raw.shutdown(socket.SHUT_WR)
        allowed = 2 * self.limits.max_body_bytes
        until = monotonic() + LINGER_TOTAL_S
        self.phase = "idle"
        with self._api.flight.closes(self):
            while allowed > 0:
                self.deadline = min(monotonic() + LINGER_PAUSE_S, until)
                await readable(self._raw)
                try:
                    data = self._raw.recv(RECEIVE_BYTES)
                except BlockingIOError:
                    continue
                if not data:
                    return
                allowed -= len(data)

    async def _hand_over(self, raw: bytes, *, http2: bool) -> None:
        await in_task()
        self._owned = False
        self.phase = "idle"
        self.deadline = math.inf
        carried = Carried(self, self.limits.idle_timeout_ms) if http2 else None
        await self._handover.serve(self._raw, raw + self.buffer, carried)

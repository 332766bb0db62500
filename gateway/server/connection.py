"""One HTTP/1.1 connection: its task reads requests, has them handled and writes the answers, in order.

Every answer, errors of parsing included, is the API's canonical JSON. A request costs no nursery, cancel scope or timer
of its own: the connection has one cancel scope and a `deadline` that its task moves, and `gateway.server.listener`
sweeps them.

What is not the API's business over HTTP/1.1 (HTTP/2, WebSocket, pages) goes, with the bytes read so far, to `handover`.
"""

from __future__ import annotations

import math
import socket
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

import structlog
import trio
from trio.lowlevel import wait_readable, wait_writable

from gateway.admission.body_budget import FREE_BYTES, Budget, Hold, Kind
from gateway.admission.in_flight import Flight
from gateway.admission.upload_rate import Pace, due
from gateway.api.dispatch import Api
from gateway.contract import responses
from gateway.contract.routes import unknown_path
from gateway.http import response_head, websocket
from gateway.http.chunked_body import ChunkDecoder, too_large
from gateway.http.messages import ClientGone, Request, Response
from gateway.http.request_head import CHUNKED, PREFACE, Head, check_beginning, parse
from gateway.server.http2_connection import Carried
from proto.model.errors import ErrorCode, TopicsError, invalid
from proto.model.limits import MAX_HEADER_BYTES, Limits

RECEIVE_BYTES = 64 << 10
CHUNKED_BYTES = 16 << 10
"""Read at a time of a body in chunked framing: chunks of a byte or two take the processor a thousand times longer."""
LINGER_PAUSE_S = 2.0
"""How long a client whose request was refused may pause while it still sends."""
LINGER_TOTAL_S = 15.0
SMALL_HEAD_BYTES = 8 << 10
"""What each connection may hold uncounted: the beginning of a head, or what came ahead of its turn."""
FIRST_GROWTH_BYTES, GROWTH = 256 << 10, 4
"""How a body of unknown length grows."""
GATHER_BYTES = 64 << 10
"""Bodies above this are sent from where they are; below, joining them with the head is cheaper."""

_log: Any = structlog.get_logger()
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Handover(Protocol):
    """Takes over connections that are not API traffic over HTTP/1.1."""

    def owns(self, path: str) -> bool:
        """Whether a request for this path is served there."""

    async def serve(self, raw: socket.socket, read: bytes, carried: Carried | None) -> None:
        """Serve a connection to its end, beginning with bytes already `read`. Closes it. `carried` is told of the
        streams of one that speaks HTTP/2; without it, the connection has one request of HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class Front:
    """What all connections share."""

    api: Api
    flight: Flight
    limits: Limits
    handover: Handover
    budget: Budget


class Http1Request(Request):
    __slots__ = ("_body", "_connection", "head", "read")

    def __init__(self, connection: Connection, head: Head) -> None:
        path, _, query = head.target.partition("?")
        super().__init__(head.method, path, query, head.headers, connection.budget)
        self.head = head
        self.upgrade = head.upgrade
        self.read = head.length == 0
        """Whether the body is off the connection."""
        self._connection = connection
        self._body = b""

    async def has_body(self) -> bool:
        return self.head.length != 0

    async def body(self) -> bytes:
        if not self.read:
            length = self.head.length
            connection = self._connection
            if length > connection.limits.max_body_bytes:
                raise too_large(connection.limits.max_body_bytes)
            if 0 <= length <= len(connection.buffer):
                self._body = connection.take(length)
                if length > FREE_BYTES:
                    self.hold_body().set(length)
            else:
                self._body = await connection.receive_body(self.head, self.hold_body())
            self.read = True
        return self._body

    async def disconnected(self) -> None:
        await self._connection.disconnected()


class Connection:
    """One client. `deadline` is when `expire` is due, `phase` what the client was doing then."""

    __slots__ = (
        "_front",
        "_owned",
        "_raw",
        "budget",
        "buffer",
        "deadline",
        "expired",
        "head_hold",
        "limits",
        "pace",
        "phase",
        "scope",
        "starved_since",
        "waiting",
    )

    def __init__(self, front: Front, raw: socket.socket) -> None:
        self.limits = front.limits
        self._front = front
        self.buffer = b""
        self.scope = trio.CancelScope()
        self.deadline = math.inf
        self.phase = "idle"
        self.expired = False
        self.budget = front.budget
        self.head_hold: Hold | None = None
        self.waiting = False
        """Between requests, or in the middle of a head: nothing is lost but patience when this connection ends."""
        self.starved_since = math.inf
        """When the client last sent a part of a body that is still awaited."""
        self.pace = Pace(front.limits)
        self._raw = raw
        self._owned = True

    async def run(self) -> None:
        try:
            with self.scope:
                await self._serve()
            if self.expired and self.phase != "idle":
                with trio.CancelScope() as self.scope:
                    self.deadline = math.inf
                    await self._refuse(
                        TopicsError(ErrorCode.REQUEST_TIMEOUT, f"the client sent its {self.phase} too slowly")
                    )
        except (OSError, ClientGone):
            pass  # the client is gone, and with it whoever could be told
        except Exception:
            _log.exception("connection_failed")
        finally:
            if self._owned:
                self._raw.close()

    def expire(self) -> None:
        """End the connection; a client in the middle of a request is told why."""
        self.expired = True
        self.deadline = math.inf
        self.scope.cancel()
        if not self._owned:
            # What Hypercorn is sending it shields from being cancelled, also to a client that does not read.
            try:
                self._raw.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already

    def evict(self) -> None:
        """End the connection without a word, for somebody else."""
        self.phase = "idle"
        self.expire()

    async def _serve(self) -> None:
        front = self._front
        while True:
            try:
                raw = await self._read_head()
                if raw is None:
                    return
                if raw == PREFACE:
                    await self._hand_over(raw, http2=True)
                    return
                head = parse(raw)
            except TopicsError as error:
                await self._refuse(error)
                return
            request = Http1Request(self, head)
            if head.upgrade == b"websocket" and request.path != websocket.PATH:
                # What follows is not HTTP, so none of it may be read as a request.
                await self._refuse(unknown_path(request.path))
                return
            if front.handover.owns(request.path) and front.api.origins.admits(request):
                self.buffer = b""
                await self._hand_over(head.plain(), http2=False)
                return
            self.deadline = math.inf
            front.flight.enter()
            try:
                response = await front.api.handle(request)
                if not request.read and 0 < head.length <= len(self.buffer):
                    self.take(head.length)
                    request.read = True
                keep = head.keep_alive and request.read and not front.flight.draining
                if response.upgraded is not None:
                    keep = False
                    await self._send(response.body, b"", False)
                    await response.upgraded(self)
                elif response.live is not None:
                    keep = await self._send_live(response, request, keep)
                else:
                    await self._send(
                        response_head.head(response, keep, http_1_0=head.http_1_0), response.body, head.method == "HEAD"
                    )
            finally:
                request.finish()
                front.flight.leave()
            if not keep:
                if not request.read:
                    await self._linger()
                return
            if self.buffer:
                # Pipelined requests need no waiting for input, but other connections want their turn.
                await trio.lowlevel.checkpoint()

    # -- reading

    async def _read_head(self) -> bytes | None:
        """A whole head, empty line included; None when the client ended the connection between requests."""
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
        begun = False
        self.phase = "idle"
        self.deadline = monotonic() + limits.idle_timeout_ms / 1000
        while True:
            while buffer[:2] == b"\r\n":
                buffer = buffer[2:]  # empty lines before a request are allowed, and some old clients send them
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
            await wait_readable(raw)
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
        """The first bytes of what was read ahead."""
        buffer = self.buffer
        if len(buffer) == size:
            self.buffer = b""
            return buffer
        self.buffer = buffer[size:]
        return buffer[:size]

    async def receive_body(self, head: Head, hold: Hold) -> bytes:
        """The rest of a body that did not come with its head. Raises 400, 413, 429."""
        early = bool(self.buffer)
        self.deadline = math.inf
        if head.length != CHUNKED:
            await hold.grow(head.length)
            if head.expects_continue and not early:
                await self._ask_for_body()
            pieces = [self.take(len(self.buffer))]
            missing = head.length - len(pieces[0])
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
            if head.expects_continue and not early:
                await self._ask_for_body()
            self.pace.begin()
            while not decoder.done:
                if len(decoder.body) + CHUNKED_BYTES > hold.size:
                    # How long it will be is unknown: it gets more as it comes, and meanwhile its client waits.
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
            await wait_readable(self._raw)
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
        """Return when the client closed its side. A request sent ahead is kept for its turn."""
        while len(self.buffer) < SMALL_HEAD_BYTES:
            await wait_readable(self._raw)
            try:
                data = self._raw.recv(SMALL_HEAD_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not data:
                return
            self.buffer += data
        await trio.sleep_forever()  # whoever sends that much ahead is not gone; what follows stays unread

    async def receive_some(self) -> bytes:
        """For an upgraded connection: what came, b"" at its end."""
        if self.buffer:
            return self.take(len(self.buffer))
        while True:
            await wait_readable(self._raw)
            try:
                return self._raw.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue

    # -- writing

    async def send_some(self, data: bytes) -> None:
        """For an upgraded connection, which decides itself how long its client may take."""
        await self._send(data, b"", False, forever=True)

    async def _send(self, head: bytes, body: bytes, head_only: bool, *, forever: bool = False) -> None:
        if head_only or not body:
            views = [memoryview(head)]
        elif len(body) <= GATHER_BYTES:
            views = [memoryview(head + body)]
        else:
            views = [memoryview(head), memoryview(body)]
        limits = self.limits
        total, begun = 0, 0.0
        while True:
            try:
                sent = self._raw.sendmsg(views) if len(views) > 1 else self._raw.send(views[0])
            except BlockingIOError:
                sent = 0
            total += sent
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if not views:
                break
            if sent:
                views[0] = views[0][sent:]
            self.phase = "idle"  # who does not read his answer gets no other one
            if not forever:
                now = monotonic()
                begun = begun or now
                self.deadline = due(now, begun, total, limits.body_timeout_ms / 1000, limits.min_download_rate)
            await wait_writable(self._raw)
        self.deadline = math.inf

    async def _send_live(self, response: Response, request: Http1Request, keep: bool) -> bool:
        """Let an answer send as it likes; returns whether the connection can be used again."""
        assert response.live is not None
        head = request.head
        keep = keep and not head.http_1_0
        await self._send(response_head.head(response, keep, http_1_0=head.http_1_0), b"", False)
        if head.method == "HEAD":
            return keep

        async def write(piece: bytes) -> None:
            # How long a client may take is up to the answer.
            await self._send(
                piece if head.http_1_0 else b"%x\r\n%b\r\n" % (len(piece), piece), b"", False, forever=True
            )

        if not await response.live(write, self.disconnected):
            raise ClientGone
        if not head.http_1_0:
            await self._send(b"0\r\n\r\n", b"", False)
        return keep

    async def _refuse(self, error: TopicsError) -> None:
        """Answer what could not be read as a request, and end the connection."""
        self._front.api.refused(error)
        response = responses.failure(error, None)
        await self._send(response_head.head(response, False), response.body, False)
        await self._linger()

    async def _linger(self) -> None:
        """Close only after the client has stopped sending: closing with unread input resets the connection, and the
        reset can overtake the answer."""
        self._raw.shutdown(socket.SHUT_WR)
        allowed = 2 * self.limits.max_body_bytes
        until = monotonic() + LINGER_TOTAL_S
        self.phase = "idle"
        while allowed > 0:
            self.deadline = min(monotonic() + LINGER_PAUSE_S, until)
            await wait_readable(self._raw)
            try:
                data = self._raw.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue
            if not data:
                return
            allowed -= len(data)

    async def _hand_over(self, raw: bytes, *, http2: bool) -> None:
        self._owned = False
        self.phase = "idle"
        self.deadline = math.inf
        carried = Carried(self, self.limits.idle_timeout_ms) if http2 else None
        await self._front.handover.serve(self._raw, raw + self.buffer, carried)

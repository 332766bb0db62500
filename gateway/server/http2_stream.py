"""One HTTP/2 stream: the request as it arrives, and its response as the client makes room for it.

The unsent bytes of a stream stay with it (`left`, no copy) until the connection has handed it to the kernel. Until then
its writer waits and what the response holds of the budget stays counted: a client that closes its window holds no more
than one that does not read its socket.

    waits for            no longer than                                                     then
    bytes of the body    `body_timeout_ms` a pause, at `min_upload_rate`                    408
    room for an answer   `body_timeout_ms` a pause, at `min_download_rate`                  the stream is reset
    room for a piece     what the live response allows, `slow_consumer_timeout_ms`          the stream is reset
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from http import HTTPStatus
from time import monotonic
from typing import Protocol

import trio

from gateway.admission.body_budget import FREE_BYTES, Budget, Hold, Kind
from gateway.admission.transfer_rate import Pace, due
from gateway.http import response_head
from gateway.http.chunked_body import too_large
from gateway.http.messages import ClientGone, Request, Response
from gateway.http.request_head import headers_too_large, origin_form
from gateway.server.connection import FIRST_GROWTH_BYTES, GROWTH, SMALL_HEAD_BYTES
from gateway.server.http2_connection import Carried
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import MAX_HEADER_COUNT, Limits

FIRST_WINDOW_BYTES, BODY_WINDOW_BYTES = 16 << 10, 64 << 10
"""Bytes that a client may send of a body ahead of the gateway: before the gateway reads the body, and then."""
NO_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_Headers = Iterable[tuple[bytes, bytes]]


class Link(Protocol):
    """The connection as its streams see it. All methods but `acknowledge` raise `ClientGone`."""

    carried: Carried
    limits: Limits

    def send_head(self, stream: Http2Stream, fields: list[tuple[bytes, bytes]], *, end: bool = False) -> None: ...

    def send_left(self, stream: Http2Stream) -> None:
        """Send the rest of `stream` as the client makes room for it; call its `moved` for each part."""

    def widen(self, stream: Http2Stream, size: int) -> None:
        """Let the client send `size` bytes more."""

    def peer(self) -> str:
        """The address of the client."""

    def acknowledge(self, stream: Http2Stream, size: int) -> None:
        """Let the client send as many bytes as were taken from the stream."""


class Http2Stream(Request):
    __slots__ = (
        "_arrived",
        "_body",
        "_changed",
        "_expects",
        "_head_hold",
        "_link",
        "_pace",
        "_target",
        "_unread",
        "ending",
        "gone",
        "left",
        "number",
        "passed",
        "queued",
        "too_many",
        "whole",
    )

    def __init__(self, link: Link, number: int, headers: _Headers, budget: Budget, *, whole: bool) -> None:
        fields: dict[bytes, bytes] = {}
        count = size = 0
        for name, value in headers:
            count += 1
            size += len(name) + len(value)
            fields[name] = fields[name] + b", " + value if name in fields else value
        method, self._target = fields.pop(b":method", b""), fields.pop(b":path", b"")
        if (authority := fields.pop(b":authority", None)) is not None:
            fields[b"host"] = authority
        for name in (b":scheme", b":protocol"):
            fields.pop(name, None)
        super().__init__(method.decode("latin-1"), "", "", fields, budget)
        self.number = number
        self._link = link
        self.too_many = count > MAX_HEADER_COUNT
        self._head_hold = budget.hold(Kind.HEAD)
        self._head_hold.set(size if size > SMALL_HEAD_BYTES else 0)
        self._pace = Pace(link.limits)
        self._body: bytes | None = None
        self._arrived: deque[bytes] = deque()
        self._expects = fields.get(b"expect", b"").lower() == b"100-continue"
        """Whether the client waits to be asked for the body."""
        self._unread = 0
        """Bytes of `_arrived`, padding included, that the client may not send again yet."""
        self._changed = trio.lowlevel.ParkingLot()
        self.whole = whole
        """Whether the client has sent the end of the body."""
        self.gone = False
        """Whether the client has reset the stream, or is gone."""
        self.left = memoryview(b"")
        """Bytes that wait until the client makes room."""
        self.ending = False
        """Whether the stream ends behind `left`."""
        self.queued = False
        """Whether the kernel does not have all of `left`, or of the end, yet."""
        self.passed = 0
        """Bytes of the response that the kernel has."""

    def resolve(self) -> None:
        """Read path and query from the head. Raises `400`, `431`."""
        if self.too_many:
            raise headers_too_large()
        self.path, _, self.query = origin_form(self._target).partition("?")

    def finish(self) -> None:
        super().finish()
        self._head_hold.release()
        self.left = memoryview(b"")
        if self._unread:
            self._link.acknowledge(self, self._unread)
            self._unread = 0

    # What the connection calls

    def receives(self, data: bytes, size: int) -> None:
        """Take bytes of the body; they count as `size` bytes of the window."""
        self._unread += size
        if data:
            self._arrived.append(data)
            self._changed.unpark_all()

    def received_all(self) -> None:
        self.whole = True
        self._changed.unpark_all()

    def lost(self) -> None:
        """Note that the client takes nothing of the stream any more."""
        self.gone = True
        self.queued = False
        self.left = memoryview(b"")
        self._changed.unpark_all()

    def moved(self, size: int) -> None:
        """Note that the kernel has `size` more bytes of the response."""
        self.passed += size
        self._changed.unpark_all()

    # The request

    def peer(self) -> str:
        return self._link.peer()

    async def has_body(self) -> bool:
        """Whether a body follows. HTTP/2 frames bodies itself: without Content-Length, this waits for a first piece or
        for the end of the stream."""
        if b"content-length" in self.headers:
            return self.headers[b"content-length"] != b"0"
        if self._body is None:
            self._pace.begin()
            while not self._arrived and not self.whole:
                await self._more()
        return bool(self._arrived or self._body)

    async def body(self) -> bytes:
        if self._body is None:
            announced = self.headers.get(b"content-length", b"")
            limit = self._link.limits.max_body_bytes
            length = int(announced) if announced.isdigit() else min(FIRST_GROWTH_BYTES, limit)
            if length > limit:
                raise too_large(limit)
            hold = self.hold_body()
            if length > FREE_BYTES:
                await hold.grow(length)
            else:
                hold.set(length)  # no wait: the first window lets it come in any case
            self._body = await self._read(hold, limit)
            hold.set(len(self._body))
        return self._body

    async def _read(self, hold: Hold, limit: int) -> bytes:
        body = bytearray()
        self._pace.begin()
        if not self.whole and hold.size > FIRST_WINDOW_BYTES:
            self._link.widen(self, BODY_WINDOW_BYTES - FIRST_WINDOW_BYTES)
        while self._arrived or not self.whole:
            if not self._arrived:
                await self._more()
            # Only for bytes that are there: an end may follow in a frame of its own, and needs no memory.
            if len(body) + sum(map(len, self._arrived)) > hold.size:
                since = monotonic()
                await hold.grow(min(max(GROWTH * len(body), FIRST_GROWTH_BYTES), limit))
                self._pace.excuse(monotonic() - since)
            body += b"".join(self._arrived)
            self._arrived.clear()
            unread, self._unread = self._unread, 0
            self._link.acknowledge(self, unread)
            self._pace.received = len(body)
            if len(body) > limit:
                raise too_large(limit)
        return bytes(body)

    async def _more(self) -> None:
        """Wait for more of the body, or its end. Raises `408` when the client is too slow, and `ClientGone`."""
        if self.gone:
            raise ClientGone
        if self._expects:
            self._expects = False
            self._link.send_head(self, [(b":status", b"100")])
        carried = self._link.carried
        carried.wants(self)
        with trio.move_on_after(max(self._pace.deadline() - monotonic(), 0)) as patience:
            await self._changed.park()
        carried.has(self)
        if self.gone:
            raise ClientGone
        if patience.cancelled_caught:
            raise TopicsError(ErrorCode.REQUEST_TIMEOUT, "the client sent its request body too slowly")

    async def disconnected(self) -> None:
        while not self.gone:
            await self._changed.park()

    # The response

    async def answer(self, response: Response) -> None:
        """Send a response; return when the kernel has all of it. Raises `ClientGone` if the client left, or is too
        slow."""
        fields = [(b":status", b"%d" % response.status), *response_head.fields(response)]
        if self.method == "HEAD" or response.status in NO_BODY:
            self._link.send_head(self, fields, end=True)
            return
        self._link.send_head(self, fields)
        if response.live is None:
            await self._send_body(response.body)
            return
        if not await response.live(self._write, self.disconnected):
            raise ClientGone
        await self._send_body(b"")

    async def _write(self, piece: bytes) -> None:
        """Send a piece of a live response. The response decides how long its client may take."""
        if piece:
            self._send(piece)
        while self.queued:
            await self._changed.park()
            self._check()

    async def _send_body(self, body: bytes) -> None:
        """Send the last bytes of the response, and its end."""
        limits = self._link.limits
        self.ending = True
        self._send(body)
        begun = moved_at = monotonic()
        before = passed = self.passed
        while self.queued:
            if self.passed > passed:
                passed, moved_at = self.passed, monotonic()
            by = due(moved_at, begun, passed - before, limits.body_timeout_ms / 1000, limits.min_download_rate)
            with trio.move_on_after(max(by - monotonic(), 0)) as patience:
                await self._changed.park()
            self._check()
            if patience.cancelled_caught:
                raise ClientGone

    def _send(self, piece: bytes) -> None:
        self._check()
        self.left = memoryview(piece)
        self.queued = True
        self._link.send_left(self)

    def _check(self) -> None:
        if self.gone:
            raise ClientGone

"""One request of an HTTP/1.1 connection, and the pieces of its live response."""

from __future__ import annotations

import socket
from typing import Any, Protocol

from gateway.admission.body_budget import FREE_BYTES, Budget, Hold
from gateway.http.chunked_body import too_large
from gateway.http.known_heads import KnownHeads
from gateway.http.messages import DirectWrite, Request
from gateway.http.request_head import Head
from proto.model.limits import Limits


class Wire(Protocol):
    """The connection (`gateway.server.connection`) as its requests see it. `buffer` has the bytes that were received
    and not taken yet."""

    buffer: bytes
    budget: Budget
    heads: KnownHeads
    limits: Limits

    def take(self, size: int) -> bytes: ...

    async def receive_body(self, length: int, expects_continue: bool, hold: Hold) -> bytes: ...

    async def disconnected(self) -> None: ...

    async def send_some(self, data: bytes) -> None: ...

    def peer(self) -> str: ...


class Http1Request(Request):
    __slots__ = ("_body", "_connection", "_cut", "head", "length", "read")

    def __init__(self, connection: Wire, head: Head, length: int, cut: bytes) -> None:
        super().__init__(head.method, head.path, head.query, head.headers, connection.budget)
        self.head = head
        self.length = length
        """Bytes of the body, or `CHUNKED`. Requests with the same `head` differ in it."""
        self._cut = cut
        self.plan = head.plan
        self.upgrade = head.upgrade
        self.read = length == 0
        """Whether the whole body has been read from the connection."""
        self._connection = connection
        self._body = b""

    def remember(self, plan: Any) -> None:
        if self._cut and not self.head.upgrade:
            self.head.plan = plan
            self._connection.heads.keep(self._cut, self.head)

    def peer(self) -> str:
        return self._connection.peer()

    async def has_body(self) -> bool:
        return self.length != 0

    async def body(self) -> bytes:
        if not self.read:
            length = self.length
            connection = self._connection
            if length > connection.limits.max_body_bytes:
                raise too_large(connection.limits.max_body_bytes)
            if 0 <= length <= len(connection.buffer):
                self._body = connection.take(length)
                if length > FREE_BYTES:
                    self.hold_body().set(length)
            else:
                self._body = await connection.receive_body(length, self.head.expects_continue, self.hold_body())
            self.read = True
        return self._body

    async def disconnected(self) -> None:
        await self._connection.disconnected()


class Pieces(DirectWrite):
    """The pieces of a live response. The response decides how long its client may take."""

    def __init__(self, connection: Wire, raw: socket.socket, *, chunked: bool) -> None:
        super().__init__()
        self._connection = connection
        self._raw = raw
        self._chunked = chunked

    def _framed(self, piece: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked and piece else piece

    async def __call__(self, piece: bytes) -> None:
        unsent, self.unsent = self.unsent, b""
        await self._connection.send_some(unsent + self._framed(piece))
        self.sent_bytes += len(piece)

    def offer(self, piece: bytes) -> bool:
        if self.unsent:
            return False
        data = self._framed(piece)
        try:
            sent = self._raw.send(data)
        except OSError:
            return False  # the connection takes nothing now, or is gone, and the next call says so
        self.unsent = data[sent:]
        self.sent_bytes += len(piece)
        return True

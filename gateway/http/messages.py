"""Request and response values: HTTP as a handler sees it, the same for every server.

Each server implements `Request` once (`gateway.server.http1_request`, `gateway.server.http2_stream`). Handlers and
their tests need only this module.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.admission.body_budget import Budget, Hold, Kind
from gateway.admission.slots import Slot
from gateway.errors import GatewayError
from proto.model.keys import Key
from proto.process import trace

JSON = b"application/json"
Headers = tuple[tuple[bytes, bytes], ...]
"""Names and values, in order."""


class Shared(Headers):
    """Headers that many responses have: their lines are kept."""

    __slots__ = ()


class ClientGone(GatewayError):
    """The client closed its connection while its request was being served, so no response can be sent."""


class Request(ABC):
    """One request. `path` is the raw path, percent-encoded, without the query; `query` is raw too, without its `?`.
    `headers` has lower-case names; the values of a repeated header are joined by `, `.

    `slot` and the holds are the request's share of the caps and of memory. Its server calls `finish` when the request
    is over, however it ended.
    """

    __slots__ = (
        "answer_hold",
        "body_hold",
        "budget",
        "headers",
        "key",
        "method",
        "path",
        "plan",
        "query",
        "received_bytes",
        "slot",
        "traceparent",
        "upgrade",
    )

    def __init__(self, method: str, path: str, query: str, headers: dict[bytes, bytes], budget: Budget) -> None:
        self.budget = budget
        self.body_hold: Hold | None = None
        self.answer_hold: Hold | None = None
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.slot: Slot | None = None
        self.key: Key | None = None
        """The client's key, once it has been identified."""
        self.plan: Any = None
        """The API's result for an earlier request with an equal head."""
        self.received_bytes = 0
        """Bytes of the body as received, before decompression; set once the body has been read."""
        self.traceparent = ""
        self.upgrade = b""
        """The protocol of an Upgrade header, in lower case; b"" where the client may not change the protocol."""

    def hold_body(self) -> Hold:
        """The hold on memory for the body, until `finish`."""
        if self.body_hold is None:
            self.body_hold = self.budget.hold(Kind.BODY, self.key)
        return self.body_hold

    def hold_answer(self) -> Hold:
        """The hold on memory for the response, until `finish`."""
        if self.answer_hold is None:
            self.answer_hold = self.budget.hold(Kind.ANSWER, self.key)
        return self.answer_hold

    def finish(self) -> None:
        if self.body_hold is not None:
            self.body_hold.release()
        if self.answer_hold is not None:
            self.answer_hold.release()
        if self.slot is not None:
            self.slot.release()
        if self.traceparent:
            trace.begin("")

    def remember(self, plan: Any) -> None:
        """Keep what the API found out, where the server can also for later requests with an equal head."""
        self.plan = plan

    def header(self, name: bytes) -> bytes:
        """The value of a header; b"" when it is absent. `name` may have any case."""
        return self.headers.get(name.lower(), b"")

    def peer(self) -> str:
        """The address of the client, or of the proxy before it; "" if it is not known any more."""
        return ""

    @abstractmethod
    async def has_body(self) -> bool:
        """Whether a body was announced or has begun. A chunked body may still turn out empty."""

    @abstractmethod
    async def body(self) -> bytes:
        """Read and return the whole body. Raises `413 payload_too_large` before reading more than the limit, `400` when
        the client ends the body early or breaks its framing, `429 throttled` when too many bytes are in flight, and
        `ClientGone`."""

    @abstractmethod
    async def disconnected(self) -> None:
        """Return once the client is gone. At most one task may call it at a time, and only after `body`."""


Write = Callable[[bytes], Awaitable[None]]
"""Sends a piece; returns when the connection has taken it."""


def address_of(raw: socket.socket) -> str:
    """The address of a connection's other end, without its port; "" if there is none any more."""
    try:
        name = raw.getpeername()
    except OSError:
        return ""
    return str(name[0]) if isinstance(name, tuple) else ""


class DirectWrite(ABC):
    """A `Write` that can also take a piece without waiting, so that many streams need no turn of their tasks.

    The next call sends the bytes that an offered piece left first; an empty piece adds none."""

    def __init__(self) -> None:
        self.unsent = b""
        """The bytes that an offered piece left."""
        self.sent_bytes = 0
        """Bytes of all pieces that were taken."""

    @abstractmethod
    async def __call__(self, piece: bytes) -> None: ...

    @abstractmethod
    def offer(self, piece: bytes) -> bool:
        """Take a piece without waiting. Returns False if nothing of it could be taken. No call may be in progress."""


Gone = Callable[[], Awaitable[None]]
"""Returns when the client is gone."""


class Channel(Protocol):
    """The bytes of a connection that no longer speaks HTTP. Both methods raise OSError when the client is gone."""

    async def receive_some(self) -> bytes:
        """Wait for bytes and return them; b"" at the end of the connection."""

    async def send_some(self, data: bytes) -> None:
        """Send `data`; return when the connection has taken all of it."""


@dataclass(slots=True)
class Response:
    """A response. `live`, where given, replaces `body` for a long-lived response: it sends pieces as they arise and
    watches for the client's end itself. It returns whether the response reached its own end; if not, the connection
    cannot be used again.

    `upgraded` takes over the connection once `body` is sent. `body` is then a whole HTTP head with status 101."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: Headers = ()
    live: Callable[[Write, Gone], Awaitable[bool]] | None = None
    figures: dict[str, float] | None = None
    """Durations of the request's parts in the shard, in ms, by name."""
    upgraded: Callable[[Channel], Awaitable[None]] | None = None

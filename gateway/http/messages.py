"""Request and response values: what a handler sees of HTTP, whichever server runs it.

`Request` is implemented once per server (`gateway.server.listener`, `gateway.server.asgi`); handlers and their tests
need only this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.admission.body_budget import Budget, Hold, Kind
from gateway.admission.slots import Slot
from proto.model.keys import Key
from proto.process import trace

JSON = b"application/json"


class ClientGone(Exception):
    """The client closed its connection while its request was being served. Nobody is left to answer."""


class Request(ABC):
    """One request. `path` is the raw path, percent-encoded, without the query; `query` is raw too, without its `?`.
    `headers` has lower-case names; a header that came more than once has its values joined by `, `.

    `slot` and the holds are what the request has of caps and of memory; its server calls `finish` when it is over,
    however it ended.
    """

    __slots__ = (
        "answer_hold",
        "body_hold",
        "budget",
        "headers",
        "key",
        "method",
        "path",
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
        """Who asks, once that is known."""
        self.received_bytes = 0
        """Of the body, once it is here, as it came."""
        self.traceparent = ""
        self.upgrade = b""
        """The protocol that the client would rather speak, and may, in lower case."""

    def hold_body(self) -> Hold:
        """What is counted for the body, until `finish`."""
        if self.body_hold is None:
            self.body_hold = self.budget.hold(Kind.BODY, self.key)
        return self.body_hold

    def hold_answer(self) -> Hold:
        """What is counted for the answer, until `finish`."""
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

    def header(self, name: bytes) -> bytes:
        """The value of a header, any case, or b"" without one."""
        return self.headers.get(name.lower(), b"")

    @abstractmethod
    async def has_body(self) -> bool:
        """Whether a body was announced or has begun. A chunked one may still turn out empty."""

    @abstractmethod
    async def body(self) -> bytes:
        """The whole body. Errors: `413 payload_too_large`, before more than the limit was read; `400` when the
        client ends it early or breaks its framing; `429 throttled` when too many bytes are in flight; `ClientGone`."""

    @abstractmethod
    async def disconnected(self) -> None:
        """Return once the client is gone. Never more than one caller at a time, and only after `body`."""


Write = Callable[[bytes], Awaitable[None]]
"""Sends a piece, and returns when the connection has taken it."""
Gone = Callable[[], Awaitable[None]]
"""Returns when the client is gone."""


class Channel(Protocol):
    """A connection's bytes, once it no longer speaks HTTP. Both raise OSError when the client is gone."""

    async def receive_some(self) -> bytes:
        """What came; b"" when there will be no more."""

    async def send_some(self, data: bytes) -> None:
        """Returns when the connection has taken all of it."""


@dataclass(slots=True)
class Response:
    """An answer. `live`, where given, takes the place of `body`, for answers that last: it sends pieces when it has
    some, for as long as it likes, and watches for the client's end itself. It returns whether the answer came to its
    own end; if not, the connection is of no use.

    `upgraded` takes over the connection once `body` is sent, which is then a whole HTTP head: status 101."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    live: Callable[[Write, Gone], Awaitable[bool]] | None = None
    figures: dict[str, float] | None = None
    """What the shard says of the request's parts, in ms."""
    upgraded: Callable[[Channel], Awaitable[None]] | None = None

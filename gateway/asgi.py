"""The API as an ASGI application, for the connections Hypercorn serves; paths the pages own go on to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from time import monotonic
from typing import Any, Protocol

import trio

from gateway import answers, websocket
from gateway.api import Api
from gateway.budget import Budget
from gateway.chunks import too_large
from gateway.flight import Flight
from gateway.http import ClientGone, Request, Response
from gateway.pace import Pace
from gateway.routes import unknown_path
from proto.errors import ErrorCode, TopicsError
from proto.limits import Limits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Pages(Protocol):
    """An ASGI application and the paths it serves."""

    def owns(self, path: str) -> bool: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class AsgiRequest(Request):
    __slots__ = ("_body", "_budget", "_limit", "_pace", "_receive", "_scope", "reserved")

    def __init__(self, scope: Scope, receive: Receive, limits: Limits, budget: Budget) -> None:
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers[name] = headers[name] + b", " + value if name in headers else value
        super().__init__(
            scope["method"], scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1"), headers
        )
        self.reserved = 0
        self._receive = receive
        self._limit = limits.max_body_bytes
        self._pace = Pace(limits)
        self._budget = budget
        self._body: bytes | None = None

    @property
    def has_body(self) -> bool:
        return b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"

    async def body(self) -> bytes:
        if self._body is None:
            announced = self.headers.get(b"content-length", b"")
            length = int(announced) if announced.isdigit() else self._limit
            if length > self._limit:
                raise too_large(self._limit)
            self.reserved = await self._budget.reserve(length)
            self._body = await self._read()
            self.reserved = self._budget.shrink(self.reserved, len(self._body))
        return self._body

    async def _read(self) -> bytes:
        pieces: list[bytes] = []
        size = 0
        more = True
        self._pace.begin()
        while more:
            with trio.move_on_after(max(self._pace.deadline() - monotonic(), 0)) as patience:
                message = await self._receive()
            if patience.cancelled_caught:
                raise TopicsError(ErrorCode.REQUEST_TIMEOUT, "the client sent its request body too slowly")
            if message["type"] != "http.request":
                raise ClientGone
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            self._pace.received = size
            if size > self._limit:
                raise too_large(self._limit)
            more = message.get("more_body", False)
        return b"".join(pieces)

    async def disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class AsgiApi:
    """The ASGI application Hypercorn runs."""

    def __init__(self, api: Api, flight: Flight, limits: Limits, budget: Budget, pages: Pages) -> None:
        self._api = api
        self._flight = flight
        self._limits = limits
        self._budget = budget
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._flight.enter()
        try:
            if scope["type"] == "http":
                await self._http(scope, receive, send)
            elif scope["type"] == "websocket":
                await receive()
                await _refuse_websocket(scope, send)
        except ClientGone:
            pass
        finally:
            self._flight.leave()

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._pages.owns(scope["path"]):
            await self._page(scope, receive, send)
            return
        request = AsgiRequest(scope, receive, self._limits, self._budget)
        try:
            await _answer(await self._api.handle(request), request, send)
        finally:
            request.finish()
            if request.reserved:
                self._budget.release(request.reserved)

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the pages' application, and keep it from cancelling its own last send:

        1. it sends the end of the body
        2. inside that call Hypercorn tells it that the exchange is over (`http.disconnect`), then closes
        3. it takes that for a client that left and cancels the task that is sending, so nothing is closed
        """
        answered = False

        async def sent(message: dict[str, Any]) -> None:
            nonlocal answered
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                answered = True
            await send(message)

        async def received() -> MutableMapping[str, Any]:
            message = await receive()
            if answered:
                await trio.sleep_forever()
            return message

        await self._pages(scope, received, sent)


def _headers(response: Response) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", response.content_type), *response.headers]


async def _answer(response: Response, request: AsgiRequest, send: Send) -> None:
    headers = _headers(response)
    if response.live is None:
        headers.append((b"content-length", b"%d" % len(response.body)))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    if response.live is not None and request.method != "HEAD":

        async def write(piece: bytes) -> None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})

        if not await response.live(write, request.disconnected):
            raise ClientGone
    await send({"type": "http.response.body", "body": response.body, "more_body": False})


async def _refuse_websocket(scope: Scope, send: Send) -> None:
    """Answer an upgrade over HTTP/2: WebSocket is spoken over HTTP/1.1 only."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    known = scope["path"] == websocket.PATH
    response = answers.failure(websocket.not_an_upgrade() if known else unknown_path(scope["path"]), None)
    headers = [*_headers(response), (b"content-length", b"%d" % len(response.body))]
    await send({"type": "websocket.http.response.start", "status": response.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": response.body, "more_body": False})

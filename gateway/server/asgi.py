"""The ASGI application of the API, for connections that Hypercorn serves. Passes requests for pages on to the pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from time import monotonic
from typing import Any, Protocol

import trio

from gateway.admission.body_budget import Budget, Hold
from gateway.admission.in_flight import Flight
from gateway.admission.transfer_rate import Pace
from gateway.api.dispatch import Api
from gateway.contract import responses
from gateway.contract.routes import unknown_path
from gateway.http import upgrade
from gateway.http.chunked_body import too_large
from gateway.http.messages import ClientGone, Request, Response
from gateway.server.connection import FIRST_GROWTH_BYTES, GROWTH
from gateway.server.http2_connection import Carried
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Pages(Protocol):
    """An ASGI application and the paths it serves."""

    def owns(self, path: str) -> bool: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class AsgiRequest(Request):
    __slots__ = ("_begun", "_body", "_carried", "_ended", "_limit", "_pace", "_receive")

    def __init__(
        self, scope: Scope, receive: Receive, limits: Limits, budget: Budget, carried: Carried | None = None
    ) -> None:
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers[name] = headers[name] + b", " + value if name in headers else value
        super().__init__(
            scope["method"],
            scope["raw_path"].decode("latin-1"),
            scope["query_string"].decode("latin-1"),
            headers,
            budget,
        )
        self._receive = receive
        self._limit = limits.max_body_bytes
        self._pace = Pace(limits)
        self._body: bytes | None = None
        self._carried = carried
        self._begun = b""
        """The beginning of the body, read early because only its bytes tell whether there is one."""
        self._ended = False
        """Whether the client has sent the end of the body."""

    async def has_body(self) -> bool:
        """Whether a body follows. HTTP/2 frames bodies itself: without Content-Length, this waits for a first piece
        or for the end of the stream."""
        if b"content-length" in self.headers:
            return self.headers[b"content-length"] != b"0"
        if self._body is None and not self._begun:
            self._pace.begin()
            while not self._begun and not self._ended:
                self._begun = await self._piece()
        return bool(self._begun or self._body)

    async def body(self) -> bytes:
        if self._body is None:
            announced = self.headers.get(b"content-length", b"")
            length = int(announced) if announced.isdigit() else min(FIRST_GROWTH_BYTES, self._limit)
            if length > self._limit:
                raise too_large(self._limit)
            hold = self.hold_body()
            await hold.grow(length)
            self._body = await self._read(hold)
            hold.set(len(self._body))
        return self._body

    async def _read(self, hold: Hold) -> bytes:
        body = bytearray(self._begun)
        self._begun = b""
        self._pace.begin()
        while not self._ended:
            if len(body) >= hold.size:
                since = monotonic()
                await hold.grow(min(max(GROWTH * len(body), FIRST_GROWTH_BYTES), self._limit))
                self._pace.excuse(monotonic() - since)
            body += await self._piece()
            self._pace.received = len(body)
            if len(body) > self._limit:
                raise too_large(self._limit)
        return bytes(body)

    async def _piece(self) -> bytes:
        """The next piece of the body, possibly b"". Sets `_ended` when it was the last. Raises `408` when the client
        is too slow, and `ClientGone`."""
        if self._carried is not None:
            self._carried.wants(self)
        with trio.move_on_after(max(self._pace.deadline() - monotonic(), 0)) as patience:
            message = await self._receive()
        if self._carried is not None:
            self._carried.has(self)
        if patience.cancelled_caught:
            raise TopicsError(ErrorCode.REQUEST_TIMEOUT, "the client sent its request body too slowly")
        if message["type"] != "http.request":
            raise ClientGone
        self._ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    async def disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class AsgiApi:
    """The ASGI application that Hypercorn runs."""

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
        carried: Carried | None = scope.get("state", {}).get("carried")
        request = AsgiRequest(scope, receive, self._limits, self._budget, carried)
        if carried is not None:
            carried.opened(request)
        try:
            await self._carry_out(request, scope, receive, send)
        finally:
            if carried is not None:
                carried.closed(request)

    async def _carry_out(self, request: AsgiRequest, scope: Scope, receive: Receive, send: Send) -> None:
        if self._pages.owns(scope["path"]) and self._api.origins.admits(request):
            await self._page(scope, receive, send)
            return
        try:
            await _answer(await self._api.handle(request), request, send)
        finally:
            request.finish()

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the pages' application without letting it cancel its own last send.

        1. The application sends the end of the body.
        2. Inside that call Hypercorn delivers `http.disconnect` to it, then closes the connection.
        3. The application takes `http.disconnect` for a client that left and cancels the task that is sending. The
           connection would stay open.

        So `http.disconnect` is held back once the end of the body was sent.
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
    if response.status == HTTPStatus.NO_CONTENT:
        return list(response.headers)
    return [(b"content-type", response.content_type), *response.headers]


async def _answer(response: Response, request: AsgiRequest, send: Send) -> None:
    headers = _headers(response)
    if response.live is None and response.status != HTTPStatus.NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(response.body)))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    if response.live is not None and request.method != "HEAD":

        async def write(piece: bytes) -> None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})

        if not await response.live(write, request.disconnected):
            raise ClientGone
    await send({"type": "http.response.body", "body": response.body, "more_body": False})


async def _refuse_websocket(scope: Scope, send: Send) -> None:
    """Refuse an upgrade over HTTP/2: the gateway speaks WebSocket over HTTP/1.1 only."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    known = scope["path"] == upgrade.PATH
    response = responses.failure(upgrade.not_an_upgrade() if known else unknown_path(scope["path"]), None)
    headers = [*_headers(response), (b"content-length", b"%d" % len(response.body))]
    await send({"type": "websocket.http.response.start", "status": response.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": response.body, "more_body": False})

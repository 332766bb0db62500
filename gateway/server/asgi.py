"""Runs the pages, an ASGI application: for Hypercorn over HTTP/1.1, and for HTTP/2."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol
from urllib.parse import unquote

import trio

from gateway.admission.in_flight import Flight
from gateway.http.messages import Request, Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Pages(Protocol):
    """An ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class CountedPages:
    """The pages as Hypercorn runs them: their requests are in flight, and none cancels its own last send."""

    def __init__(self, flight: Flight, pages: Pages) -> None:
        self._flight = flight
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._flight.enter()
        try:
            if scope["type"] == "http":
                await self._page(scope, receive, send)
        finally:
            self._flight.leave()

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


async def page(pages: Pages, request: Request) -> Response:
    """Return the whole response of the pages to a request without a body."""
    response = Response(500)
    parts: list[bytes] = []

    asked = False

    async def receive() -> MutableMapping[str, Any]:
        nonlocal asked
        if asked:
            await trio.sleep_forever()  # until the application has answered, and cancels this
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            fields = {name.lower(): value for name, value in message["headers"]}
            fields.pop(b"content-length", None)
            fields.pop(b"x-content-type-options", None)  # every response gets it
            response.status = message["status"]
            response.content_type = fields.pop(b"content-type", b"application/octet-stream")
            response.headers = tuple(fields.items())
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.1"},
        "http_version": "2",
        "method": request.method,
        "scheme": "http",
        "path": unquote(request.path),
        "raw_path": request.path.encode("ascii"),
        "query_string": request.query.encode("ascii"),
        "root_path": "",
        "headers": list(request.headers.items()),
        "client": None,
        "server": None,
        "state": {},
        "extensions": {},
    }
    await pages(scope, receive, send)
    response.body = b"".join(parts)
    return response

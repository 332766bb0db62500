"""Connections that the HTTP/1.1 front hands over: pages to Hypercorn, HTTP/2 to `gateway.server.http2_server`. The one
module that imports Hypercorn.

Hypercorn and Quart take a good part of a second and 30 MB to load, h2 a tenth of that. The first connection that needs
them loads them, in a thread.
"""

from __future__ import annotations

import logging
import socket
from importlib import import_module
from typing import TYPE_CHECKING, Any

import structlog
import trio

from gateway.api.dispatch import Api
from gateway.http.messages import Request, Response
from gateway.server.asgi import CountedPages, Pages, page
from gateway.server.http2_connection import Carried
from proto.model.limits import MAX_HEADER_BYTES
from proto.process.tracebacks import kind

if TYPE_CHECKING:
    from gateway.server.http2_server import Http2Server

_log: Any = structlog.get_logger()


class _Errors(logging.Handler):
    """Writes what Hypercorn logs as lines of this process: without the texts of exceptions."""

    def emit(self, record: logging.LogRecord) -> None:
        _log.error("page_failed", exc_info=record.exc_info and record.exc_info[1])


def _errors() -> logging.Logger:
    logger = logging.getLogger("hypercorn.error")
    logger.handlers, logger.propagate = [_Errors(logging.ERROR)], False
    return logger


class _Replayed:
    """A stream that yields the bytes already read. It has the methods that Hypercorn needs; the missing `do_handshake`
    tells Hypercorn that this is not TLS.

    Bytes after the request are discarded, and the client's end of file is held back until the response is sent. A
    client may shut down its sending side after the request and then read (`nc -N`). Hypercorn would take that for a
    client that is gone and drop the response.

    Hypercorn waits without end for a client that does not read, so a send may take `pause_s`."""

    def __init__(self, raw: socket.socket, read: bytes, pause_s: float) -> None:
        self._read = read
        self._pause_s = pause_s
        self._answered = trio.Event()
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(raw))
        self.socket = self._stream.socket

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._read:
            await trio.lowlevel.checkpoint()
            read, self._read = self._read, b""
            return read
        while data := await self._stream.receive_some(max_bytes):
            pass
        await self._answered.wait()
        return data

    async def send_all(self, data: bytes) -> None:
        try:
            with trio.fail_after(self._pause_s):
                await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.TooSlowError):
            self._answered.set()  # the client is gone, so no response is awaited
            raise trio.BrokenResourceError from None

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        self._answered.set()
        await self._stream.aclose()


class _Hypercorn:
    """Hypercorn and the pages. Loads them."""

    def __init__(self, api: Api) -> None:
        self._pause_s = api.limits.body_timeout_ms / 1000
        self.pages: Pages = import_module("gateway.server.pages").WebPages()
        self._app = import_module("hypercorn.app_wrappers").ASGIWrapper(CountedPages(api.flight, self.pages))
        self.context = import_module("hypercorn.trio.worker_context").WorkerContext(None)
        self._state = import_module("hypercorn.typing").ConnectionState
        self._broken = (import_module("h11").ProtocolError, import_module("wsproto.utilities").ProtocolError)
        self._server = import_module("hypercorn.trio.tcp_server").TCPServer
        self._config = import_module("hypercorn.config").Config()
        self._config.accesslog = None
        self._config.errorlog = _errors()
        self._config.include_server_header = False
        self._config.keep_alive_timeout = api.limits.idle_timeout_ms / 1000
        self._config.h11_max_incomplete_size = MAX_HEADER_BYTES
        # One page per connection: Hypercorn would parse the next request by other rules than the gateway's.
        self._config.keep_alive_max_requests = 0

    async def serve(self, raw: socket.socket, read: bytes) -> None:
        stream = _Replayed(raw, read, self._pause_s)
        try:
            await self._server(self._app, self._config, self.context, self._state({}), stream)
        except* self._broken as group:
            # On bytes that are not HTTP, the libraries below Hypercorn raise in the middle of a response.
            _log.debug("protocol_broken", http2=False, error=kind(group.exceptions[0]))


class HypercornHandover:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._loading = trio.Lock()
        self._draining = self._retiring = False
        self._http2: Http2Server | None = None
        self._hypercorn: _Hypercorn | None = None

    async def prepare(self) -> _Hypercorn:
        """Load Hypercorn and Quart in a thread, once. Connections that need them wait until this is done."""
        async with self._loading:
            if self._hypercorn is None:
                self._hypercorn = await trio.to_thread.run_sync(_Hypercorn, self._api)
            return self._hypercorn

    async def http2(self) -> Http2Server:
        """The server of HTTP/2 connections. The first one loads h2, in a thread."""
        async with self._loading:
            if self._http2 is None:
                module = await trio.to_thread.run_sync(import_module, "gateway.server.http2_server")
                self._http2 = module.Http2Server(self._api, self._page)
                if self._draining:
                    self._http2.drain()
                elif self._retiring:
                    self._http2.retire()
            return self._http2

    async def _page(self, request: Request) -> Response:
        return await page((await self.prepare()).pages, request)

    def retire(self) -> None:
        """Close HTTP/2 connections as they become idle. Others have one page each."""
        self._retiring = True
        if self._http2 is not None:
            self._http2.retire()

    async def drain(self) -> None:
        """Refuse new HTTP/2 streams and close connections as they become idle."""
        self._draining = True
        if self._http2 is not None:
            self._http2.drain()
        if self._hypercorn is not None:
            await self._hypercorn.context.terminated.set()

    async def serve(self, raw: socket.socket, read: bytes, carried: Carried | None) -> None:
        try:
            if carried is not None:
                await (await self.http2()).serve(raw, read, carried)
            else:
                await (await self.prepare()).serve(raw, read)
        finally:
            raw.close()  # Hypercorn leaves it open when cancelled

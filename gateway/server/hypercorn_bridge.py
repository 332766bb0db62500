"""The bridge to Hypercorn: serves HTTP/2 with prior knowledge, and pages. The one module that imports Hypercorn.

Hypercorn and Quart take a good part of a second and 30 MB to load. The first connection that needs them loads them, in
a thread.
"""

from __future__ import annotations

import socket
from importlib import import_module
from typing import Any

import structlog
import trio

from gateway.admission.body_budget import Budget
from gateway.admission.in_flight import Flight
from gateway.api.dispatch import Api
from gateway.server.asgi import AsgiApi
from gateway.server.http2_connection import Carried
from gateway.server.page_paths import is_page
from proto.model.limits import MAX_HEADER_BYTES, Limits

_log: Any = structlog.get_logger()


class _Replayed:
    """A stream that yields the bytes already read before those still to come. It has the methods that Hypercorn needs;
    the missing `do_handshake` tells Hypercorn that this is not TLS.

    With `last`, bytes after the request are discarded, and the client's end of file is held back until the response is
    sent. A client may shut down its sending side after the request and then read (`nc -N`). Hypercorn would take that
    for a client that is gone and drop the response."""

    def __init__(self, raw: socket.socket, read: bytes, *, last: bool) -> None:
        self._read = read
        self._last = last
        self._answered = trio.Event()
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(raw))
        self.socket = self._stream.socket

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._read:
            await trio.lowlevel.checkpoint()
            read, self._read = self._read, b""
            return read
        data = await self._stream.receive_some(max_bytes)
        while data and self._last:
            data = await self._stream.receive_some(max_bytes)
        if self._last:
            await self._answered.wait()
        return data

    async def send_all(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError:
            self._answered.set()  # the client is gone, so no response is awaited
            raise

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        self._answered.set()
        await self._stream.aclose()


class HypercornHandover:
    def __init__(self, api: Api, flight: Flight, limits: Limits, budget: Budget) -> None:
        self._api = api
        self._flight = flight
        self._limits = limits
        self._budget = budget
        self._loading = trio.Lock()
        self._server: Any = None
        self._app: Any = None
        self._context: Any = None
        self._state: Any = None
        self._configs: dict[bool, Any] = {}
        self._broken: tuple[type[Exception], ...] = ()

    def owns(self, path: str) -> bool:
        return is_page(path)

    async def prepare(self) -> None:
        """Load Hypercorn and Quart in a thread, once. Connections that need them wait until this is done."""
        async with self._loading:
            if self._server is None:
                await trio.to_thread.run_sync(self._load)

    def _load(self) -> None:
        pages = import_module("gateway.server.pages").WebPages()
        app = AsgiApi(self._api, self._flight, self._limits, self._budget, pages)
        self._app = import_module("hypercorn.app_wrappers").ASGIWrapper(app)
        self._context = import_module("hypercorn.trio.worker_context").WorkerContext(None)
        self._state = import_module("hypercorn.typing").ConnectionState
        self._configs = {http2: self._config(http2) for http2 in (False, True)}
        self._broken = (
            import_module("h11").ProtocolError,
            import_module("h2.exceptions").H2Error,
            import_module("wsproto.utilities").ProtocolError,
        )
        self._server = import_module("hypercorn.trio.tcp_server").TCPServer

    def _config(self, http2: bool) -> Any:
        config = import_module("hypercorn.config").Config()
        config.accesslog = None
        config.include_server_header = False
        config.keep_alive_timeout = self._limits.idle_timeout_ms / 1000
        config.h11_max_incomplete_size = MAX_HEADER_BYTES
        config.h2_max_header_list_size = MAX_HEADER_BYTES
        # One page per HTTP/1.1 connection: Hypercorn would parse the next request by other rules than the gateway's.
        config.keep_alive_max_requests = 1_000_000_000 if http2 else 0
        return config

    async def drain(self) -> None:
        """Refuse new HTTP/2 streams and close connections as they become idle."""
        if self._server is not None:
            await self._context.terminated.set()

    async def serve(self, raw: socket.socket, read: bytes, carried: Carried | None) -> None:
        http2 = carried is not None
        try:
            await self.prepare()
            stream = _Replayed(raw, read, last=not http2)
            # HTTP/2 has many requests to a connection, the pages have one.
            await self._server(
                self._app, self._configs[http2], self._context, self._state({"carried": carried}), stream
            )
        except* self._broken as group:
            # On bytes that are not HTTP, the libraries below Hypercorn raise in the middle of a response.
            _log.debug("protocol_broken", http2=http2, error=repr(group.exceptions[0]))
        finally:
            raw.close()  # Hypercorn leaves it open when cancelled

"""Connections with prior knowledge of HTTP/2, which the HTTP/1.1 front hands over to `gateway.server.http2_server`. The
first of them loads h2, in a thread."""

from __future__ import annotations

import socket
from importlib import import_module
from typing import TYPE_CHECKING

import trio

from gateway.admission.body_budget import Budget
from gateway.admission.in_flight import Flight
from gateway.api.dispatch import Api
from gateway.server.http2_connection import Carried
from gateway.server.pages import Pages
from proto.model.limits import Limits

if TYPE_CHECKING:
    from gateway.server.http2_server import Http2Server


class Http2Handover:
    def __init__(self, api: Api, pages: Pages, flight: Flight, limits: Limits, budget: Budget) -> None:
        self._parts = api, pages, flight, limits, budget
        self._loading = trio.Lock()
        self._draining = False
        self._server: Http2Server | None = None

    async def server(self) -> Http2Server:
        async with self._loading:
            if self._server is None:
                module = await trio.to_thread.run_sync(import_module, "gateway.server.http2_server")
                self._server = module.Http2Server(*self._parts)
                if self._draining:
                    self._server.drain()
            return self._server

    def drain(self) -> None:
        """Refuse new streams, and close connections as they become idle."""
        self._draining = True
        if self._server is not None:
            self._server.drain()

    async def serve(self, raw: socket.socket, read: bytes, carried: Carried) -> None:
        try:
            await (await self.server()).serve(raw, read, carried)
        finally:
            raw.close()

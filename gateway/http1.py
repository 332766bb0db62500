"""The HTTP/1.1 front: accepts connections, one task each, and ends those that are too slow."""

from __future__ import annotations

import errno
import socket
from time import monotonic
from typing import Any

import structlog
import trio
from trio.lowlevel import wait_readable

from gateway.connection import Connection, Front

_log: Any = structlog.get_logger()
_STARVED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Http1Server:
    def __init__(self, front: Front) -> None:
        self.connections: set[Connection] = set()
        self._front = front

    async def run(
        self, listener: socket.socket, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept and serve until cancelled; that ends every connection too."""
        listener.setblocking(False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep)
            task_status.started()
            while True:
                try:
                    raw, _ = listener.accept()
                except BlockingIOError:
                    await wait_readable(listener)
                except OSError as error:
                    if error.errno not in _STARVED:
                        continue  # this client gave up while it waited
                    _log.warning("accept_starved", error=str(error), connections=len(self.connections))
                    await trio.sleep(0.1)
                else:
                    self.admit(raw, nursery)

    def admit(self, raw: socket.socket, nursery: trio.Nursery) -> None:
        """Serve a connected socket in `nursery`."""
        raw.setblocking(False)
        if raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        nursery.start_soon(self._serve, Connection(self._front, raw))

    async def _serve(self, connection: Connection) -> None:
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)

    async def _sweep(self) -> None:
        limits = self._front.limits
        shortest = min(limits.header_timeout_ms, limits.body_timeout_ms, limits.idle_timeout_ms) / 1000
        while True:
            await trio.sleep(min(0.5, shortest / 4))
            now = monotonic()
            for connection in [c for c in self.connections if c.deadline <= now]:
                connection.expire()

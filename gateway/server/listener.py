"""The HTTP/1.1 listener: accepts connections, passes them to the reactor, and ends those that are too slow."""

from __future__ import annotations

import errno
import math
import socket
from functools import partial
from time import monotonic

import structlog
import trio
from structlog.typing import FilteringBoundLogger
from trio.lowlevel import wait_readable

from gateway.admission.connection_shares import Sharing
from gateway.api.dispatch import Api
from gateway.server.connection import Connection
from gateway.server.eviction import most_connections, who_leaves
from gateway.server.http2_connection import Handover
from gateway.server.reactor import Drive, Reactor

_log: FilteringBoundLogger = structlog.get_logger()
_STARVED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Http1Server:
    def __init__(
        self, api: Api, handover: Handover, reactor: Reactor, other_connections: int, sharing: Sharing
    ) -> None:
        self.connections: set[Connection] = set()
        self.most = most_connections(api.limits.max_connections, other_connections)
        self._reactor = reactor
        self._api = api
        self._handover = handover
        self._left = trio.Event()
        self._sharing = sharing
        self._accepting = trio.CancelScope()

    async def run(
        self, listener: socket.socket, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept and serve until cancelled. Cancellation ends every connection too."""
        listener.setblocking(False)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sweep)
                task_status.started()
                with self._accepting:
                    await self._accept(listener, nursery)
        finally:
            for connection in tuple(self.connections):
                connection.drive.close()

    def stop_accepting(self) -> None:
        """Leave new connections to other gateways."""
        self._accepting.cancel()

    def end_idle(self, at: float) -> None:
        """Have connections without a request end at `at` (`monotonic`) unless one comes."""
        for connection in self.connections:
            if connection.waiting and connection.phase == "idle" and not connection.buffer:
                connection.deadline = min(connection.deadline, at)

    async def _accept(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        while True:
            if len(self.connections) >= self.most:
                await wait_readable(listener)
                if not await self._sharing.others_take(listener, len(self.connections)):
                    await self._make_room()
                continue
            await self._sharing.polite(listener, len(self.connections))
            try:
                raw, _ = listener.accept()
            except BlockingIOError:
                await wait_readable(listener)
            except OSError as error:
                if error.errno not in _STARVED:
                    continue  # the client gave up while it waited in the kernel's queue
                _log.warning("accept_starved", error=str(error), connections=len(self.connections))
                await trio.sleep(0.1)
            else:
                self._admit(raw, nursery)

    def _admit(self, raw: socket.socket, nursery: trio.Nursery) -> None:
        """Serve a connected socket, with its tasks in `nursery`."""
        raw.setblocking(False)
        if raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(self._api, self._handover, raw)
        self.connections.add(connection)
        self._sharing.count(len(self.connections))
        connection.drive = Drive(self._reactor, raw, connection, nursery, partial(self._ended, connection))

    def _ended(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._sharing.count(len(self.connections))
        del connection.drive  # each refers to the other
        self._left.set()

    async def _make_room(self) -> None:
        """Evict connections that only wait; return when a connection has ended, or after 0.1 s.

        New connections stay in the kernel's queue meanwhile. They stay there as long as every open connection has a
        whole request in progress.
        """
        self._left = trio.Event()
        leaving = who_leaves(self.connections, monotonic())
        _log.warning("connections_full", connections=len(self.connections), waiting=bool(leaving))
        for connection in leaving:
            connection.waiting = False
            connection.starved_since = math.inf
            connection.evict()
        with trio.move_on_after(0.1):
            await self._left.wait()

    async def _sweep(self) -> None:
        limits = self._api.limits
        shortest = min(limits.header_timeout_ms, limits.body_timeout_ms, limits.idle_timeout_ms) / 1000
        while True:
            await trio.sleep(min(0.5, shortest / 4))
            self.sweep(monotonic())

    def sweep(self, now: float) -> None:
        """End the connections whose deadline has passed. One whose next request has just arrived is spared: a turn that
        is late, on a busy machine, must not cut it."""
        for connection in [c for c in self.connections if c.deadline <= now and not c.asks()]:
            connection.expire()

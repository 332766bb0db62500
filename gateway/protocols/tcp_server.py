"""The TCP server of protocols other than HTTP: accepts, reads, answers in order, limits times, drains.

A connection carries one command at a time. The next one is not parsed before the last answer is sent, so a client that
sends without reading fills only its own socket. A `Session` gives the bytes their meaning.

waiting ──first byte──► reading ──whole──► in flight ──answer sent──► waiting
   │ idle limit, room wanted, drain  │ pace                │ client does not read
   └────────────► closed ◄───────────┴─────────────────────┘
"""

from __future__ import annotations

import math
import socket
from collections import Counter
from collections.abc import Sequence
from time import monotonic
from typing import Any, Protocol

import structlog
import trio
from structlog.typing import FilteringBoundLogger
from trio.lowlevel import wait_readable, wait_writable

from gateway.admission.body_budget import Budget, Kind
from gateway.admission.connection_shares import Sharing
from gateway.admission.in_flight import Flight
from gateway.admission.transfer_rate import Pace, due
from proto.ipc.gateway_figures import ProtocolFigures
from proto.model.errors import TopicsError
from proto.model.limits import Limits
from proto.process.faults import faults
from proto.wire.byte_parser import ProtocolError, Skip, Steps

RECEIVE_BYTES = 64 << 10
LINGER_S = 2.0
"""How long a client that was sent a fatal error has to end the connection itself."""
SWEEP_S = 0.5

_log: FilteringBoundLogger = structlog.get_logger()


class Session(Protocol):
    """The protocol's side of one connection."""

    def read(self) -> Steps[Any]:
        """Return the steps that read the next command."""

    async def answer(self, command: Any) -> bytes:
        """Carry out a command and return the answer. Errors that the client causes become answers."""

    def refuse(self, message: str) -> bytes:
        """Return the answer to bytes that are no valid command."""


class Served(Protocol):
    """A protocol. `commands` counts by (command, result)."""

    name: str
    commands: Counter[tuple[str, str]]

    def session(self) -> Session:
        """Return the protocol's side of a new connection."""


class TcpConnection:
    __slots__ = ("_budget", "_buffer", "_flight", "_limits", "_raw", "_session", "deadline", "pace", "scope", "since")

    def __init__(self, raw: socket.socket, session: Session, limits: Limits, flight: Flight, budget: Budget) -> None:
        self.scope = trio.CancelScope()
        self.deadline = math.inf
        self.since = math.inf
        """Since when the connection has waited for a command; infinity while it does not wait."""
        self.pace = Pace(limits)
        self._raw = raw
        self._session = session
        self._limits = limits
        self._flight = flight
        self._budget = budget
        self._buffer = bytearray()

    async def run(self) -> None:
        try:
            with self.scope:
                await self._serve()
        except OSError:
            pass  # the client is gone
        except Exception:
            faults.failed("connection")
        finally:
            self._raw.close()

    def asks(self) -> bool:
        """Whether bytes of a command have arrived that were not read yet. An end now would lose that command."""
        if self.since == math.inf:
            return False
        try:
            return bool(self._raw.recv(1, socket.MSG_PEEK))
        except OSError:
            return False  # nothing has arrived, or the client is gone

    async def _serve(self) -> None:
        while not self._flight.draining and (self._buffer or not self._flight.leaving):
            hold = self._budget.hold(Kind.BODY)
            try:
                steps = self._session.read()
                wanted = next(steps)
                self._wait()
                while True:
                    if isinstance(wanted, int) and wanted > RECEIVE_BYTES:
                        await hold.grow(wanted)
                    piece = await self._take(wanted)
                    if piece is None:
                        return
                    wanted = steps.send(piece)
            except StopIteration as whole:
                self.deadline = self.since = math.inf
                await self._carry_out(whole.value)
            except (ProtocolError, TopicsError) as error:
                await self._send(self._session.refuse(error.message))
                if isinstance(error, TopicsError) or error.fatal:  # there is no memory for a command of this size
                    await self._linger()
                    return
            finally:
                hold.release()
            if self._buffer and not self._flight.draining:
                await self._let_others_run()
        await self._linger()  # when drained, commands sent ahead are not carried out

    async def _carry_out(self, command: Any) -> None:
        self._flight.enter()
        try:
            await self._send(await self._session.answer(command))
        finally:
            self._flight.leave()

    async def _let_others_run(self) -> None:
        """Between commands that arrived together: nothing has to be waited for if they are refused, or answered at
        once. A drain counts the connection meanwhile, so that it closes in order, see `Flight.closed`."""
        self._flight.enter()
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self._flight.leave()

    def _wait(self) -> None:
        now = monotonic()
        if self._buffer:
            self.pace.begin()
            self.deadline = self.pace.deadline()
        else:
            self.since = now
            self.deadline = now + self._limits.protocol_idle_timeout_ms / 1000

    async def _take(self, wanted: int | Skip) -> bytes | None:
        """Return the next bytes, or None when the client ended the connection before them."""
        buffer = self._buffer
        if isinstance(wanted, Skip):
            left = wanted.size
            while left > len(buffer):
                left -= len(buffer)
                buffer.clear()
                if not await self._receive():
                    return None
            del buffer[:left]
            return b""
        while len(buffer) < wanted:
            if not await self._receive():
                return None
        piece = bytes(buffer[:wanted])
        del buffer[:wanted]
        return piece

    async def _receive(self) -> bool:
        while True:
            await wait_readable(self._raw)
            try:
                data = self._raw.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue
            if self.since != math.inf:
                self.since = math.inf
                self.pace.begin()
            self.pace.received += len(data)
            self.deadline = self.pace.deadline()
            self._buffer += data
            return bool(data)

    async def _send(self, answer: bytes) -> None:
        self.deadline = self.since = math.inf
        view = memoryview(answer)
        limits, begun = self._limits, monotonic()
        while True:
            try:
                view = view[self._raw.send(view) :]
            except BlockingIOError:
                pass
            if not view:
                self.deadline = math.inf
                return
            taken = len(answer) - len(view)
            self.deadline = due(monotonic(), begun, taken, limits.body_timeout_ms / 1000, limits.min_download_rate)
            await wait_writable(self._raw)

    async def _linger(self) -> None:
        """Wait for the client to close, up to `LINGER_S`. Closing with unread input resets the connection, and the
        reset can overtake the answer."""
        self._raw.shutdown(socket.SHUT_WR)
        self.deadline = monotonic() + LINGER_S
        with self._flight.closes(self):
            while True:
                await wait_readable(self._raw)
                try:
                    if not self._raw.recv(RECEIVE_BYTES):
                        return
                except BlockingIOError:
                    continue


class TcpServer:
    """All connections of one protocol, over any number of listening sockets."""

    def __init__(
        self, served: Served, limits: Limits, flight: Flight, budget: Budget, sharing: Sharing | None = None
    ) -> None:
        self.connections: set[TcpConnection] = set()
        self._served = served
        self._limits = limits
        self._flight = flight
        self._budget = budget
        self._left = trio.Event()
        self._sharing = sharing or Sharing()
        self._accepting = trio.CancelScope()

    async def run(self, listeners: Sequence[socket.socket]) -> None:
        """Accept and serve until cancelled. Cancellation ends every connection too."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep)
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    for listener in listeners:
                        accepting.start_soon(self._accept, listener, nursery)

    def figures(self) -> ProtocolFigures:
        commands = [(*key, number) for key, number in self._served.commands.items()]
        return ProtocolFigures(self._served.name, len(self.connections), commands)

    def stop_accepting(self) -> None:
        """Leave new connections to other gateways."""
        self._accepting.cancel()

    def end_idle(self, at: float) -> None:
        """Have connections without a command end at `at` (`monotonic`) unless one comes."""
        for connection in self.connections:
            if connection.since != math.inf:
                connection.deadline = min(connection.deadline, at)

    def drain(self) -> None:
        """End the connections that wait for a command. The others finish their command and then end."""
        for connection in self.connections:
            if connection.since != math.inf:
                connection.scope.cancel()

    async def _accept(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        listener.setblocking(False)
        while True:
            await wait_readable(listener)
            if len(self.connections) >= self._limits.protocol_max_connections:
                if not await self._sharing.others_take(listener, len(self.connections)):
                    await self._make_room()
                continue
            await self._sharing.polite(listener, len(self.connections))
            try:
                raw, _ = listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                _log.warning("accept_failed", protocol=self._served.name, error=str(error))
                await trio.sleep(0.1)
                continue
            raw.setblocking(False)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = TcpConnection(raw, self._served.session(), self._limits, self._flight, self._budget)
            self.connections.add(connection)
            self._sharing.count(len(self.connections))
            nursery.start_soon(self._serve, connection)

    async def _serve(self, connection: TcpConnection) -> None:
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
            self._sharing.count(len(self.connections))
            self._left.set()

    async def _make_room(self) -> None:
        """End the connection that has waited longest for a command; return when one has ended, or after 0.1 s. While
        none waits, new connections stay in the kernel's queue."""
        self._left = trio.Event()
        longest = min(self.connections, key=lambda connection: connection.since)
        if longest.since != math.inf:
            longest.since = math.inf
            longest.scope.cancel()
        with trio.move_on_after(0.1):
            await self._left.wait()

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(min(SWEEP_S, self._limits.protocol_idle_timeout_ms / 4000))
            self.sweep(monotonic())

    def sweep(self, now: float) -> None:
        """End the connections whose deadline has passed. One whose next command has just arrived is spared."""
        for connection in [c for c in self.connections if c.deadline <= now and not c.asks()]:
            connection.scope.cancel()

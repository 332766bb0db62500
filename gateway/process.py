"""The gateway process: starts, follows the supervisor's messages, drains, ends."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

import structlog
import trio
from structlog.typing import FilteringBoundLogger

from gateway.admission.body_budget import Budget
from gateway.admission.connection_shares import Sharing, divided
from gateway.admission.in_flight import Flight
from gateway.api.dispatch import Api
from gateway.contract.auth import Keyring
from gateway.observe import tracing
from gateway.observe.audit import Audit
from gateway.observe.request_log import RequestLog
from gateway.protocols.rog import Rog
from gateway.protocols.tcp_server import TcpServer
from gateway.protocols.walrus import Walrus
from gateway.server.hypercorn_bridge import HypercornHandover
from gateway.server.listener import Http1Server
from gateway.server.reactor import Reactor
from gateway.shards.client import Shards
from proto.ipc import askers
from proto.ipc.control import (
    CONTROL_FD_VARIABLE,
    AuditLog,
    Complete,
    Drain,
    Drained,
    Keys,
    KeysTaken,
    Members,
    OtherFigures,
    Ping,
    Pong,
    Ready,
    Retire,
    Start,
    Stop,
    Suspected,
)
from proto.ipc.control import Shards as ShardStates
from proto.ipc.control_link import ControlLink
from proto.ipc.gateway_page import Column, Row
from proto.ipc.suspects import Suspects
from proto.model.keys import Key
from proto.model.limits import MAX_WAIT_MS
from proto.model.memory_shares import gateway_share
from proto.process.allocator import trim_heap
from proto.process.core_dumps import leave_no_core
from proto.process.garbage_collector import calm, search
from proto.process.log import configure
from proto.process.orphan import die_with_parent
from proto.process.recursion import allow_old_records

TIDY_S = 5.0
OLD_SEARCHES = 10
"""Searches for cycles among the middle-aged objects to one of all that were made since the start."""
PATIENT_S = 5.0
"""For how long a gateway beside others waits for the shards before it accepts connections."""
IDLE_S = 5.0
"""For how long a gateway that retires keeps connections without a request."""
LOOK_S = 0.05
CLOSE_S = 2.0
"""For how long a gateway that drains keeps connections that have had their last answer."""
STOP_S = 1.0
"""Longest time that the end of the process may take."""
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)
"""Raised by the link when the supervisor is gone, which ends this process anyway."""

_log: FilteringBoundLogger = structlog.get_logger()


class Gateway:
    """The parts of one gateway process, and the actions that control messages ask for."""

    def __init__(self, start: Start) -> None:
        self.limits = divided(start.limits, start.gateways)
        self.flight = Flight()
        share = gateway_share(self.limits.memory_bytes, start.gateways)
        self.budget = budget = Budget(share, self.limits.body_timeout_ms)
        self.row = None if start.page_fd < 0 else Row(start.page_fd, start.gateways + 1, start.index)
        self.reactor = Reactor()
        self.shards = Shards(
            start.shards,
            self.limits.request_timeout_ms,
            self.reactor.read,
            askers.named(
                askers.SPARE if start.index == start.gateways else askers.gateway(start.index), start.incarnation
            ),
            start.cluster,
        )
        self.keyring = Keyring(start.keys)
        self._know(start.keys or (), start.places)
        self.api = Api(
            self.shards,
            self.flight,
            self.limits,
            self.keyring,
            budget,
            probe_auth=start.probe_auth,
            hosts=start.hosts,
            cors_origins=start.cors_origins,
            row=self.row,
        )
        self.tracing: tracing.Tracing | None = None
        if start.audit_fd >= 0:
            self.api.outcomes.audit = Audit(start.audit_fd, start.audit_fds, gateways=start.gateways)
        if start.request_log:
            self.api.outcomes.observers.append(RequestLog())
        others = self.limits.protocol_max_connections * (bool(start.walrus_fds) + bool(start.rog_fds))
        self.handover = HypercornHandover(self.api)
        self.server = Http1Server(self.api, self.handover, self.reactor, others, Sharing(self.row, Column.HTTP))
        self.walrus = Walrus(self.shards, self.limits)
        self.rog = Rog(self.shards, self.limits)
        walrus, rog = Sharing(self.row, Column.WALRUS), Sharing(self.row, Column.ROG)
        self.walrus_server = TcpServer(self.walrus, self.limits, self.flight, budget, walrus)
        self.rog_server = TcpServer(self.rog, self.limits, self.flight, budget, rog)
        self._accepting = trio.CancelScope()
        self._closed = trio.Event()
        """Set once the listeners are closed."""

    def _know(self, keys: Sequence[Key], places: Sequence[int]) -> None:
        if self.row is not None:
            self.row.know([key.digest for key in keys], places)

    def replace_keys(self, keys: Sequence[Key], places: Sequence[int]) -> None:
        self._know(keys, places)
        self.keyring.replace(keys)

    async def tidy(self) -> None:
        """Look for garbage and return free memory to the system every `TIDY_S`, the latter in a thread. The byte budget
        cannot tell when that is worth it: a hung shard keeps messages here whose requests were answered long ago."""
        while True:
            await trio.sleep(TIDY_S)
            if self.api.outcomes.audit is not None:
                self.api.outcomes.audit.flush()
            search(len(self.server.connections))
            await trio.to_thread.run_sync(trim_heap)

    async def begin_tracing(self) -> None:
        self.tracing = await trio.to_thread.run_sync(tracing.load)
        if self.tracing is not None:
            self.api.outcomes.observers.append(self.tracing)
            _log.info("spans_are_sent")

    async def expire_keys(self) -> None:
        """Have keys expire in time. The wall clock may be set, so it is looked at every second."""
        changed = trio.lowlevel.ParkingLot()
        self.keyring.on_change.append(changed.unpark_all)
        while True:
            left = self.keyring.expire()
            with trio.move_on_after(math.inf if left is None else min(max(left, 1) / 1000, 1)):
                await changed.park()

    async def accept(
        self,
        listener: socket.socket,
        walrus: Sequence[socket.socket] = (),
        rog: Sequence[socket.socket] = (),
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve connections until drained or cancelled."""
        self.api.origins.listens(listener.getsockname())
        with self._accepting:
            async with trio.open_nursery() as nursery:
                for server, listeners in ((self.walrus_server, walrus), (self.rog_server, rog)):
                    if listeners:
                        nursery.start_soon(server.run, listeners)
                        self.api.service.protocols.append(server.figures)
                await nursery.start(self.server.run, listener)
                self._tell_accepting(True)
                task_status.started()
        # The kernel refuses new connections from now on, instead of cutting them off when this process ends.
        for each in (listener, *walrus, *rog):
            each.close()
        self._closed.set()

    def _tell_accepting(self, accepting: bool) -> None:
        if self.row is not None:
            self.row.put(Column.ACCEPTING, accepting)

    async def retire(self) -> None:
        """Leave new connections to other gateways, serve the open ones, and end them. Blocks for up to the longest wait
        of a request and `drain_timeout_ms`; then for a drain of what is left.

        1  Accept nothing: connections that wait in the kernel are the other gateways'.
        2  End streams with a last frame; their clients come back, to another gateway.
        3  Every response says that the connection ends. A connection without a request ends after `IDLE_S`: an active
           client has heard it by then. If its next request arrives first, that one is served.
        4  A connection that has ended is kept open until its client closes it: input that arrives after a close would
           reset it, and the reset can overtake the last response.
        5  Drain.
        """
        servers = (self.server, self.walrus_server, self.rog_server)
        self._tell_accepting(False)
        for each in servers:
            each.stop_accepting()
        self.flight.retire()
        self.handover.retire()
        idle_until = monotonic() + IDLE_S
        with trio.move_on_after((MAX_WAIT_MS + self.limits.drain_timeout_ms) / 1000):
            await self.api.live.drain()
            await self.api.work.drain()
            connected = True  # one that is being accepted now is there after the first pause
            while connected or self.flight.count:
                for each in servers:
                    each.end_idle(idle_until)
                await trio.sleep(LOOK_S)
                if self.api.live.streams:  # opened on connections from before
                    await self.api.live.drain()
                connected = any(each.connections for each in servers)
        await self.drain()

    async def drain(self) -> None:
        """Finish the requests in flight, refuse new ones, then close every connection and the listeners.

        New connections are accepted until then, so that a probe gets `shutting_down` at once. Otherwise it would hang
        in the queue of a socket that no process accepts from. Blocks for up to `drain_timeout_ms`.
        """
        self.flight.drain()
        self.shards.end_parked()
        self.walrus_server.drain()
        self.rog_server.drain()
        await self.handover.drain()
        with trio.move_on_after(self.limits.drain_timeout_ms / 1000):
            await self.api.live.drain()
            await self.api.work.drain()
            await self.flight.landed()
            with trio.move_on_after(CLOSE_S):
                await self.flight.closed()
        if self.flight.count:
            _log.warning("drain_timeout", in_flight=self.flight.count)
        self._tell_accepting(False)
        self._accepting.cancel()
        with trio.move_on_after(STOP_S):  # Hypercorn shields its sends to clients that do not read
            await self._closed.wait()
        if self.tracing is not None:
            with trio.move_on_after(tracing.FLUSH_MS / 1000):
                await trio.to_thread.run_sync(self.tracing.flush, abandon_on_cancel=True)


async def serve(link: ControlLink) -> None:
    """Serve and follow the supervisor's messages until `Stop`. Ends the process when the supervisor is gone."""
    start = await link.receive()
    if not isinstance(start, Start):
        return
    if start.index == start.gateways:
        configure("gateway-spare")
    elif start.gateways > 1:
        configure(f"gateway-{start.index}")
    gateway = Gateway(start)
    listener = socket.socket(fileno=start.listen_fd)
    walrus = [socket.socket(fileno=descriptor) for descriptor in start.walrus_fds]
    rog = [socket.socket(fileno=descriptor) for descriptor in start.rog_fds]
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.reactor.run)
        await nursery.start(gateway.shards.run)
        await nursery.start(gateway.api.live.run)
        gateway.shards.update(start.states)

        async def begin() -> None:
            if start.others_serve:
                with trio.move_on_after(PATIENT_S):
                    await gateway.shards.complete.wait()
                if gateway.flight.leaving:
                    return  # a roll has given it up
            gateway.api.service.colleagues.asks = True
            await nursery.start(gateway.accept, listener, walrus, rog)
            _start_tasks(gateway, link, nursery)
            if start.gateways > 1:
                nursery.start_soon(_name_suspects, gateway.shards.links.suspects, link)
            calm(OLD_SEARCHES)
            await link.send(Ready())
            nursery.start_soon(_tell_complete, gateway, link)
            _log.info("gateway_ready", address=_shown(listener), shards=start.shards)

        nursery.start_soon(begin)  # while it waits, it has to hear of the shards, and of a stop
        await _follow(gateway, link, nursery)
        # Hypercorn shields its sends from cancellation: a client that does not read must not keep the process alive.
        overdue = threading.Timer(STOP_S, os._exit, (0,))
        overdue.daemon = True
        overdue.start()
        nursery.cancel_scope.cancel()
    for each in (listener, *walrus, *rog):
        each.close()
    _log.info("gateway_stopped")


def _start_tasks(gateway: Gateway, link: ControlLink, nursery: trio.Nursery) -> None:
    """Start what a gateway does besides serving."""
    nursery.start_soon(gateway.tidy)
    nursery.start_soon(gateway.api.service.colleagues.run, link.send)
    nursery.start_soon(gateway.api.service.history.run)
    nursery.start_soon(gateway.expire_keys)
    if tracing.wanted(os.environ):
        nursery.start_soon(gateway.begin_tracing)


async def _follow(gateway: Gateway, link: ControlLink, nursery: trio.Nursery) -> None:
    """Do what the supervisor's messages say, until `Stop`."""
    service = gateway.api.service
    while True:
        message = await link.receive()
        if message is None:
            os._exit(1)  # the supervisor is gone, so this process must not serve any longer
        if isinstance(message, Stop):
            return
        if isinstance(message, ShardStates):
            gateway.shards.update(message.states)
        elif isinstance(message, Members):
            gateway.shards.machines = message.known
        elif isinstance(message, Keys):
            gateway.replace_keys(message.keys, message.places)
            await link.send(KeysTaken(message.number))
        elif isinstance(message, AuditLog) and gateway.api.outcomes.audit is not None:
            gateway.api.outcomes.audit.reopened()
        elif isinstance(message, Ping):
            await link.send(Pong(service.figures()))
        elif isinstance(message, OtherFigures):
            service.colleagues.heard(message)
        elif isinstance(message, Suspected):
            gateway.shards.links.suspects.heard(message)
        elif isinstance(message, Drain | Retire):
            nursery.start_soon(_drain, gateway, link, isinstance(message, Retire))


async def _tell_complete(gateway: Gateway, link: ControlLink) -> None:
    await gateway.shards.complete.wait()
    with suppress(*_GONE):
        await link.send(Complete())


async def _name_suspects(suspects: Suspects, link: ControlLink) -> None:
    """Have the other gateways hear over which requests of this one a shard died."""
    found, untold = trio.open_memory_channel[Suspected](math.inf)
    suspects.on_death = found.send_nowait
    async for suspected in untold:
        with suppress(*_GONE):
            await link.send(suspected)


async def _drain(gateway: Gateway, link: ControlLink, retires: bool) -> None:
    _log.info("gateway_retiring" if retires else "gateway_draining", in_flight=gateway.flight.count)
    await (gateway.retire() if retires else gateway.drain())
    with suppress(*_GONE):
        await link.send(Pong(gateway.api.service.figures()))
        await link.send(Drained())


def _shown(listener: socket.socket) -> str:
    name = listener.getsockname()
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)


async def _run(descriptor: int) -> None:
    link = ControlLink.inherited(descriptor)
    try:
        await serve(link)
    except _GONE:
        pass
    except Exception:
        _log.exception("gateway_failed")
        raise
    finally:
        await link.aclose()


def run() -> int:
    """Run the process and return its exit status."""
    die_with_parent()
    leave_no_core()
    allow_old_records()
    configure("gateway")
    # A terminal's Ctrl-C and a service manager's SIGTERM reach the whole group; only the supervisor acts on them.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    trio.run(_run, int(os.environ[CONTROL_FD_VARIABLE]))
    return 0

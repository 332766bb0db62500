"""The gateway's life: start, follow the supervisor's messages, drain, end."""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import Any

import structlog
import trio

from gateway.access import Keyring
from gateway.api import Api
from gateway.budget import TOTAL_BYTES, Budget
from gateway.connection import Front
from gateway.flight import Flight
from gateway.handover import HypercornHandover
from gateway.http1 import Http1Server
from gateway.shards import Shards
from proto.control import CONTROL_FD_VARIABLE, Drain, Drained, Keys, Ping, Pong, Ready, Start, Stop
from proto.control import Shards as ShardStates
from proto.keys import Key
from proto.limits import Limits
from proto.log import configure
from proto.orphan import die_with_parent
from proto.transport import ControlLink

STOP_S = 1.0
"""How long the end of the process may take."""

_log: Any = structlog.get_logger()


class Gateway:
    """Everything of one gateway process, between two control messages."""

    def __init__(self, start: Start) -> None:
        self.limits = Limits(**start.limits)
        self.flight = Flight()
        # A body of the largest size allowed must always fit.
        budget = Budget(max(TOTAL_BYTES, self.limits.max_body_bytes), self.limits.body_timeout_ms)
        self.shards = Shards(start.shards, self.limits.request_timeout_ms)
        self.keyring = Keyring(None if start.keys is None else [Key.from_map(each) for each in start.keys])
        self.api = Api(self.shards, self.flight, self.limits, self.keyring, budget, probe_auth=start.probe_auth)
        self.handover = HypercornHandover(self.api, self.flight, self.limits, budget)
        self.server = Http1Server(Front(self.api, self.flight, self.limits, self.handover, budget))
        self._accepting = trio.CancelScope()

    async def accept(
        self, listener: socket.socket, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve connections until drained or cancelled."""
        with self._accepting:
            await self.server.run(listener, task_status=task_status)

    async def drain(self) -> None:
        """Finish what is in flight, refuse what comes new, then close every connection and the door.

        New connections are answered until then: a probe that is told `shutting_down` knows more than one that hangs
        in the queue of a socket nobody accepts from.
        """
        self.flight.drain()
        self.shards.end_parked()
        await self.handover.drain()
        with trio.move_on_after(self.limits.drain_timeout_ms / 1000):
            await self.api.live.drain()
            await self.flight.landed()
        if self.flight.count:
            _log.warning("drain_timeout", in_flight=self.flight.count)
        self._accepting.cancel()


async def serve(link: ControlLink) -> None:
    """Follow the supervisor until it says stop or is gone."""
    start = await link.receive()
    if not isinstance(start, Start):
        return
    gateway = Gateway(start)
    listener = socket.socket(fileno=start.listen_fd)
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.shards.run)
        await nursery.start(gateway.api.live.run)
        gateway.shards.update(ShardStates(start.states).parsed())
        await nursery.start(gateway.accept, listener)
        nursery.start_soon(gateway.handover.prepare)
        await link.send(Ready())
        _log.info("gateway_ready", address=_shown(listener), shards=start.shards)
        while True:
            message = await link.receive()
            if message is None:
                os._exit(1)  # the supervisor is gone; nobody may use this process any more
            if isinstance(message, Stop):
                break
            if isinstance(message, ShardStates):
                gateway.shards.update(message.parsed())
            elif isinstance(message, Keys):
                gateway.keyring.replace([Key.from_map(each) for each in message.keys])
            elif isinstance(message, Ping):
                await link.send(Pong())
            elif isinstance(message, Drain):
                nursery.start_soon(_drain, gateway, link)
        # Hypercorn shields what it sends: a client that does not read must not keep the process.
        overdue = threading.Timer(STOP_S, os._exit, (0,))
        overdue.daemon = True
        overdue.start()
        nursery.cancel_scope.cancel()
    listener.close()
    _log.info("gateway_stopped")


async def _drain(gateway: Gateway, link: ControlLink) -> None:
    _log.info("gateway_draining", in_flight=gateway.flight.count)
    await gateway.drain()
    try:
        await link.send(Drained())
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the supervisor is gone, which ends this process anyway


def _shown(listener: socket.socket) -> str:
    name = listener.getsockname()
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)


async def _run(descriptor: int) -> None:
    link = ControlLink.inherited(descriptor)
    try:
        await serve(link)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the supervisor is gone
    except Exception:
        _log.exception("gateway_failed")
        raise
    finally:
        await link.aclose()


def run() -> int:
    """Run the process; returns its exit status."""
    die_with_parent()
    configure("gateway")
    # A terminal's Ctrl-C and a service manager's SIGTERM reach the whole group; the supervisor decides what they mean.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    trio.run(_run, int(os.environ[CONTROL_FD_VARIABLE]))
    return 0

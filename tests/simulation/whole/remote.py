"""Sockets between machines, in place of ZeroMQ over TCP with CURVE. The product's rules who is heard are kept.

A link is made once. It is lost when the process at its other end has ended, at once, or when that one is stopped, cut
off or without power, as soon as the heartbeats of ZeroMQ would tell. What was sent before a cut arrives after it, also
if the link has been given up meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import trio
import zmq

from proto.ipc.askers import machine_of
from proto.ipc.message import NoMore
from proto.ipc.remote import _OVER, LOST_S, KeyPair, RemoteDealer, RemoteRouter
from proto.ipc.transport import Group
from tests.simulation.whole.network import PROCESS, Network, Socket
from tests.simulation.whole.seams import now


class Ways:
    """The ways between machines: until when each machine is cut off from the others."""

    def __init__(self) -> None:
        self.cut_until: dict[str, float] = {}

    def free_at(self, machines: Iterable[str]) -> float:
        """When there is a way between machines."""
        return max(self.cut_until.get(each, 0.0) for each in machines)

    def are_cut(self, machines: Iterable[str]) -> bool:
        return self.free_at(machines) > now()


class Listener(Socket, RemoteRouter):
    """A shard's socket for other machines."""

    def __init__(self, address: str, keys: KeyPair, most_bytes: int) -> None:
        home = PROCESS.get().home
        self.key = keys.public
        self.port = int(address.rpartition(":")[2])
        self._allowed, self._refused, self._heard = {}, {}, {}
        self._key_of: dict[bytes, str] = {}
        self._links: list[Dialer] = []
        self._greeted: list[Dialer] = []
        self._news = trio.Event()
        Socket.__init__(self, int(zmq.ROUTER), f"tcp://{home.name}:{self.port}")
        self.process.at_end.append(self._end_links)

    def greet(self, dialer: Dialer) -> None:
        """Another machine wants a link. It is answered when this one is read."""
        self._greeted.append(dialer)
        self._news.set()

    async def read(self, handle: Callable[[Group], object]) -> None:
        def heard(group: Group) -> None:
            self._heard.update((peer, now()) for peer, _ in group)
            handle(group)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._welcome)
            await Socket.read(self, heard)

    async def _welcome(self) -> None:
        while True:
            await self._news.wait()
            self._news = trio.Event()
            greeted, self._greeted = self._greeted, []
            for each in greeted:
                if each.key in self._allowed:
                    self._key_of[each.name] = each.key
                    self._links.append(each)
                    each.later(partial(each.welcomed, self))
                else:
                    each.later(each.broken.set)

    def arrive(self, peer: bytes, frames: list[bytes]) -> None:
        machine = self._allowed.get(self._key_of.get(peer, ""))
        if machine is not None and machine_of(peer) == machine and not self._refuses(peer):
            super().arrive(peer, frames)

    def tell_over(self, peer: bytes) -> None:
        if peer in self._pipes:
            self._pipes[peer].send([_OVER])

    def _end_links(self) -> None:
        links, self._links = self._links, []
        for each in links if self.process.home.powered else ():  # without power, nothing says so
            pipe = self._pipes.get(each.name)
            each.later(each.broken.set, pipe.last if pipe is not None else 0.0)

    def close(self) -> None:
        Socket.close(self)
        self._end_links()


class Dialer(Socket, RemoteDealer):
    """The end of a link that asks."""

    def __init__(self, endpoint: str, name: str, keys: KeyPair, server_key: str) -> None:
        self.key = keys.public
        self._server_key = server_key
        self.broken = trio.Event()
        self._held: list[Any] = []
        """What is sent before the link is there."""
        self._listener: Listener | None = None
        Socket.__init__(self, int(zmq.DEALER), endpoint, name)
        self._ends = self.process.home.name, endpoint.removeprefix("tcp://").rpartition(":")[0]

    def _dial(self) -> None:
        """Later: `connect`."""

    def _free_at(self) -> float:
        ways: Ways = self.process.home.cluster.ways
        return ways.free_at(self._ends)

    def later(self, happens: Callable[[], object], after: float = 0.0) -> None:
        """Have something happen when a packet between the ends would arrive, which leaves `after` a time."""
        network: Network = self._network
        network.timeline.at(max(now(), after, self._free_at()) + network.delay(), happens)

    async def connect(self) -> None:
        await trio.lowlevel.checkpoint()
        self.later(self._reached)

    def _reached(self) -> None:
        machine = self.process.home.cluster.machine(self._ends[1])
        found = self._network.routers.get(self.endpoint)
        there = isinstance(found, Listener) and not found.closed and not found.process.dead
        if there and isinstance(found, Listener) and found.key == self._server_key:
            found.greet(self)
        elif machine.powered:
            self.later(self.broken.set)

    def welcomed(self, listener: Listener) -> None:
        if self.closed or self.process.dead or listener.closed or listener.process.dead:
            return
        self._listener = listener
        self._join(listener, self._free_at)
        held, self._held = self._held, []
        for frames in held:
            self._pipes[b""].send(frames)

    def _send_packet(self, peer: bytes, queue: Any) -> None:
        if self._listener is None:
            self._held.append(queue.frames(self.status()))
        else:
            Socket._send_packet(self, peer, queue)

    async def lost(self) -> None:
        heard_at, patience_s = now(), LOST_S
        while True:
            with trio.move_on_after(LOST_S / 3):
                await self.broken.wait()
                return
            if self._listener is not None:
                process = self._listener.process
                if not (process.dead or process.paused or self._free_at() > now()):
                    heard_at, patience_s = now(), LOST_S * 2 / 3
            if now() - heard_at >= patience_s:
                return

    def close(self) -> None:
        """What waits is not sent any more; that nothing follows is."""
        self._queues.clear()
        if not self.closed:
            self.send(NoMore())
            self.flush()
            self.closed = True

"""The network: pipes in memory in place of ZeroMQ, and control links in place of socket pairs.

A pipe keeps its order. Each packet takes a seeded time, so pipes overtake each other. Packets are encoded and decoded
as on a socket.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from proto.ipc.control import Control, Decoder, encode
from proto.ipc.message import NO_STATUS, Packet, unpack
from proto.ipc.transport import Group, MessageSocket
from proto.process import waiting
from tests.simulation.whole.inner_trio import timeline

if TYPE_CHECKING:
    from tests.simulation.whole.processes import Process

PROCESS: ContextVar[Process] = ContextVar("process")
"""The process to which the present task belongs."""
MOST_AT_ONCE = 64


class Pipe:
    """One direction between two ends. What was sent arrives in order."""

    def __init__(
        self,
        network: Network,
        sender: Process,
        arrive: Callable[[Any], object],
        free_at: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Nothing arrives before `free_at`, which says how long the way is cut."""
        self._network = network
        self._arrive = arrive
        self._free_at = free_at
        self.last = 0.0
        """When the last packet arrives."""
        self._under_way = 0
        self._arriving = inf
        """How many of those under way still arrive."""
        sender.at_end.append(self._cut)

    def send(self, what: Any) -> None:
        self.last = max(self.last, max(trio.current_time(), self._free_at()) + self._network.delay())
        self._under_way += 1
        self._network.timeline.at(self.last, lambda: self._arrives(what))

    def _arrives(self, what: Any) -> None:
        self._under_way -= 1
        if self._arriving > 0:
            self._arriving -= 1
            self._arrive(what)

    def _cut(self) -> None:
        """The sender has ended: some of the last packets are lost with it."""
        self._arriving = self._network.rng.randint(0, self._under_way)


class Network:
    def __init__(self, rng: Random, tell: Callable[[str], object]) -> None:
        self.rng = rng
        self.tell = tell
        self.timeline = timeline()
        self.routers: dict[str, Socket] = {}
        """By endpoint."""

    def delay(self) -> float:
        """Seconds that a packet takes: mostly little, now and then much."""
        rng = self.rng
        return rng.random() * (0.05 if rng.random() < 0.05 else 0.001)


class Socket(MessageSocket):
    """A socket of the network, in place of one of ZeroMQ. It belongs to the process that makes it."""

    def __init__(self, kind: int, endpoint: str, name: str = "") -> None:
        self.process = process = PROCESS.get()
        self.name = name.encode()
        self.endpoint = endpoint
        self.status = lambda: NO_STATUS
        self.on_input = lambda: None
        self.closed = False
        self._network = process.network
        self._waiter = waiting.current()
        self._queues = {}
        self._planned = False
        self._inbox: Group = []
        self._arrived = trio.Event()
        self._pipes: dict[bytes, Pipe] = {}
        """To each peer."""
        self._routes = not name
        if self._routes:
            self._network.routers[endpoint] = self
        else:
            self._dial()

    def _dial(self) -> None:
        router = self._network.routers.get(self.endpoint)
        if router is not None:
            self._join(router)

    def _join(self, router: Socket, free_at: Callable[[], float] = lambda: 0.0) -> None:
        there = Pipe(self._network, self.process, lambda frames: router.arrive(self.name, frames), free_at)
        back = Pipe(self._network, router.process, lambda frames: self.arrive(b"", frames), free_at)
        self._pipes[b""], router._pipes[self.name] = there, back

    def _send_packet(self, peer: bytes, queue: Any) -> None:
        pipe = self._pipes.get(peer)
        if pipe is not None and not self.process.dead:
            pipe.send(queue.frames(self.status()))

    def arrive(self, peer: bytes, frames: list[bytes]) -> None:
        if self.closed or self.process.dead:
            return
        packet = unpack(frames)
        sender, receiver = peer.decode() or self.endpoint, self.name.decode() or self.endpoint
        self._network.tell(f"{sender} > {receiver}: {_shown(packet)}")
        self._inbox.append((peer, packet))
        self._arrived.set()

    def flush(self) -> bool:
        if self._planned:
            self._planned = False
            queues, self._queues = self._queues, {}
            for peer, queue in queues.items():
                self._send_packet(peer, queue)
        return False

    async def read(self, handle: Callable[[Group], object]) -> None:
        while True:
            if not self._inbox:
                self._arrived = trio.Event()
                await self._arrived.wait()
            group, self._inbox = self._inbox[:MOST_AT_ONCE], self._inbox[MOST_AT_ONCE:]
            handle(group)
            self.flush()
            await trio.lowlevel.checkpoint()

    def close(self) -> None:
        self.flush()
        self.closed = True


def _shown(packet: Packet) -> str:
    return " ".join(
        f"{type(each).__name__}{each.id}{f'.{each.op}' if hasattr(each, 'op') else ''}" for each in packet.messages
    )


class ControlEnd:
    """One end of a control link."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._inbox: list[Control | None] = []
        self._arrived = trio.Event()
        self._sending = trio.Lock()
        self._pipe: Pipe | None = None

    @classmethod
    def pair(cls, network: Network, one: Process, other: Process) -> tuple[ControlEnd, ControlEnd]:
        ends = cls(), cls()
        ends[0]._pipe = Pipe(network, one, ends[1]._take)
        ends[1]._pipe = Pipe(network, other, ends[0]._take)
        return ends

    def _take(self, data: bytes) -> None:
        self._inbox += self._decoder.feed(data)
        self._arrived.set()

    def end(self) -> None:
        """No more messages follow those that have arrived: the other end is gone."""
        self._inbox.append(None)
        self._arrived.set()

    async def send(self, message: Control) -> None:
        async with self._sending:  # in the order of calls, as on a socket
            assert self._pipe is not None
            self._pipe.send(encode(message))

    async def receive(self) -> Control | None:
        while not self._inbox:
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._inbox.pop(0)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

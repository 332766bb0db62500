"""Shards of several machines in one process: real shards and sockets, each shard held by one machine at a time.

A shard that moves continues with the same directory, as it would with the log in a bucket. A test is the supervisor of
all machines.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import trio

from gateway.shards.client import Shards
from proto.ipc import askers
from proto.ipc.control import Cluster, ShardState
from proto.ipc.operations import REGISTRAR
from proto.ipc.remote import KeyPair, RemoteRouter
from proto.ipc.transport import MessageSocket
from proto.model.errors import moving
from proto.model.limits import Limits
from proto.model.names import shard_of
from shardd.clock import SystemClock
from shardd.process.peers import Peers, links
from shardd.process.room_tasks import RoomTasks
from shardd.process.router_tasks import Forward
from shardd.process.server import Server
from shardd.shard import Shard, opened_shard
from shardd.storage.disk import RealDisk
from tests.support.asked import operation, said
from tests.support.gateway_stage import Stage, stage

MACHINES = 3


@dataclass
class Process:
    """One that holds a shard."""

    machine: int
    shard: Shard
    peers: Peers
    state: ShardState
    remote: RemoteRouter
    server: Server
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)


class Holders:
    def __init__(self, path: Path, nursery: trio.Nursery, holders: tuple[int, ...], **limits: Any) -> None:
        """`holders` has the machine that is to hold each shard."""
        self.path = path
        self.nursery = nursery
        self.limits = Limits(**limits)
        keys = [KeyPair.new() for _ in range(MACHINES)]
        self.clusters = [Cluster(f"m{index}", pair.public, pair.secret) for index, pair in enumerate(keys)]
        self.processes: list[Process | None] = [None] * len(holders)
        self.terms = [0] * len(holders)
        self.starts = [0] * len(self.clusters)
        """How many processes each machine has started."""
        self.gateways: list[tuple[Shards, int]] = []
        self.away_s = 60.0
        """As `Peers.away_s`, of processes that begin later."""

    def states(self, machine: int) -> list[ShardState]:
        """As the supervisor of a machine reports them."""
        return [self._seen(index, process, machine) for index, process in enumerate(self.processes)]

    def _seen(self, index: int, process: Process | None, machine: int) -> ShardState:
        if process is None:
            return ShardState(index, "standby")
        if process.machine == machine:
            return process.state
        at = f"tcp://127.0.0.1:{process.remote.port}"
        shown = f"http://{process.machine}"
        return ShardState(index, "standby", holder=shown, holder_at=at, holder_key=process.remote.key)

    def tell(self) -> None:
        for process in self.processes:
            if process is not None:
                process.peers.update(self.states(process.machine))
        for gateway, machine in self.gateways:
            gateway.update(self.states(machine))

    @asynccontextmanager
    async def gateway(self, machine: int, **limits: Any) -> AsyncIterator[Stage]:
        """A gateway of a machine, when it reaches all shards."""
        async with stage(shards=len(self.processes), cluster=self.clusters[machine], **limits) as made:
            shards = made.gateway.shards
            self.gateways.append((shards, machine))
            self.tell()
            while not shards.ready:  # noqa: ASYNC110 - what it looks at has no event
                await trio.sleep(0.001)
            yield made
            self.gateways.remove((shards, machine))

    async def hold(self, index: int, machine: int) -> None:
        """Have a machine hold a shard that none holds."""
        self.terms[index] += 1
        self.starts[machine] += 1
        incarnation, cluster = self.starts[machine], self.clusters[machine]
        endpoint = f"ipc://{self.path}/{machine}.{index}.{incarnation}"
        (self.path / str(index)).mkdir(exist_ok=True)
        shard = opened_shard(RealDisk(), SystemClock(), self.path / str(index), self.limits)
        shard.allowance.bind(alone=False)
        name = askers.named(askers.shard(index), incarnation)
        asking = links(len(self.processes), 20, name, cluster)
        peers = Peers(shard, index, asking, term=self.terms[index], away_s=self.away_s)
        remote = RemoteRouter("127.0.0.1:0", KeyPair.new(), 1 << 20)
        remote.allow({each.public: each.machine for each in self.clusters})
        state = ShardState(index, "ready", endpoint, incarnation, term=self.terms[index])
        socket = MessageSocket.router(endpoint)
        server = Server(shard, socket, self.limits, len(self.processes), remote=remote)
        process = self.processes[index] = Process(machine, shard, peers, state, remote, server)
        await self.nursery.start(self._run, process, socket)
        self.tell()

    async def _run(self, process: Process, socket: MessageSocket, task_status: trio.TaskStatus[None]) -> None:
        shard, peers = process.shard, process.peers
        try:
            with process.scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(process.server.run)
                    await nursery.start(peers.run)
                    peers.update(self.states(process.machine))
                    forward = Forward(shard, peers)
                    task_status.started()
                    await nursery.start(forward.restore)
                    shard.mover.recovered()
                    nursery.start_soon(shard.mover.run, peers)
                    if peers.index == REGISTRAR:
                        await nursery.start(shard.registrar.run, peers)
                    await nursery.start(forward.run)
                    nursery.start_soon(RoomTasks(shard, peers, self.limits).run)
        finally:
            socket.close()
            process.remote.close()
            shard.close(checkpoint=False)
            process.ended.set()

    async def lose(self, index: int) -> None:
        """End the process that holds a shard."""
        process = self.processes[index]
        assert process is not None
        process.scope.cancel()
        await process.ended.wait()
        self.processes[index] = None
        self.tell()

    async def move(self, index: int, machine: int) -> None:
        """As after the loss of the machine that holds it."""
        await self.lose(index)
        await self.hold(index, machine)

    async def give(self, index: int, machine: int) -> None:
        """Hand a shard over: its process refuses what comes, until nothing more comes."""
        process = self.process(index)
        process.shard.move(moving(index))
        await process.shard.commits.idle()
        await process.server.dismiss()
        await self.move(index, machine)

    def process(self, index: int) -> Process:
        process = self.processes[index]
        assert process is not None
        return process

    async def ask(self, op: str, topic: str, body: Any = None, *, by: int = 0, at: int | None = None, **of: Any) -> Any:
        """Have shard `by` ask the topic's shard, or shard `at`. Returns the answer. Raises `TopicsError`."""
        index = shard_of(topic, len(self.processes)) if at is None else at
        raw = b"" if body is None else msgspec.json.encode(body)
        peers = self.process(by).peers
        await peers.returned(index)
        reply = await peers.request(index, operation(op, of), topic, raw)
        return msgspec.json.decode(reply.body) if reply.body else said(reply.extra)

    def name(self, index: int, number: int = 0) -> str:
        """The name of a topic of a shard."""
        found = (name for name in (f"t{n}" for n in range(9999)) if shard_of(name, len(self.processes)) == index)
        return [next(found) for _ in range(number + 1)][number]


@asynccontextmanager
async def holders(path: Path, *machines: int, **limits: Any) -> AsyncIterator[Holders]:
    """As many shards as there are `machines` that are to hold them."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            made = Holders(path, nursery, machines, **limits)
            for index, machine in enumerate(machines):
                await made.hold(index, machine)
            yield made
            nursery.cancel_scope.cancel()

"""The machine: its disks, its supervisor, and the processes that the supervisor starts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import trio

from gateway.admission.body_budget import Budget
from gateway.admission.in_flight import Flight
from gateway.api.dispatch import Api
from gateway.contract.auth import Keyring
from gateway.http.messages import ClientGone, Request, Response
from gateway.shards.client import Shards
from proto.ipc import askers
from proto.ipc.control import Members, Ready, Start, Stop
from proto.ipc.control import Shards as ShardStates
from proto.ipc.transport import Group, MessageSocket
from proto.model.limits import Limits
from shardd.process import bucket, main
from supervisor.process.cluster import Address
from tests.simulation.whole.network import ControlEnd, Network
from tests.simulation.whole.processes import Disk, Process, cut
from tests.simulation.whole.supervisor import SimulatedChild, Supervisor
from tests.support.fault_disk import FaultDisk

DATA = "/data"
SHARDS = 2
REBOOT_S = 0.05


class Call(Request):
    """A request that was parsed, and its answer."""

    __slots__ = ("_content", "answered", "gone", "response")

    def __init__(self, method: str, path: str, content: bytes, budget: Budget) -> None:
        super().__init__(method, path, "", {b"content-type": b"application/json"}, budget)
        self._content = content
        self.response: Response | None = None
        self.answered = trio.Event()
        self.gone = trio.Event()

    async def has_body(self) -> bool:
        return bool(self._content)

    async def body(self) -> bytes:
        return self._content

    async def disconnected(self) -> None:
        await self.gone.wait()


class Front:
    """The requests of one gateway, in place of its HTTP server."""

    def __init__(self, process: Process, api: Api, shards: Shards) -> None:
        self.api = api
        self.shards = shards
        self.budget = Budget()
        self._calls: set[Call] = set()
        self._new: list[Call] = []
        self._came = trio.Event()
        process.at_end.append(self._end)

    def _end(self) -> None:
        for call in [*self._calls, *self._new]:
            call.answered.set()

    def take(self, call: Call) -> None:
        self._new.append(call)
        self._came.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                await self._came.wait()
                self._came = trio.Event()
                new, self._new = self._new, []
                for call in new:
                    self._calls.add(call)
                    nursery.start_soon(self._serve, call)

    async def _serve(self, call: Call) -> None:
        try:
            call.response = await self.api.handle(call)
        except ClientGone:
            pass
        finally:
            call.finish()
            self._calls.discard(call)
        call.answered.set()


def shard_path(index: int) -> Path:
    return Path(DATA) / f"shard-{index:02d}"


async def _read(socket: MessageSocket, handle: Callable[[Group], object]) -> None:
    await socket.read(handle)


class Machine:
    name = ""
    """If there are several."""
    skew_s = 0.0
    """By how much its wall clock is ahead."""
    address: Address | None = None
    """Where other machines reach it, if there are any."""

    def __init__(
        self, network: Network, nursery: trio.Nursery, limits: Limits, failed: Callable[[str], object]
    ) -> None:
        """`failed` hears of each process that ends by an exception."""
        self.network = network
        self.nursery = nursery
        self.boots = 0
        self.disks: list[FaultDisk] = [FaultDisk() for _ in range(SHARDS)]
        self.front: Front | None = None
        self.ended: Callable[[Process], object] | None = None
        """Called with each child that ends."""
        self._limits = limits
        self._failed = failed
        self.boot()

    def boot(self) -> None:
        self.boots += 1
        self.supervisor = Supervisor(self, SHARDS, self._limits)
        self.nursery.start_soon(self.supervisor.process.run, self.supervisor.run)

    def crashed(self, process: Process, text: str) -> None:
        self._failed(f"{process.name} crashed: {text}")

    @property
    def ready(self) -> bool:
        return self.supervisor.ready and self.front is not None and self.front.shards.ready

    @property
    def processes(self) -> list[Process]:
        return [child.process for child in self.supervisor.children if child.process is not None]

    @property
    def all_processes(self) -> list[Process]:
        """With the supervisor's."""
        return [each for each in (self.supervisor.process, *self.processes) if not each.dead]

    def child(self, name: str) -> SimulatedChild:
        return next(each for each in self.supervisor.children if each.name == name)

    def disk(self, index: int) -> Disk | None:
        """The disk of a shard, if a process has it."""
        found = self.disks[index]
        return found if isinstance(found, Disk) else None

    def replace_disks(self) -> None:
        raise AssertionError("what was on the disks of the only machine is lost")

    def lift(self) -> None:
        """No disk fails from now on, and an operator restarts each shard that a second failure may have made read-only
        after a sync had failed."""
        for index in range(SHARDS):
            disk = self.disk(index)
            if disk is not None:
                disk.dies_in.clear()
                disk.next_fault.clear()
                process = self.child(f"shard-{index:02d}").process
                if disk.sync_failed and process is not None:
                    process.end()

    @property
    def prefix(self) -> str:
        """Begins the names of its processes."""
        return f"{self.name}." if self.name else ""

    def filled(self, index: int) -> bool:
        """Whether a shard has files."""
        return bool(self.disks[index].list(shard_path(index)))

    def halt(self) -> None:
        """End all processes."""
        self.supervisor.process.end()
        for process in self.processes:
            process.end()

    async def restart(self, power: Random | None, after_s: float = REBOOT_S, wiped: bool = False) -> None:
        """End all processes, with the power if that has a generator, and start the supervisor again. `wiped`: with
        other disks."""
        off = self.supervisor.process.dead
        self.halt()
        if power is not None:
            self.disks = [cut(disk, power) for disk in self.disks]
        if wiped:
            self.replace_disks()
        if not off:  # else it is about to start anyway
            await trio.sleep(after_s)
            self.boot()

    # What the processes do

    async def shard(self, link: ControlEnd, process: Process) -> int:
        start: Any = await link.receive()
        assert isinstance(start, Start)
        copy = bucket.Copy(start, shard_path(start.index))
        copy.disk = self.attached(start.index, process)  # type: ignore[assignment]
        copy.told(start.states)
        return await main.ShardProcess(link, start, copy, None).serve()  # type: ignore[arg-type]

    def attached(self, index: int, process: Process) -> Disk:
        """The disk of a shard, for its process."""
        disk = self.disks[index] = Disk.of(self.disks[index])
        disk.begin(process)
        return disk

    async def gateway(self, link: ControlEnd, process: Process) -> int:
        start: Any = await link.receive()
        assert isinstance(start, Start)
        name = askers.named(askers.gateway(0), start.incarnation)
        shards = Shards(start.shards, start.limits.request_timeout_ms, _read, name, start.cluster)
        api = Api(shards, Flight(), start.limits, Keyring(None), Budget())
        async with trio.open_nursery() as nursery:
            await nursery.start(shards.run)
            shards.update(start.states)
            front = self.front = Front(process, api, shards)
            process.at_end.append(partial(self._no_front, front))
            nursery.start_soon(front.run)
            await link.send(Ready())
            while not isinstance(message := await link.receive(), Stop):
                if isinstance(message, ShardStates):
                    shards.update(message.states)
                elif isinstance(message, Members):
                    shards.machines = message.known
        return 0

    async def roster(self, link: ControlEnd, process: Process) -> int:
        raise AssertionError("one machine has no roster")

    def _no_front(self, front: Front) -> None:
        if self.front is front:
            self.front = None

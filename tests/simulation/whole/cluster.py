"""Several machines with one bucket: the product's `shardd.process.main._begin` and `shardd.process.roster._keep` in the
processes of each, `supervisor.process.cluster.Machines` in its supervisor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import trio

from proto.ipc.control import Start
from proto.model.limits import Limits
from shardd.process import bucket, main
from shardd.process import roster as roster_process
from shardd.replication.attach import FORMAT, Service
from shardd.replication.names import SERVICE
from supervisor.process.cluster import Address
from tests.simulation.replication import Weather
from tests.simulation.whole.bucket import Bucket
from tests.simulation.whole.machine import DATA, SHARDS, Machine, shard_path
from tests.simulation.whole.network import ControlEnd, Network
from tests.simulation.whole.processes import Process
from tests.simulation.whole.remote import Ways
from tests.simulation.whole.supervisor import CREATED_MS, STOP_S
from tests.support.fault_disk import FaultDisk

PORT = 4100
LEAVES_S = 10.0


class ClusterMachine(Machine):
    """One of several machines."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        skew_s: float,
        network: Network,
        nursery: trio.Nursery,
        limits: Limits,
        failed: Callable[[str], object],
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.skew_s = skew_s
        self.powered = True
        self._power_cuts = 0
        self._directories = 1
        super().__init__(network, nursery, limits, failed)

    def boot(self) -> None:
        self.powered = True
        for index, disk in enumerate(self.disks):
            if shard_path(index) not in disk.dirs:
                disk.make_dir(shard_path(index))
                disk.sync_dir(Path(DATA))
        # A directory has one name, and a place names the running system as well.
        directory = f"{self.name}d{self._directories}"
        self.address = Address(self.name, PORT, f"tcp://{self.name}", directory, f"{directory}/{self._power_cuts}")
        super().boot()

    @property
    def ready(self) -> bool:
        """Whether it reaches all shards, wherever they are."""
        return self.front is not None and self.front.shards.ready

    async def lose_power(self, rng: Random, for_s: float, *, wiped: bool) -> None:
        """Be without power for a while; `wiped`: another machine without data takes its place."""
        self.powered = False
        self._power_cuts += 1
        await self.restart(rng, for_s, wiped)

    async def leave(self, for_s: float) -> None:
        """Have other machines take the shards, as by `topics leave`, end in order, and start again after a while."""
        supervisor, machines = self.supervisor, self.supervisor.machines
        if supervisor.process.dead or machines is None:
            return
        machines.leave()
        with trio.move_on_after(LEAVES_S):
            while not (machines.left or supervisor.process.dead):  # noqa: ASYNC110 - it depends on what has no event
                await trio.sleep(0.05)
        async with trio.open_nursery() as nursery:
            for child in supervisor.children:
                nursery.start_soon(child.stop, STOP_S)
        if not supervisor.process.dead:
            supervisor.process.end()
            await trio.sleep(for_s)
            self.boot()

    def replace_disks(self) -> None:
        self._directories += 1
        self.disks = [FaultDisk() for _ in range(SHARDS)]

    # What the processes do

    async def shard(self, link: ControlEnd, process: Process) -> int:
        start = await link.receive()
        assert isinstance(start, Start)
        process.disk = self.attached(start.index, process)
        with bucket.Copy(start, shard_path(start.index)) as copy:
            return await main._begin(link, start, copy)  # type: ignore[arg-type]

    async def roster(self, link: ControlEnd, process: Process) -> int:
        return await roster_process._keep(link)  # type: ignore[arg-type]


class Cluster:
    def __init__(
        self,
        rng: Random,
        skews_s: tuple[float, ...],
        network: Network,
        nursery: trio.Nursery,
        limits: Limits,
        failed: Callable[[str], object],
    ) -> None:
        """A machine for each of `skews_s`."""
        self.bucket = Bucket(rng, Weather.of(rng))
        self.ways = Ways()
        service = Service(FORMAT, CREATED_MS, SHARDS, limits.replication, limits.term_ttl_ms, limits.bucket_encrypt)
        self.bucket.store.objects[SERVICE] = msgspec.json.encode(service)  # as `topics serve` leaves it
        self.machines = [
            ClusterMachine(self, f"m{number}", skew_s, network, nursery, limits, failed)
            for number, skew_s in enumerate(skews_s)
        ]

    def machine(self, name: str) -> ClusterMachine:
        return next(each for each in self.machines if each.name == name)

"""The supervisor: the product's `Child` with processes of the simulation, and the reports that its service makes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
import trio
from msgspec.structs import replace

from proto.ipc import askers
from proto.ipc.control import Askers, Shards, ShardState, Start
from supervisor.process.child import Child
from supervisor.process.cluster import Machines
from supervisor.process.incarnation import Incarnation
from supervisor.process.launch import Launch, Recipe
from supervisor.process.shard_states import states
from supervisor.process.states import ChildEvent, ChildState
from tests.simulation.whole.network import ControlEnd
from tests.simulation.whole.processes import Process

if TYPE_CHECKING:
    from proto.model.limits import Limits
    from tests.simulation.whole.machine import Machine

CREATED_MS = 1_700_000_000_000
STOP_S = 10.0
RESTARTS = 100
"""Deaths within a minute that a child may have."""
Main = Callable[[ControlEnd, Process], Awaitable[int]]


class SimulatedIncarnation(Incarnation):
    """One whose process lives in this one."""

    def __init__(self, simulated: Process) -> None:
        super().__init__(_log)
        self._simulated = simulated

    def kill(self) -> None:
        self._simulated.end()


class SimulatedChild(Child):
    """A child whose processes live in this one."""

    process: Process | None = None

    def __init__(self, name: str, prepare: Callable[[int], Launch], of: Supervisor, main: Main) -> None:
        super().__init__(Recipe(name, _no_start, {}, prepare, RESTARTS, lambda: False), of.changed, _log)
        self._of = of
        self._main = main

    async def _live(self) -> int:
        if self._of.process.dead:  # its tasks only unwind
            await trio.sleep_forever()
        self.incarnation += 1
        launch = self._recipe.prepare(self.incarnation)
        machine = self._of.machine
        process = self.process = Process(machine.prefix + self.name, machine)
        living = self.living = SimulatedIncarnation(process)
        process.at_end.append(partial(self._noted, process))
        ours: Any
        ours, theirs = ControlEnd.pair(machine.network, self._of.process, process)
        machine.nursery.start_soon(process.run, lambda: self._main(theirs, process))
        self._apply(ChildEvent.SPAWN)

        async def ended() -> None:
            await process.ended.wait()
            await trio.sleep(machine.network.delay())
            ours.end()

        try:
            await living.run(ours, launch.start, self._handle, ended)
        finally:
            self.process = None
            living.died.set()
        machine.network.tell(f"{process.name}.{self.incarnation} has ended with {process.status}")
        return process.status

    def _noted(self, process: Process) -> None:
        if self._of.machine.ended is not None:
            self._of.machine.ended(process)


async def _no_start(*_: object) -> Any:
    raise AssertionError("a simulated child starts no process")


class Supervisor:
    """The part of `supervisor.process.service` that starts children and reports them to each other."""

    def __init__(self, machine: Machine, shards: int, limits: Limits) -> None:
        self.machine = machine
        self.process = Process(f"{machine.prefix}supervisor", machine)
        self._limits = limits
        self._endpoints = [""] * shards
        self._news: dict[str, trio.Event] = {}
        self.shards = [
            SimulatedChild(f"shard-{index:02d}", partial(self._for_shard, index), self, machine.shard)
            for index in range(shards)
        ]
        self.gateway = SimulatedChild("gateway", self._for_gateway, self, machine.gateway)
        self.children = [*self.shards, self.gateway]
        self.machines: Machines | None = None
        self.roster: SimulatedChild | None = None
        if machine.address is not None:
            self.machines = Machines(machine.address, self._tell_all, self._tell_roster)
            self.roster = SimulatedChild("roster", self._for_roster, self, machine.roster)
            self.children.append(self.roster)
        self._news = {each.name: trio.Event() for each in self.children}
        if self.machines is not None and self.roster is not None:
            self.machines.join(self.roster, self.shards, machine.filled)

    def states(self) -> list[ShardState]:
        phase = self.machines.phase if self.machines is not None else lambda index, phase: phase
        return states(self.shards, self._endpoints, phase)

    def askers(self) -> dict[str, int]:
        first = {askers.shard(index): child.first_living for index, child in enumerate(self.shards)}
        return {**first, askers.gateway(0): self.gateway.first_living}

    def _for_shard(self, index: int, incarnation: int) -> Launch:
        self._endpoints[index] = f"sim://{self.machine.prefix}{self.machine.boots}/{index}.{incarnation}"
        return Launch(partial(self._start, index, incarnation))

    def _for_roster(self, incarnation: int) -> Launch:
        return Launch(lambda: replace(self._start(0, 0), role="roster", endpoint=""))

    def _start(self, index: int, incarnation: int) -> Start:
        return Start(
            "shard",
            self._limits,
            index=index,
            shards=len(self.shards),
            data_dir="/data",
            created_ms=CREATED_MS,
            address=f"http://{self.machine.name}",
            endpoint=self._endpoints[index],
            states=self.states(),
            incarnation=incarnation,
            askers=self.askers(),
            cluster=None if self.machines is None else self.machines.of_shard(index),
        )

    def _for_gateway(self, incarnation: int) -> Launch:
        def start() -> Start:
            states = self.states()
            cluster = None if self.machines is None else self.machines.of_asker()
            return Start(
                "gateway",
                self._limits,
                shards=len(states),
                states=states,
                incarnation=incarnation,
                cluster=cluster,
            )

        return Launch(start)

    def changed(self, child: Child) -> None:
        for each in self.shards if child is self.gateway else self.children:
            self._news[each.name].set()
        if self.machines is not None and child is not self.gateway:
            self.machines.saw(child)

    def _tell_roster(self) -> None:
        self._news["roster"].set()

    def _tell_all(self) -> None:
        for each in self.children:
            self._news[each.name].set()

    async def run(self) -> int:
        """Run all children until the supervisor's process ends."""
        async with trio.open_nursery() as nursery:
            for child in self.children:
                nursery.start_soon(child.run)
                nursery.start_soon(self._relay, child)
        return 0

    async def _relay(self, child: SimulatedChild) -> None:
        while True:
            await self._news[child.name].wait()
            self._news[child.name] = trio.Event()
            if child is not self.gateway:
                await child.tell(Askers(self.askers()))
            if self.machines is not None:
                await self.machines.see_to(child, STOP_S)
            await child.tell(Shards(self.states()))

    @property
    def ready(self) -> bool:
        return all(child.state is ChildState.SERVING for child in self.children)


_log = structlog.get_logger()

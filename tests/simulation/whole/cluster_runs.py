"""Runs of several machines: a schedule of `cluster_schedule` is carried out, and judged as that of one machine is."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import trio

from shardd.replication.names import MOVES
from tests.simulation.whole.bucket import BucketOfProcess
from tests.simulation.whole.cluster import Cluster, ClusterMachine
from tests.simulation.whole.cluster_schedule import WHOLE
from tests.simulation.whole.cluster_seams import several
from tests.simulation.whole.machine import Machine
from tests.simulation.whole.runs import Run, Stage
from tests.simulation.whole.schedule import Schedule, Step
from tests.simulation.whole.seams import replaced
from tests.simulation.whole.threads import Threads

CALM_S = 0.01
"""The longest time of a thread, and of a way to the bucket, where nothing fails: several longer ones in a row make a
term end."""


def run(schedule: Schedule) -> Run:
    """Carry a schedule of several machines out. Returns what it was; the same each time."""
    rng = Random(f"{schedule.seed} seams")
    stage = _ClusterStage(Run(schedule))
    failed = stage.made.found.append
    threads = Threads(rng, CALM_S) if schedule.calm else Threads(rng)
    with replaced(rng, failed, threads), several(rng, lambda of: BucketOfProcess(stage.bucket, of)):
        return stage.carry_out()


class _ClusterStage(Stage):
    def _booted(self, nursery: trio.Nursery) -> Sequence[Machine]:
        schedule, rng = self.schedule, Random(f"{self.schedule.seed} bucket")
        failed = self.made.found.append
        self.cluster = Cluster(rng, schedule.skews_s, self.network, nursery, schedule.limits, failed)
        self.bucket = self.cluster.bucket
        if schedule.calm:
            self.bucket.longest_s = CALM_S
        return self.cluster.machines

    def _faults_may_begin(self) -> None:
        super()._faults_may_begin()
        self.bucket.bad = not self.schedule.calm

    def _no_more_faults(self) -> None:
        super()._no_more_faults()
        self.bucket.bad = False

    def _judged(self) -> list[str]:
        counts = self.made.counts
        counts.update(self.bucket.counts)
        for operation, name in self.bucket.store.calls:
            kind = name.partition("/")[0] if name.startswith(MOVES) else name.split("/")[1] if "/" in name else name
            counts[f"{operation} {kind}"] += 1
        return super()._judged()

    async def _befall(self, step: Step) -> None:
        if step.what not in WHOLE:
            await super()._befall(step)
            return
        machine = self._machine(step)
        assert isinstance(machine, ClusterMachine)
        for_s, until = step.with_.get("for_s", 0.0), trio.current_time() + step.with_.get("for_s", 0.0)
        match step.what:
            case "stop":
                await self._pause(step, machine.all_processes)
            case "cut bucket":
                self.bucket.cut_until[machine.name] = max(until, self.bucket.cut_until.get(machine.name, 0.0))
            case "cut machines":
                ways = self.cluster.ways.cut_until
                ways[machine.name] = max(until, ways.get(machine.name, 0.0))
            case "power" | "wipe":
                rng = Random(f"{self.schedule.seed} {step.number}")
                await machine.lose_power(rng, for_s, wiped=step.what == "wipe")
            case "all":
                await machine.restart(None)
            case "leave":
                await machine.leave(for_s)

    def _machine(self, step: Step) -> Machine:
        return self.cluster.machine(step.of.partition(".")[0])

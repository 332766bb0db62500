"""Runs: a schedule is carried out, and judged."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import trio

from tests.history import jobs
from tests.history.bar import Violation
from tests.history.recording import body_of
from tests.simulation.whole import inner_trio
from tests.simulation.whole.crowd import Account, Client, Unserved
from tests.simulation.whole.machine import Machine
from tests.simulation.whole.network import PROCESS, Network
from tests.simulation.whole.processes import Process
from tests.simulation.whole.schedule import CLIENTS, COPY, DEAD, MORTAL, QUEUES, SOURCE, Schedule, Step
from tests.simulation.whole.seams import Slow, now_ns, replaced
from tests.simulation.whole.supervisor import SimulatedChild
from topics_history import checker
from topics_history import format as f

LONGEST_S = 120.0
"""Of the simulation's time: the longest that a run may take."""
SERVES_S = 30.0
LOOK_S = 0.05


@dataclass
class Run:
    """What a run was. `found` are the violations, in words."""

    schedule: Schedule
    found: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    history: bytes = b""


def run(schedule: Schedule) -> Run:
    """Carry a schedule out. Returns what it was; the same each time."""
    rng = Random(f"{schedule.seed} seams")
    stage = Stage(Run(schedule))
    with replaced(rng, stage.made.found.append, Slow(rng)):
        return stage.carry_out()


class Stage:
    """One run."""

    def __init__(self, made: Run) -> None:
        self.made = made
        self.schedule = made.schedule
        self.rng = Random(f"{self.schedule.seed} faults")
        self.account = Account(self.schedule.header, self.schedule.routers)

    def tell(self, line: str) -> None:
        self.made.trace.append(f"{trio.current_time() - inner_trio.BEGINS_AT:.6f} {line}")

    def carry_out(self) -> Run:
        try:
            inner_trio.run(self.schedule.seed, self._run)
        except* Unserved as group:
            self.made.found += _texts(group)
        return self.made

    async def _run(self) -> None:
        self.network = Network(Random(f"{self.schedule.seed} network"), self.tell)
        with trio.move_on_after(LONGEST_S) as limit:
            async with trio.open_nursery() as nursery:
                self.nursery = nursery
                self.machines = self._booted(nursery)
                try:
                    await self._act()
                finally:
                    for machine in self.machines:
                        machine.halt()
                    nursery.cancel_scope.cancel()
        if limit.cancelled_caught:
            self.made.found.append(f"the run has not ended after {LONGEST_S:.0f} s")

    def _booted(self, nursery: trio.Nursery) -> Sequence[Machine]:
        return [Machine(self.network, nursery, self.schedule.limits, self.made.found.append)]

    async def _act(self) -> None:
        await self._serves()
        used = self.machines[:1] if self.schedule.calm else self.machines  # none of those that leave
        clients = [Client(used, self.account, f"c{n}", self.schedule.seed) for n in range(CLIENTS)]
        reader = Client(used, self.account, "reader", self.schedule.seed)
        for client in clients if self.schedule.calm else ():
            client.loses = 0.0
        reader.loses = 0.0
        await self._begin(reader)
        self.begun = trio.current_time()
        try:
            async with trio.open_nursery() as self.notes, trio.open_nursery() as nursery:
                for client in clients:
                    nursery.start_soon(self._client, client)
                for step in self.schedule.steps:
                    if step.who == "fault":
                        nursery.start_soon(self._fault, step)
                self._faults_may_begin()
                await trio.sleep_until(self.begun + self.schedule.lasts_s)
                self._no_more_faults()
        finally:
            for machine in self.machines:
                machine.ended = None
        await self._serves()
        await self._finish(reader)
        self.made.found += self._judged()
        if self.schedule.calm:
            self.made.found += [f"a request failed though nothing did: {each}" for each in _failed(clients)]

    def _faults_may_begin(self) -> None:
        for machine in self.machines:
            machine.ended = self._ended

    def _no_more_faults(self) -> None:
        for machine in self.machines:
            machine.lift()

    async def _serves(self) -> None:
        with trio.move_on_after(SERVES_S):
            while not all(machine.ready for machine in self.machines):  # noqa: ASYNC110 - it depends on what has no event
                await trio.sleep(LOOK_S)
            return
        states = [
            (machine.prefix + each.name, each.state.value, each.phase)
            for machine in self.machines
            for each in machine.supervisor.children
        ]
        raise Unserved(f"the service does not serve after {SERVES_S:.0f} s: {states}")

    async def _begin(self, client: Client) -> None:
        for topic in self.schedule.topics:
            await _insist(client, "PUT", f"/v0/topics/{topic}", self.schedule.config(topic))
        for router in self.schedule.routers:
            await _insist(client, "PUT", "/v0/routers/p", {"source": router.source, "dest": router.dest})

    async def _client(self, client: Client) -> None:
        for step in self.schedule.steps:
            if step.who == client.name:
                await trio.sleep_until(self.begun + step.at)
                await _operate(client, step)
                self.made.counts[f"{step.what} {client.outcome}"] += 1

    # Faults

    async def _fault(self, step: Step) -> None:
        await trio.sleep_until(self.begun + step.at)
        self.tell(f"fault: {step.what} {step.of}")
        self.made.counts[step.what] += 1
        await self._befall(step)

    async def _befall(self, step: Step) -> None:
        match step.what:
            case "kill":
                process = self._victim(step).process
                if process is not None:
                    process.end()
            case "pause":
                process = self._victim(step).process
                await self._pause(step, [] if process is None else [process])
            case "all" | "power":
                rng = Random(f"{self.schedule.seed} {step.number}") if step.what == "power" else None
                await self._machine(step).restart(rng)
            case _:
                self._break_disk(step)

    def _machine(self, step: Step) -> Machine:
        """That of a fault's victim."""
        return next(each for each in self.machines if each.name == step.of.rpartition(".")[0])

    def _victim(self, step: Step) -> SimulatedChild:
        return self._machine(step).child(step.of.rpartition(".")[2])

    def _ended(self, process: Process) -> None:
        """Note a fault from now until the service serves again."""
        self.notes.start_soon(self._noted, "kill", process.name, now_ns())

    async def _noted(self, kind: str, of: str, start_ns: int) -> None:
        await trio.sleep(LOOK_S)
        await self._serves()
        self.account.write(f.Fault, "nemesis", start_ns, "ok", args=f.FaultArgs(kind, of))  # type: ignore[arg-type]

    async def _pause(self, step: Step, processes: list[Process]) -> None:
        if not processes:
            return
        start_ns = now_ns()
        for process in processes:
            process.paused = True
        inner_trio.hold(_of_paused)
        await trio.sleep(step.with_["for_s"])
        for process in processes:
            process.paused = False
        if not any(each.paused for machine in self.machines for each in machine.all_processes):
            inner_trio.hold(None)
        self.account.write(f.Fault, "nemesis", start_ns, "ok", args=f.FaultArgs("pause", step.of))

    def _break_disk(self, step: Step) -> None:
        index = int(step.of[-2:])
        disk = self._machine(step).disk(index)
        process = self._victim(step).process
        if disk is None or process is None:
            return
        if step.what == "dies":
            disk.dies_in[:] = step.with_["calls"]
        elif step.what == "sync fails":
            disk.next_fault["sync"] = OSError(errno.EIO, "Input/output error")
        else:
            taken = step.with_["bytes"]
            disk.next_fault["write"] = OSError(errno.EIO, "Input/output error") if taken is None else taken

    # The end

    async def _finish(self, client: Client) -> None:
        if COPY in self.schedule.topics:
            await self._await_copies(client)
        if MORTAL in self.schedule.topics:
            await self._await_letters(client)
        self.account.write(f.Settled, client.name, now_ns(), "ok")
        for topic in self.schedule.header:
            if topic != MORTAL:
                await self._read_whole(client, topic)
        self.waiting, self.dead = Counter[str](), Counter[str]()
        if MORTAL in self.schedule.topics:
            told = await _insist(client, "POST", f"/v0/topics/{MORTAL}/peek", {"first_seq": 0, "max": 1000})
            self.waiting.update(body_of(job["data"]) for job in told["jobs"])
            told = await _insist(client, "POST", f"/v0/topics/{DEAD}/diff", {"from_seq": 0, "limit": 1000})
            self.dead.update(body_of(record["data"]) for record in told["records"])

    async def _read_whole(self, client: Client, topic: str) -> None:
        position, ended = 0, False
        while not ended:
            if topic in QUEUES:
                found = await client.settled(partial(client.peek, topic, position + 1))
            else:
                found = await client.settled(partial(client.read, topic, position, limit=1000))
            position, ended = found.next_from_seq, found.caught_up

    async def _await_copies(self, client: Client) -> None:
        topic, body, args = client.new_append(SOURCE, keyed=True)
        await client.settled(lambda: client.append_again(topic, body, args))
        position = 0
        with trio.move_on_after(SERVES_S):
            while True:
                found = await client.settled(partial(client.read, COPY, position, wait_ms=200))
                position = found.next_from_seq
                if any(each == args.bodies[0] for _, each in found.records):
                    return
        raise Unserved("a router does not copy long after the last fault")

    async def _await_letters(self, client: Client) -> None:
        with trio.move_on_after(SERVES_S):
            while True:
                answer = await client.send("GET", f"/v0/topics/{MORTAL}")
                if answer.outcome == "ok" and not answer.body["queue"]["dead_lettering"]:
                    return
                await trio.sleep(0.1)
        raise Unserved("dead letters do not arrive long after the last fault")

    def _judged(self) -> list[str]:
        self.account.close()
        self.made.history = self.account.file.getvalue()
        report = checker.check(self.account.path)
        self.made.counts.update({f"outcome {name}": count for name, count in report.outcomes.items()})
        found = [str(each) for each in report.violations]
        found += [f"{topic} was not read to its end" for topic in report.unread or () if topic != MORTAL]
        if MORTAL in self.schedule.topics:
            try:
                self.made.counts.update(jobs.ends(self.account.path, MORTAL, self.waiting, self.dead))
            except Violation as violation:
                found.append(str(violation))
        return found


def _failed(clients: list[Client]) -> list[str]:
    return [each for client in clients for each in client.failed]


def _texts(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [text for each in error.exceptions for text in _texts(each)]
    return [str(error)]


def _of_paused(task: Any) -> bool:
    process = task.context.get(PROCESS)
    return process is not None and process.paused


async def _insist(client: Client, method: str, path: str, body: Any) -> Any:
    """Repeat a request that is not in the history until it succeeds: a shard may move meanwhile."""
    with trio.move_on_after(SERVES_S):
        while True:
            answer = await client.send(method, path, body)
            if answer.outcome == "ok":
                return answer.body
            await trio.sleep(0.1)
    raise Unserved(f"{method} {path} has no success for {SERVES_S:.0f} s: {answer}")


async def _operate(client: Client, step: Step) -> None:
    topic, more = step.of, step.with_
    at = client.positions.get(topic, 0)
    held = client.jobs.get(topic, [])
    client.rng = Random(f"{client.seed} {step.number}")
    match step.what:
        case "append":
            made = client.new_append(topic, more["count"], tag=more["tag"], keyed=more["keyed"])
            if more["keyed"]:
                client.keyed.append(made)
            for _ in range(3 if more["keyed"] else 1):
                await client.append_again(*made)
                if client.outcome != "unknown":
                    break
        case "again" if client.keyed:
            await client.append_again(*client.rng.choice(client.keyed))
        case "read":
            found = await client.read(topic, at, **more)
            client.positions[topic] = at if found is None else found.next_from_seq
        case "state":
            await client.state(topic)
        case "delete" if "kept" in more:
            await client.delete(topic, before=max(0, at - more["kept"]))
        case "delete":
            await client.delete(topic, tag=more["tag"])
        case "put cursor":
            await client.put_cursor(topic, "c", at)
        case "get cursor":
            await client.get_cursor(topic, "c")
        case "claim":
            found = await client.claim(topic, more["most"], more["lease_ms"], more["wait_ms"])
            if found is not None and found.jobs:
                client.jobs[topic] = found.jobs
        case "ack" | "nack" | "extend" if held:
            kind: Callable[..., Any] = {"ack": f.Ack, "nack": f.Nack, "extend": f.Extend}[step.what]
            await client.use(kind, topic, held, 300)  # type: ignore[arg-type]


def without(schedule: Schedule, steps: set[int]) -> Schedule:
    """The schedule without the steps of these numbers."""
    return replace(schedule, steps=tuple(step for step in schedule.steps if step.number not in steps))

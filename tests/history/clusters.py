"""Bar 13: three machines that hear each other, and their clients, which use any of them. The S3 server and each machine
have a network namespace of their own. A run is a schedule, drawn from its seed, of a few steps. A step is one fault or
two at a time, each of another machine; it ends when all faults are lifted and every machine is ready:

    kill      all processes of a machine die, and start again later
    pause     all processes of a machine stand still for longer than the time to live
    moment    the same, for less than the time to live
    drain     a machine is stopped in order, and starts again later
    bucket    the cable between a machine and the bucket is pulled, for less than the time to live or longer
    others    that between a machine and both the others and its clients
    off       both
    join      a machine with an empty directory is started, also one that has left
    leave     `topics leave` on a machine

Steps begin while shards still move because of those before. Topics are those of bar 10: of class `fsync`, with leases
that last. For its reason, the whole history is one fault. Two promises are the bar's own:

    settled   in the end, each shard has one holder, and every machine answers for every topic
    left      a machine that was told to leave has done so when the other faults are over
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.history.bar import Bar, Stopped, Violation, claim, read_whole
from tests.history.clients import Crowd, SocketWatcher, Watcher, Worker
from tests.history.networks import all_catch_up
from tests.history.recording import Client, Recording
from tests.history.steady import SteadyMixed, SteadyPoller
from tests.history.takeovers import Insistent, Takeovers
from tests.support.cluster import Cluster
from tests.support.service import Service
from topics_history import format as f

NAMES, SPARE = ("one", "two", "three"), ("four",)
TTL_MS = 3000
"""A machine with twelve shard processes on two cores renews in time."""
STEPS = 4
"""Of a schedule."""
FEWEST = 2
"""Machines, at least."""
TIMEOUTS_S = (12.0, 3.0)
"""Of clients by turns: a machine that hears of a loss answers when another has taken over; one that is cut off answers
nothing."""
KINDS = {
    "kill": 3,
    "pause": 2,
    "moment": 1,
    "drain": 2,
    "bucket": 2,
    "others": 2,
    "off": 1,
    "join": 2,
    "leave": 2,
}
"""Faults, and how often each comes."""
LEAST = {**dict.fromkeys(KINDS, 0.1), "moves": 0.5, "takeovers": 0.5, "appends": 50.0, "jobs": 2.0, "frames": 50.0}
"""For each schedule of a run, on average: faults, and what was checked."""
Fault = Generator[float]
"""Causes its damage, yields the seconds that it shall last, and undoes it."""


def missing(counts: Mapping[str, int], schedules: int) -> list[str]:
    """What a run of so many schedules has too little of to prove anything."""
    least = {what: int(share * schedules) for what, share in LEAST.items()}
    found = [f"{counts.get(what, 0)} {what}, and {few} are to be" for what, few in least.items()]
    short = [text for text, (what, few) in zip(found, least.items(), strict=True) if counts.get(what, 0) < few]
    return short if any(counts.get(kind) for kind in KINDS) else [*short, "no fault"]


class Clusters(Bar):
    fault = "other"
    rest_s = (0.3, 1.5)
    configs = Takeovers.configs
    topics = Takeovers.topics

    def __init__(self, directory: Path, seed: int, scale: float) -> None:
        super().__init__(directory, seed, scale)
        self._cluster: Cluster | None = None
        self._watchers: list[Watcher] = []
        self._began_ns = 0
        self._free: list[str] = []
        """Members without a fault."""

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    def service(self, **environment: str) -> Service:
        environment |= {"TOPICS_BUCKET_TIMEOUT_MS": "2000"}
        self._cluster = Cluster(self.directory, NAMES, SPARE, TTL_MS, **environment)
        return self._cluster

    def begin(self, service: Service) -> None:
        super().begin(service)
        self._began_ns = time.monotonic_ns()

    def crowd(self, service: Service, recording: Recording, clients: int) -> list[Crowd]:
        kinds: list[type[Crowd]] = [SteadyMixed, Worker, Watcher, SteadyMixed, SocketWatcher, SteadyPoller]
        crowd = [kinds[n % len(kinds)](service, recording, f"c{n}", self.seed) for n in range(clients)]
        for n, each in enumerate(crowd):
            self._spread_out(each.client, TIMEOUTS_S[n % len(TIMEOUTS_S)])
        self._watchers = [each for each in crowd if isinstance(each, Watcher)]
        return crowd

    def _spread_out(self, client: Client, timeout_s: float = min(TIMEOUTS_S)) -> None:
        client.machines = lambda: self.cluster.members
        client.timeout_s = timeout_s

    # -- faults

    def strike(self, service: Service) -> tuple[str, float]:
        """One step."""
        drawn = self.rng.choices(list(KINDS), list(KINDS.values()), k=self.rng.choice((1, 1, 2)))
        kinds = dict.fromkeys(drawn)  # two of a kind are one: else too many may leave
        names = {name: each for name, each in self.cluster.machines.items() if each in self.cluster.members}
        self._free = self.rng.sample(list(names), len(names))
        began, going, told = time.monotonic(), [], []
        for kind in map(self._possible, kinds):
            name = self._spare() if kind == "join" else self._free.pop()
            fault = self._faults()[kind](name)
            lasts_s = next(fault)
            told.append(f"{kind} of {name} for {lasts_s:.1f} s")
            self._tell(f"{(time.monotonic_ns() - self._began_ns) / 1e9:6.1f} s  {told[-1]}")
            going.append((kind == "leave", began + lasts_s, fault))
            self.counts[kind] += 1
        for _, ends, fault in sorted(going, key=lambda each: each[:2]):
            time.sleep(max(ends - time.monotonic(), 0))
            next(fault, None)
        return "; ".join(told), time.monotonic()

    def _tell(self, line: str) -> None:
        with (self.directory / "story.txt").open("a") as story:
            story.write(f"{line}\n")

    def _spare(self) -> str:
        machines, members = self.cluster.machines, self.cluster.members
        return next((name for name, each in machines.items() if each not in members), "")

    def _possible(self, kind: str) -> str:
        """Machines that are there may leave, and those that are not may join."""
        if kind == "join" and not self._spare():
            return "leave"
        if kind == "leave" and len(self.cluster.members) <= FEWEST:
            return "join"
        return kind

    def _faults(self) -> dict[str, Callable[[str], Fault]]:
        return {
            "kill": self._kill,
            "pause": lambda name: self._stop(name, self._long_s()),
            "moment": lambda name: self._stop(name, self._short_s()),
            "drain": self._drain,
            "bucket": lambda name: self._cut(name, "bucket"),
            "others": lambda name: self._cut(name, "clients"),
            "off": lambda name: self._cut(name, "bucket", "clients"),
            "join": self._join,
            "leave": self._leave,
        }

    def _short_s(self) -> float:
        return self.rng.uniform(0.1, 0.7) * self.cluster.ttl_s

    def _long_s(self) -> float:
        return self.rng.uniform(1.2, 2.5) * self.cluster.ttl_s

    def _any_s(self) -> float:
        return self.rng.choice((self._short_s, self._long_s))()

    def _kill(self, name: str) -> Fault:
        machine = self.cluster.machines[name]
        machine.kill_group()
        yield self._any_s()
        machine.start(wait=False)

    def _drain(self, name: str) -> Fault:
        machine = self.cluster.machines[name]
        machine.stop()
        yield self._short_s()
        machine.start(wait=False)

    def _stop(self, name: str, lasts_s: float) -> Fault:
        with ExitStack() as stopped:
            for pid in self.cluster.machines[name].pids():
                with suppress(ProcessLookupError):  # it has just ended
                    stopped.enter_context(Stopped(pid))
            yield lasts_s

    def _cut(self, name: str, *middles: str) -> Fault:
        for middle in middles:
            self.cluster.net.pull(name, middle)
        yield self._any_s()
        for middle in middles:
            self.cluster.net.plug(name, middle)

    def _join(self, name: str) -> Fault:
        self.cluster.join(name)
        yield self._short_s()

    def _leave(self, name: str) -> Fault:
        machine = self.cluster.machines[name]
        command = [sys.executable, "-m", "supervisor.cli", "leave", "--within", "120"]
        with subprocess.Popen(
            command, env=machine.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as leaving:
            yield self._short_s()
            said, _ = leaving.communicate()
        claim(leaving.returncode == 0, "NotLeft", f"{name}: {said}{machine.log_tail()}")
        self.cluster.left(name)
        status = machine.wait_exit()
        claim(status == 0, "NotLeft", f"{name} ended with status {status}{machine.log_tail()}")

    # -- the end

    def finish(self, client: Client, path: Path) -> None:
        whole = f.FaultArgs(self.fault, "a machine, as far as another one took over by itself")
        client.recording.write(f.Fault, "nemesis", self._began_ns, "ok", args=whole)
        with _settling():
            self.cluster.wait_ready()
            last = Insistent(self.cluster, client.recording, "insistent", self.seed)
            self._spread_out(last)
            super().finish(last, path)
            for machine in self.cluster.members:
                last.close()
                last.machines = lambda machine=machine: (machine,)
                for topic in self.configs:
                    read_whole(last, topic, self.topics[topic].type == "queue")
            all_catch_up(last, self._watchers)
            last.close()
        self.counts += self.cluster.changes()

    def judge(self, path: Path) -> None:
        with path.open("rb") as file:
            for line in f.Reader(file):
                if line.outcome == "ok":
                    self.counts["appends"] += isinstance(line, f.Append)
                    self.counts["jobs"] += isinstance(line, f.Ack)
                    self.counts["frames"] += isinstance(line, f.Frame)

    def figures(self) -> str:
        return "machines: " + ", ".join(f"{count} {what}" for what, count in self.counts.items() if count)


@contextmanager
def _settling() -> Iterator[None]:
    """A service that does not settle breaks a promise."""
    try:
        yield
    except Violation:
        raise
    except AssertionError as error:
        claim(False, "Unsettled", str(error))

"""Bar 10: takeovers. Two machines have one bucket, and retention of the bucket is at its shortest. All the time a share
of the requests to the bucket meet a fault (`tests.support.bad_bucket`). Besides:

    kill      all processes of a machine die, and start again when the other one serves
    pause     all processes of a machine stand still for three times the time to live
    deaf      requests of a machine to the bucket do not arrive, for half of the time to live or three times that
    mute      the answers to them do not
    silence   the bucket is silent for a while
    drain     a machine is stopped in order, and starts again

All topics are of class `fsync`, and leases last: with `sync` a takeover takes neither. It may come at any time on
a busy machine, so the whole history is one fault: that excuses a stream that steps back after a reconnect.

The clients are behind a balancer. Besides, each machine has a witness that asks it alone. Two promises are the bar's
own:

    one answers    the machines that answered, in the order of time, are a part of the terms in their order
    takeover       after a kill, the other machine serves within the time to live and `TAKEOVER_S` (the median, and in
                   a full run only)
"""

from __future__ import annotations

import signal
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple

from proto.model.names import shard_of
from tests.history.bar import Bar, Stopped, claim
from tests.history.clients import CAPPED, CONFIGS, LOGS, TOPICS, Crowd
from tests.history.recording import Answer, Client, Recording
from tests.support.machines import PATIENCE_S, SHARDS, Machines
from tests.support.service import Service, until
from topics_history import format as f

NAMES = ("one", "two")
TTL_MS = 3000
SHARE = 0.01
"""Of the requests to the bucket, those that meet a fault."""
TAKEOVER_S = 2.0
"""Half a look more, the terms and fences of both shards one after the other, and a replay."""
ASKED = [*LOGS, CAPPED]
KINDS = {"kill": 2, "pause": 2, "deaf": 2, "mute": 1, "silence": 1, "drain": 1}
"""Faults, and how often each comes."""
BETWEEN = 50
"""Answers that witnesses get between two faults, at least: a machine of tests may be slow."""


class Reply(NamedTuple):
    """A read that a machine answered."""

    start_ns: int
    end_ns: int
    machine: str


def answers_out_of_term(replies: Iterable[Reply], terms: Sequence[str]) -> list[str]:
    """Answers that no term of their machine allows: terms are one after the other, so an answer that began when another
    one had ended is of the same term or a later one. `terms` has the machine of each, in order."""
    found: list[str] = []
    earliest = 0
    """The first term that the answers which have ended leave."""
    open_: list[tuple[int, int]] = []
    """Answers that may overlap the next: end, and the first term of each that is possible."""
    for reply in sorted(replies):
        while open_ and open_[0][0] < reply.start_ns:
            earliest = max(earliest, heappop(open_)[1])
        at = next((n for n in range(earliest, len(terms)) if terms[n] == reply.machine), None)
        if at is None:
            found.append(f"{reply.machine} answered at {reply.start_ns} to {reply.end_ns}, after term {earliest + 1}")
        else:
            heappush(open_, (reply.end_ns, at))
    return found


class Insistent(Client):
    """Repeats each request until it is answered: on a busy machine, a term may not be renewed in time for a moment. An
    append needs a key."""

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        answers: list[Answer] = []

        def answered() -> bool:
            answers.append(super(Insistent, self).ask(method, path, body))
            return answers[-1].status not in (0, 503)

        try:
            until(answered, f"an answer to {method} {path}", PATIENCE_S)
        except AssertionError as error:
            last = f"{str(answers[-1])[:500]} at {self.last}, {self.broken!r}"
            raise AssertionError(f"{error}; the last of {len(answers)} was {last}") from None
        return answers[-1]


class Witness(Crowd):
    """Asks one machine all the time, whether or not it holds the shards."""

    def __init__(self, service: Service, recording: Recording, name: str, seed: int, machine: str, port: int) -> None:
        super().__init__(service, recording, name, seed)
        self.client.port = port
        self._machine = machine
        self._heads = dict.fromkeys(ASKED, 0)
        self.replies: list[list[Reply]] = [[] for _ in range(SHARDS)]
        """By shard."""

    def turn(self) -> None:
        topic, start_ns = self.rng.choice(ASKED), time.monotonic_ns()
        if self.rng.random() < 0.5:
            found = self.client.state(topic)
        else:
            found = self.client.read(topic, max(self._heads[topic] - 5, 0), limit=10)
        if found is not None:
            self._heads[topic] = found.head_seq
            self.replies[shard_of(topic, SHARDS)].append(Reply(start_ns, time.monotonic_ns(), self._machine))
        self.stopping.wait(self.rng.random() * 0.02)


class Takeovers(Bar):
    fault = "other"
    rest_s = (2.0, 6.0)
    configs: ClassVar = {
        topic: {**config, "durability": "fsync"} | ({"leases_durable": True} if "type" in config else {})
        for topic, config in CONFIGS.items()
    }
    topics: ClassVar = {
        name: f.Topic(topic.type, topic.lossy, leases_durable=topic.type == "queue") for name, topic in TOPICS.items()
    }

    def __init__(self, directory: Path, seed: int, scale: float) -> None:
        super().__init__(directory, seed, scale)
        self._witnesses: list[Witness] = []
        self._terms: list[list[str]] = []
        self._struck: Counter[str] = Counter()
        self._took_s: list[float] = []
        self._began_ns = 0
        self._machines: Machines | None = None

    @property
    def machines(self) -> Machines:
        assert self._machines is not None
        return self._machines

    def service(self, **environment: str) -> Service:
        environment |= {
            "TOPICS_BUCKET_TIMEOUT_MS": "2000",
            "TOPICS_BUCKET_RETAIN_MS": "0",
            "TOPICS_CHECKPOINT_BYTES": "200000",
            "TOPICS_CHECKPOINT_INTERVAL_MS": "2000",
        }
        rng = Random(f"{self.seed} bucket")
        self._machines = Machines(self.directory, NAMES, rng, SHARE, TTL_MS, **environment)
        return self._machines

    def begin(self, service: Service) -> None:
        super().begin(service)
        self._began_ns = time.monotonic_ns()

    def crowd(self, service: Service, recording: Recording, clients: int) -> list[Crowd]:
        self._witnesses = [
            Witness(service, recording, f"witness-{name}", self.seed, name, machine.port)
            for name, machine in self.machines.machines.items()
        ]
        return [*super().crowd(service, recording, clients), *self._witnesses]

    # -- faults

    def strike(self, service: Service) -> tuple[str, float]:
        enough = self._replies() + BETWEEN
        until(lambda: self._replies() >= enough, "answers to witnesses", PATIENCE_S)
        (kind,) = self.rng.choices(list(KINDS), list(KINDS.values()))
        holder = until(self.machines.holder, "a holder", PATIENCE_S)
        other = next(name for name in NAMES if name != holder)
        name = holder if self.rng.random() < 0.8 else other
        self._struck[kind] += 1
        machine, ttl_s = self.machines.machines[name], self.machines.ttl_s
        if kind == "kill":
            self._kill(name, other if name == holder else "")
        elif kind == "pause":
            with ExitStack() as stopped:
                for pid in machine.pids():
                    with suppress(ProcessLookupError):  # it has just ended
                        stopped.enter_context(Stopped(pid))
                time.sleep(3 * ttl_s)
        elif kind == "silence":
            self.machines.store.signal(signal.SIGSTOP)
            time.sleep(self.rng.uniform(0.2, 2) * ttl_s)
            self.machines.store.signal(signal.SIGCONT)
        elif kind == "drain":
            machine.stop()
            machine.start(wait=False)
        else:
            self.machines.ways[name].cut(kind)
            time.sleep(self.rng.choice((0.5, 3)) * ttl_s)
            self.machines.ways[name].mend()
        return f"{kind} of {name}", time.monotonic()

    def _replies(self) -> int:
        return sum(len(each) for witness in self._witnesses for each in witness.replies)

    def _kill(self, name: str, successor: str) -> None:
        machine, began = self.machines.machines[name], time.monotonic()
        machine.kill_group()
        if successor:
            until(self.machines.machines[successor].is_ready, f"{successor} to take over", PATIENCE_S)
            self._took_s.append(time.monotonic() - began)
        machine.start(wait=False)

    # -- the end

    def finish(self, client: Client, path: Path) -> None:
        for way in self.machines.ways.values():
            way.share = 0.0
        whole = f.FaultArgs(self.fault, "a machine, as far as another one took over by itself")
        client.recording.write(f.Fault, "nemesis", self._began_ns, "ok", args=whole)
        last = Insistent(self.machines, client.recording, "insistent", self.seed)
        super().finish(last, path)
        last.close()
        self._terms = [self.machines.terms(shard) for shard in range(SHARDS)]

    def judge(self, path: Path) -> None:
        for shard, terms in enumerate(self._terms):
            replies = [reply for each in self._witnesses for reply in each.replies[shard]]
            found = answers_out_of_term(replies, terms)
            claim(not found, "TwoAnswer", f"shard {shard} with the terms {terms}: {found[:5]}")
        if self.scale == 1 and self._took_s:
            took_s, most_s = statistics.median(self._took_s), TTL_MS / 1000 + TAKEOVER_S
            text = f"takeovers took {took_s:.1f} s (median), and may take {most_s:.1f}"
            claim(took_s < most_s, "SlowTakeover", text)

    def happened(self, recording: Recording) -> dict[str, int]:
        held = [self.machines.terms(shard) for shard in range(SHARDS)]
        taken = sum(one != next_ for terms in held for one, next_ in pairwise(terms))
        faults = sum(sum(way.counts.values()) for way in self.machines.ways.values())
        return {"takeovers": taken, "faults of the bucket": faults, "answers to witnesses": self._replies()}

    def figures(self) -> str:
        struck = ", ".join(f"{count} {kind}" for kind, count in self._struck.items())
        met = sum((Counter(way.counts) for way in self.machines.ways.values()), Counter[str]())
        bucket = ", ".join(f"{count} {fault}" for fault, count in met.items())
        took_s = f"{statistics.median(self._took_s):.1f} s (median), {max(self._took_s):.1f} s" if self._took_s else "-"
        terms = "+".join(str(len(each)) for each in self._terms)
        return (
            f"machines: {struck}; bucket: {bucket}; {terms} terms, {self._replies()} answers to witnesses; takeovers "
            f"after kills within {took_s}"
        )

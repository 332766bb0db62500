"""Bar 6: jobs. Processes are killed and stopped, and workers hold jobs for longer than their leases.

The history has every claim, ack, nack and extend, so the rules of leases judge them. It has no dead letters: the bar
compares, at the end, each job of a queue that has them with what became of it. A job that was acknowledged to its
publisher was completed, is a dead letter or waits, one of these and once.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import ClassVar

from tests.history.bar import Bar, claim, kill, pause, read_whole
from tests.history.clients import Crowd
from tests.history.recording import Client, Recording, body_of
from tests.support.service import Service, until
from topics_history import format as f

PLAIN, LASTING, MORTAL, DEAD = "j:plain", "j:lasting", "j:mortal", "j:dead"
QUEUES = [PLAIN, LASTING, MORTAL]
DELIVERIES = 3
LEASES_MS = (300, 1000, 3000)
MOST_WAITING = 100
"""Jobs of a queue beyond which no more are published: workers are to get those whose leases have ended."""
DEAD_S = 60.0


class Publisher(Crowd):
    def __init__(self, service: Service, recording: Recording, name: str, seed: int) -> None:
        super().__init__(service, recording, name, seed)
        self.client.longest_body = 20

    def turn(self) -> None:
        topic = self.rng.choice(QUEUES)
        told = self.client.ask("GET", f"/v0/topics/{topic}")
        if told.outcome == "ok" and told.body["count"] > MOST_WAITING:
            self.stopping.wait(0.1)
            return
        self.client.append(topic, self.rng.choice((1, 20, 200)), keyed=self.rng.random() < 0.5)
        self.pause_after_failure()


class Late(Crowd):
    """A worker whose clock runs fast or slow by a half: it gives up leases early, and uses those that have ended. It
    stands still for as long as three leases, now and then or often: an ended lease shows what it may still do only
    while another worker has the job."""

    def __init__(self, service: Service, recording: Recording, name: str, seed: int) -> None:
        super().__init__(service, recording, name, seed)
        self._pace = self.rng.uniform(0.5, 1.5)
        self._stands_still = self.rng.choice((0.02, 0.2, 0.5))
        self.late = 0
        """Leases that it used, and that had ended."""

    def turn(self) -> None:
        queue, lease_ms = self.rng.choice(QUEUES), self.rng.choice(LEASES_MS)
        found = self.client.claim(queue, self.rng.choice((1, 20, 200)), lease_ms, self.rng.choice((0, 200)))
        self.pause_after_failure()
        jobs = found.jobs if found else []
        held_until = time.monotonic() + self._pace * lease_ms / 1000
        while jobs and not self.stopping.is_set():
            kind = self.rng.choices((f.Ack, f.Nack, f.Extend, None), (30, 2, 2, 1))[0]
            if self.rng.random() < self._stands_still:
                self.stopping.wait(self.rng.uniform(0, 3) * lease_ms / 1000)
            elif time.monotonic() > held_until:
                return
            if kind is None:
                return
            used = self.client.use(kind, queue, jobs, lease_ms)
            self.late += len(used.skipped) if used else 0
            self.pause_after_failure()
            if kind is not f.Extend:
                return
            held_until = time.monotonic() + self._pace * lease_ms / 1000


class Jobs(Bar):
    fault = "kill"
    routers: ClassVar[list[f.Router]] = []
    configs: ClassVar = {
        PLAIN: {"type": "queue"},
        LASTING: {"type": "queue", "leases_durable": True},
        DEAD: {},
        MORTAL: {"type": "queue", "leases_durable": True, "max_deliveries": DELIVERIES, "dead_letter": DEAD},
    }
    topics: ClassVar = {
        PLAIN: f.Topic("queue"),
        LASTING: f.Topic("queue", leases_durable=True),
        MORTAL: f.Topic("queue", leases_durable=True),
    }

    not_read = (MORTAL,)

    def __init__(self, directory: Path, seed: int, scale: float) -> None:
        super().__init__(directory, seed, scale)
        self._workers: list[Late] = []
        self._waiting: Counter[str] = Counter()
        self._dead: Counter[str] = Counter()
        self._ends: Counter[str] = Counter()

    def crowd(self, service: Service, recording: Recording, clients: int) -> list[Crowd]:
        kinds: list[type[Crowd]] = [Publisher, Late, Late, Late]
        crowd = [kinds[n % len(kinds)](service, recording, f"c{n}", self.seed) for n in range(clients)]
        self._workers = [each for each in crowd if isinstance(each, Late)]
        return crowd

    def strike(self, service: Service) -> tuple[str, float]:
        return kill(service, self.rng) if self.rng.random() < 0.5 else pause(service, self.rng, self.scale)

    def finish(self, client: Client, path: Path) -> None:
        until(lambda: not _on_their_way(client), "dead letters that arrive", DEAD_S)
        client.recording.write(f.Settled, client.name, time.monotonic_ns(), "ok")
        for topic in (PLAIN, LASTING):
            read_whole(client, topic, queue=True)
        self._waiting = Counter(_bodies(client, MORTAL))
        self._dead = Counter(_bodies(client, DEAD))

    def judge(self, path: Path) -> None:
        self._ends = ends(path, MORTAL, self._waiting, self._dead)

    def happened(self, recording: Recording) -> dict[str, int]:
        done = {f"{kind.__name__} with success": recording.done[kind] for kind in (f.Claim, f.Ack, f.Nack, f.Extend)}
        return done | {"leases used after their end": sum(each.late for each in self._workers)}

    def figures(self) -> str:
        told = ", ".join(f"{count} {end}" for end, count in self._ends.most_common())
        return f"jobs of the queue with dead letters: {told}"


def _on_their_way(client: Client) -> int:
    told = client.ask("GET", f"/v0/topics/{MORTAL}")
    return int(told.body["queue"]["dead_lettering"]) if told.outcome == "ok" else 1


def _bodies(client: Client, topic: str) -> list[str]:
    """The bodies of a topic. A history does not have them."""
    bodies: list[str] = []
    position, ended = 0, False
    while not ended:
        if topic == DEAD:
            told = client.ask("POST", f"/v0/topics/{topic}/diff", {"from_seq": position, "limit": 1000}).body
            found, position, ended = told["records"], told["next_from_seq"], told["caught_up"]
        else:
            told = client.ask("POST", f"/v0/topics/{topic}/peek", {"first_seq": position, "max": 1000}).body
            found, position, ended = told["jobs"], told["next_seq"], not told["more"]
        bodies += [body_of(record["data"]) for record in found]
    return bodies


def ends(path: Path, queue: str, waiting: Counter[str], dead: Counter[str]) -> Counter[str]:
    """Compare each job of a queue in a history with its end; count the ends. Raises `Violation`."""
    published: dict[str, bool] = {}
    """body → whether its publisher knows."""
    leased: dict[str, str] = {}
    completed: dict[str, bool] = {}
    """body → whether its worker knows."""
    with path.open("rb") as file:
        for line in f.Reader(file):
            if isinstance(line, f.Append) and line.topic == queue and line.outcome != "failed":
                for body in line.args.bodies:
                    published[body] = published.get(body, False) or line.outcome == "ok"
            elif isinstance(line, f.Claim) and line.topic == queue and line.result is not None:
                leased |= {lease_id: body for _, body, lease_id in line.result.jobs}
            elif isinstance(line, f.Ack) and line.topic == queue and line.outcome != "failed":
                skipped = set(line.result.skipped) if line.result else set()
                for seq, lease_id in zip(line.args.seqs, line.args.lease_ids, strict=True):
                    if seq not in skipped:
                        body = leased[lease_id]
                        completed[body] = completed.get(body, False) or line.outcome == "ok"
    found: Counter[str] = Counter()
    for body in published.keys() | waiting.keys() | dead.keys():
        known = [("waiting", waiting[body]), ("dead", dead[body]), ("completed", int(completed.get(body, False)))]
        count = sum(times for _, times in known)
        claim(body in published, "Invented", f"{queue}: {body} was not published, and is {known}")
        claim(count <= 1, "EndedTwice", f"{queue}: {body} has more than one end: {known}")
        if count:
            found[next(end for end, times in known if times)] += 1
        elif body in completed:
            found["completed, as far as workers know"] += 1
        else:
            claim(not published[body], "JobLost", f"{queue}: {body} was published, and has no end")
            found["never published"] += 1
    return found

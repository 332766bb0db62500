"""Clients of a bar: threads that decide, by a seed, what to ask next."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from tests.history.recording import Client, Recording
from tests.history.streams import Followed, Socket, Stream
from tests.support.looped import Looped
from tests.support.service import Service
from topics_history import format as f

LOGS = ["p:disk", "p:fsync", "p:trimmed", "p:source"]
CAPPED, COPY = "p:capped", "p:copy"
QUEUES = ["p:jobs", "p:lasting"]
CONFIGS: dict[str, dict[str, object]] = {
    "p:disk": {},
    "p:fsync": {"durability": "fsync"},
    "p:trimmed": {},
    "p:source": {},
    CAPPED: {"cap_records": 200},
    COPY: {},
    "p:jobs": {"type": "queue"},
    "p:lasting": {"type": "queue", "leases_durable": True},
}
TOPICS = {
    name: f.Topic(
        "queue" if config.get("type") == "queue" else "log",
        lossy="cap_records" in config,
        leases_durable=bool(config.get("leases_durable")),
    )
    for name, config in CONFIGS.items()
}
ROUTER = f.Router("p:source", COPY)
TAGS = ("a", "b", "c")


class Crowd(Looped):
    """One client."""

    def __init__(self, service: Service, recording: Recording, name: str, seed: int) -> None:
        super().__init__(name)
        self.client = Client(service, recording, name, seed)
        self.rng = self.client.rng

    def close(self) -> None:
        self.client.close()

    def pause_after_failure(self) -> None:
        """A service that is away is asked again after a moment."""
        if self.client.outcome != "ok":
            self.stopping.wait(self.rng.random() * 0.05)


class Paced(Crowd):
    """Another kind of client, at a pace: so many turns a second, if the service answers in time."""

    turns_a_second = 50.0

    def turn(self) -> None:
        super().turn()
        self.stopping.wait(self.rng.random() * 2 / self.turns_a_second)


class Mixed(Crowd):
    """Writes, reads, deletes and moves cursors."""

    def __init__(self, service: Service, recording: Recording, name: str, seed: int) -> None:
        super().__init__(service, recording, name, seed)
        self.positions = dict.fromkeys([*LOGS, CAPPED, COPY], 0)

    def turn(self) -> None:
        draw, client = self.rng.random(), self.client
        if draw < 0.45:
            topic = self.rng.choice([*LOGS, CAPPED, *QUEUES])
            if topic in QUEUES and (self.rng.random() < 0.5):
                return
            tag = self.rng.choice(TAGS) if topic == "p:trimmed" else None
            client.append(topic, self.rng.choice((1, 1, 1, 2, 8)), tag=tag, keyed=self.rng.random() < 0.3)
        elif draw < 0.85:
            topic = self.rng.choice(list(self.positions))
            wait_ms = self.rng.choice((0, 0, 0, 200))
            found = client.read(topic, self.positions[topic], limit=self.rng.choice((1, 10, 100)), wait_ms=wait_ms)
            if found is not None:
                self.positions[topic] = found.next_from_seq
        elif draw < 0.9:
            client.state(self.rng.choice(list(self.positions)))
        elif draw < 0.92:
            if self.rng.random() < 0.5:
                kept = self.rng.choice((0, 5, 50))  # new ones: later, deletions by tag leave few
                client.delete("p:trimmed", before=max(0, self.positions["p:trimmed"] - kept))
            else:
                client.delete("p:trimmed", tag=self.rng.choice(TAGS))
        elif draw < 0.96:
            client.put_cursor("p:disk", "c", self.positions["p:disk"])
        else:
            client.get_cursor("p:disk", "c")
        self.pause_after_failure()


class Worker(Crowd):
    """Claims jobs, and completes them, gives them back, extends them or forgets them."""

    def turn(self) -> None:
        queue = self.rng.choice(QUEUES)
        lease_ms = self.rng.choice((1000, 1000, 5000))
        found = self.client.claim(queue, self.rng.choice((1, 4, 16)), lease_ms, self.rng.choice((0, 200)))
        self.pause_after_failure()
        jobs = found.jobs if found else []
        while jobs and not self.stopping.is_set():
            kind = self.rng.choices((f.Ack, f.Nack, f.Extend, None), (14, 2, 2, 1))[0]
            if kind is None:
                return
            self.client.use(kind, queue, jobs, 1000)
            self.pause_after_failure()
            if kind is not f.Extend:
                return
            self.stopping.wait(self.rng.random() * 0.5)


class Watcher(Crowd):
    """Follows all logs over one stream, and loses its connection now and then. In half of the runs, all of them are
    eventual, so that they share the feeds of the service: one comes to a feed that others keep moving."""

    kind: ClassVar[type[Followed]] = Stream

    def __init__(self, service: Service, recording: Recording, name: str, seed: int) -> None:
        super().__init__(service, recording, name, seed)
        shared = Random(f"{seed} streams").choice((("eventual",), ("eventual", "strong")))
        self.stream = self.kind(self.client, [*LOGS, CAPPED, COPY], self.rng.choice(shared))

    def turn(self) -> None:
        frames = int(10 ** self.rng.uniform(0.5, 3.3))  # from 3 to 2000, most of them short: each one becomes live

        def enough() -> bool:
            nonlocal frames
            frames -= 1
            return frames < 0 or self.stopping.is_set()

        self.stream.follow(enough)
        self.stopping.wait(0.02)


class SocketWatcher(Watcher):
    """The same over a WebSocket."""

    kind = Socket


class Poller(Crowd):
    """Follows each log by reads that wait, each from where the last one ended."""

    def __init__(self, service: Service, recording: Recording, name: str, seed: int) -> None:
        super().__init__(service, recording, name, seed)
        self.positions = dict.fromkeys([*LOGS, CAPPED, COPY], 0)

    def turn(self) -> None:
        topic = self.rng.choice(list(self.positions))
        wait_ms = self.rng.choice((100, 1000))
        found = self.client.read(topic, self.positions[topic], limit=self.rng.choice((10, 100)), wait_ms=wait_ms)
        if found is not None:
            self.positions[topic] = found.next_from_seq
        self.pause_after_failure()

"""Schedules: the steps of a run, made from a seed. A schedule without some of its steps is a schedule, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from msgspec import structs

from proto.model.limits import Limits
from tests.history.clients import TAGS
from topics_history import format as f

CLIENTS = 3
OPERATIONS = 60
LASTS_S = 1.5
DISK, SAFE, TRIMMED, CAPPED, SOURCE, COPY = "disk", "safe", "trimmed", "capped", "source", "copies"
PLAIN, LASTING, MORTAL, DEAD = "plain", "lasting", "mortal", "graves"
QUEUES = (PLAIN, LASTING, MORTAL)
CONFIGS: dict[str, dict[str, Any]] = {
    DISK: {},
    SAFE: {"durability": "fsync"},
    TRIMMED: {},
    SOURCE: {},
    CAPPED: {"cap_records": 12},
    COPY: {},
    PLAIN: {"type": "queue"},
    LASTING: {"type": "queue", "leases_durable": True},
    DEAD: {},
    MORTAL: {"type": "queue", "leases_durable": True, "max_deliveries": 2, "dead_letter": DEAD},
}
FAULTS = ("kill", "kill", "kill", "dies", "dies", "lost", "sync fails", "write fails", "pause", "all", "power")


@dataclass(frozen=True)
class Step:
    """What `who` does `at` a time, in s since the begin. `number` seeds what it leaves open."""

    number: int
    at: float
    who: str
    what: str
    of: str
    """A topic, or the victim of a fault."""
    with_: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        more = ", ".join(f"{name} {value}" for name, value in self.with_.items() if value not in (None, False))
        return f"{self.at * 1000:6.0f} ms  {self.who:8} {self.what:12} {self.of}{f': {more}' if more else ''}"


@dataclass(frozen=True)
class Schedule:
    seed: int
    power: bool
    """Whether its power may be cut: all topics are of class `fsync` then, as nothing else is promised to stay."""
    topics: tuple[str, ...]
    limits: Limits
    steps: tuple[Step, ...]
    lasts_s: float = LASTS_S
    skews_s: tuple[float, ...] = ()
    """By how much the wall clock of each machine is ahead, if there are several."""
    calm: bool = False
    """Whether shards move and nothing fails: then no request may fail."""

    def config(self, topic: str) -> dict[str, Any]:
        return {**CONFIGS[topic], **({"durability": "fsync"} if self.power else {})}

    @property
    def header(self) -> dict[str, f.Topic]:
        return {
            name: f.Topic(
                "queue" if CONFIGS[name].get("type") == "queue" else "log",
                lossy="cap_records" in CONFIGS[name],
                leases_durable="leases_durable" in CONFIGS[name],
            )
            for name in self.topics
            if name != DEAD
        }

    @property
    def routers(self) -> list[f.Router]:
        return [f.Router(SOURCE, COPY)] if COPY in self.topics else []


def schedule(seed: int) -> Schedule:
    rng = Random(f"{seed} schedule")
    power = rng.random() < 0.4
    logs = rng.sample([(DISK,), (SAFE,), (TRIMMED,), (CAPPED,), (SOURCE, COPY), (SOURCE, COPY)], 2)
    queues = rng.sample([(PLAIN,), (LASTING,), (MORTAL, DEAD)], 1)
    topics = tuple(dict.fromkeys(name for group in [*logs, *queues] for name in group))
    steps = [*operations(rng, topics), *_faults(rng, power)]
    limits = structs.replace(small(rng), wal_sync_window_ms=rng.choice((0.5, 20)))
    ordered = sorted(steps, key=lambda step: step.at)
    return Schedule(seed, power, topics, limits, tuple(ordered))


def small(rng: Random) -> Limits:
    """Files, checkpoints and caches so small that much happens to them."""
    return Limits(
        request_timeout_ms=rng.choice((1000, 5000)),
        wal_segment_bytes=4096,
        segment_max_events=rng.choice((4, 20)),
        checkpoint_interval_ms=rng.choice((100, 300, 1000)),
        checkpoint_bytes=4096,
        cache_bytes=0,
        min_free_bytes=0,
    )


def operations(rng: Random, topics: tuple[str, ...], count: int = OPERATIONS, lasts_s: float = LASTS_S) -> list[Step]:
    logs = [name for name in topics if name not in (*QUEUES, DEAD)]
    written = [name for name in logs if name != COPY]
    queues = [name for name in topics if name in QUEUES]
    found = []
    for number in range(count):
        at, who, draw = rng.random() * lasts_s, f"c{rng.randrange(CLIENTS)}", rng.random()
        topic, more = rng.choice(logs), dict[str, Any]()
        if draw < 0.3:
            what, topic = "append", rng.choice([*written, *queues])
            tag = rng.choice(TAGS) if topic == TRIMMED else None
            more = {"count": rng.choice((1, 1, 2, 5)), "keyed": rng.random() < 0.4, "tag": tag}
        elif draw < 0.36:
            what, topic = "again", ""
        elif draw < 0.58:
            what, more = "read", {"limit": rng.choice((1, 3, 100)), "wait_ms": rng.choice((0, 0, 200))}
        elif draw < 0.62:
            what = "state"
        elif draw < 0.66:
            what, topic = "delete", TRIMMED if TRIMMED in topics else ""
            more = {"kept": rng.randrange(4)} if rng.random() < 0.5 else {"tag": rng.choice(TAGS)}
        elif draw < 0.7:
            what = rng.choice(("put cursor", "get cursor"))
        elif draw < 0.84:
            what, topic = "claim", rng.choice(queues) if queues else ""
            more = {"most": rng.choice((1, 3)), "lease_ms": rng.choice((100, 400)), "wait_ms": rng.choice((0, 100))}
        else:
            what = rng.choice(("ack", "ack", "ack", "nack", "nack", "extend"))
            topic = rng.choice(queues) if queues else ""
        if topic or what == "again":
            found.append(Step(number, at, who, what, topic, more))
    return found


def _faults(rng: Random, power: bool) -> list[Step]:
    found = []
    for number in range(OPERATIONS, OPERATIONS + rng.randint(2, 6)):
        what = rng.choice(FAULTS)
        if what == "power" and not power:
            what = "kill"
        what, of, more = details(rng, what, ("gateway",))
        found.append(Step(number, rng.random() * LASTS_S, "fault", what, of, more))
    return found


def details(rng: Random, what: str, others: tuple[str, ...]) -> tuple[str, str, dict[str, Any]]:
    """A fault of a machine's parts, its victim and what else it has. `others` are the processes that are no shards."""
    of, more = f"shard-{rng.randrange(2):02d}", dict[str, Any]()
    if what == "lost":
        what, of = "kill", others[0] if len(others) == 1 else rng.choice(others)
    elif what == "dies":
        more = {"calls": [rng.choice((1, 2, 3, 5, 8, 13, 40)) for _ in range(rng.choice((1, 1, 1, 2, 3)))]}
    elif what == "pause":
        of = rng.choice((of, *others))
        more = {"for_s": rng.choice((0.05, 0.3, 1.0))}
    elif what == "write fails":
        more = {"bytes": rng.choice((None, None, 0, 7))}
    elif what in ("all", "power"):
        of = ""
    return what, of, more

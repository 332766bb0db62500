"""Schedules of several machines with one bucket: their steps, made from a seed."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from msgspec import structs

from tests.simulation.whole.schedule import (
    CAPPED,
    COPY,
    DEAD,
    LASTING,
    MORTAL,
    SAFE,
    SOURCE,
    TRIMMED,
    Schedule,
    Step,
    details,
    operations,
    small,
)

OPERATIONS = 80
LASTS_S = 8.0
PARTS = ("kill", "kill", "dies", "lost", "sync fails", "write fails", "pause")
"""Faults of parts of a machine."""
WHOLE = ("all", "power", "wipe", "leave", "stop", "stop", "cut bucket", "cut bucket", "cut machines")
"""Those of a whole machine."""
OTHERS = ("gateway", "roster")


def schedule(seed: int, machines: int = 0) -> Schedule:
    """`machines`: how many; 0: two or three."""
    rng = Random(f"{seed} schedule of machines")
    count = machines or rng.choice((2, 2, 3))
    queues = rng.choice([(), (LASTING,), (MORTAL, DEAD)])
    logs = rng.sample([(SAFE,), (TRIMMED,), (CAPPED,), (SOURCE, COPY), (SOURCE, COPY)], 2)
    topics = tuple(dict.fromkeys(name for group in [*logs, queues] for name in group))
    # Leases that are durable end at a time of the wall clock.
    skews_s = tuple(0.0 if queues else rng.choice((0.0, 0.0, -0.7, 0.7, 4.0)) for _ in range(count))
    limits = structs.replace(
        small(rng),
        wal_sync_window_ms=0.5,
        bucket="memory://",
        replication="sync",
        bucket_timeout_ms=rng.choice((1000, 5000)),
        bucket_retain_ms=rng.choice((0, 1000, 60_000)),
        term_ttl_ms=rng.choice((600, 1200)),
    )
    steps = [*operations(rng, topics, OPERATIONS, LASTS_S), *_faults(rng, count)]
    ordered = tuple(sorted(steps, key=lambda step: step.at))
    return Schedule(seed, True, topics, limits, ordered, LASTS_S, skews_s)


def calm(seed: int) -> Schedule:
    """Nothing fails. A machine leaves, and joins again."""
    found = schedule(seed)
    rng = Random(f"{seed} leave")
    leaver = f"m{rng.randrange(1, len(found.skews_s))}"
    leave = Step(OPERATIONS, 1 + rng.random(), "fault", "leave", leaver, {"for_s": rng.choice((0.2, 1.0))})
    requests = [step for step in found.steps if step.who != "fault"]
    return replace(found, calm=True, steps=tuple(sorted([*requests, leave], key=lambda step: step.at)))


def _faults(rng: Random, machines: int) -> list[Step]:
    found = []
    for number in range(OPERATIONS, OPERATIONS + rng.randint(2, 6)):
        machine, more = f"m{rng.randrange(machines)}", dict[str, Any]()
        if rng.random() < 0.4:
            what, part, more = details(rng, rng.choice(PARTS), OTHERS)
            of = f"{machine}.{part}"
        else:
            what, of = rng.choice(WHOLE), machine
            if what != "all":
                more = {"for_s": rng.choice((0.2, 0.6, 1.0, 2.0, 4.0))}
        found.append(Step(number, rng.random() * LASTS_S, "fault", what, of, more))
    return found

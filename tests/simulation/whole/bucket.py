"""The bucket of several machines: objects in memory, behind a network that fails.

A request is carried out at a moment of its own, also if its process has ended by then. In bad weather it is answered
late, refused (429 or 503) whether or not it was carried out, answered by 412 after a creation of its own, or lost on
its way there or back. A creation may be answered by 409 while another one of the same name is under way, which says
nothing. A machine may be cut off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import outcome
import trio

from proto.format.buffer import Buffer
from shardd.replication.store import Entry, Exists, StoreError, Throttled, UnknownOutcome, Unreachable
from tests.simulation.replication import Weather
from tests.simulation.whole.inner_trio import timeline
from tests.simulation.whole.processes import Process
from tests.simulation.whole.threads import wait
from tests.support.bucket import MemoryStore

TIMEOUT_S = 5.0
"""After so long a request without an answer is given up. (The product's limit is 30 s, and no rule depends on it.)"""
CONFLICTS = 0.3
"""Of the creations that meet another one of their name, those that 409 answers."""
CARRIED_OUT = 0.3
"""Of the requests that are refused, those that were carried out."""
WRITES = ("create", "put", "delete")


class Bucket:
    def __init__(self, rng: Random, weather: Weather) -> None:
        self.store = MemoryStore()
        self.weather = weather
        self.bad = False
        """Whether there is weather."""
        self.longest_s = 0.05
        """Of a way without weather."""
        self.cut_until: dict[str, float] = {}
        """Until when each machine is cut off."""
        self.rng = rng
        self.counts: Counter[str] = Counter()
        """What requests met, by kind."""
        self.creating: Counter[str] = Counter()
        """Creations under way, by name."""

    def cut(self, machine: str) -> bool:
        return self.cut_until.get(machine, 0.0) > trio.current_time()

    def delay(self) -> float:
        """Seconds that a request or its answer takes."""
        draw = self.rng.random()
        if self.bad and draw < self.weather.late:
            return self.rng.choice((0.3, 1.0, 3.0)) * self.rng.random()
        return self.rng.random() * (self.longest_s if draw > 0.97 else 0.004)

    def chance(self, probability: float) -> bool:
        return self.bad and self.rng.random() < probability

    def refusal(self, operation: str, name: str) -> StoreError | None:
        """With what a request is refused, whatever becomes of it."""
        if operation == "create" and self.creating[name] > 1 and self.rng.random() < CONFLICTS:
            self.counts["409"] += 1
            return Exists(f"{name}: 409")
        if self.chance(self.weather.refused):
            self.counts["503"] += 1
            return Throttled(f"{name}: 503")
        return None


class BucketOfProcess:
    """The store as one process sees it, `shardd.replication.store.Store`. Calls wait, so they are made in threads."""

    url = "memory://"

    def __init__(self, bucket: Bucket, process: Process) -> None:
        self._bucket = bucket
        self._process = process

    def create(self, name: str, data: Buffer) -> None:
        self._bucket.creating[name] += 1
        try:
            self._ask("create", name, partial(self._bucket.store.create, name, bytes(data)))
        finally:
            self._bucket.creating[name] -= 1

    def put(self, name: str, data: Buffer) -> None:
        self._ask("put", name, partial(self._bucket.store.put, name, bytes(data)))

    def get(self, name: str) -> Buffer:
        found: Buffer = self._ask("get", name, partial(self._bucket.store.get, name))
        return found

    def get_range(self, name: str, offset: int, size: int) -> Buffer:
        found: Buffer = self._ask("get", name, partial(self._bucket.store.get_range, name, offset, size))
        return found

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        found: list[Entry] = self._ask("list", prefix, lambda: list(self._bucket.store.list(prefix, after)))
        return iter(found)

    def delete(self, name: str) -> None:
        self._ask("delete", name, partial(self._bucket.store.delete, name))

    def _ask(self, operation: str, name: str, call: Callable[[], Any]) -> Any:
        made = outcome.capture(self._asked, operation, name, call)
        process = self._process
        if isinstance(made, outcome.Error):
            said = type(made.error).__name__
        else:
            said = f"{len(made.value)}" if operation in ("get", "list") else "done"
        process.network.tell(f"{process.name}: {operation} {name}: {said}")
        return made.unwrap()

    def _asked(self, operation: str, name: str, call: Callable[[], Any]) -> Any:
        bucket, machine = self._bucket, self._process.home.name
        there, back = bucket.delay(), bucket.delay()
        lost = bucket.cut(machine) or bucket.chance(bucket.weather.lost / 2)
        refusal = bucket.refusal(operation, name)
        made: list[outcome.Maybe[Any]] = []
        if not lost and (refusal is None or bucket.rng.random() < CARRIED_OUT):
            timeline().at(trio.current_time() + there, lambda: made.append(outcome.capture(call)))
        wait(min(there + back, TIMEOUT_S))
        lost = lost or there + back > TIMEOUT_S or bucket.cut(machine) or bucket.chance(bucket.weather.lost / 2)
        if lost:
            bucket.counts["lost" if made else "not sent"] += 1
            wait(bucket.rng.random() * (0.2 if bucket.rng.random() < 0.5 else TIMEOUT_S))
            raise UnknownOutcome(name) if operation in WRITES else Unreachable(name)
        if refusal is not None:
            raise refusal
        if operation == "create" and isinstance(made[0], outcome.Value) and bucket.chance(bucket.weather.repeated):
            bucket.counts["412"] += 1
            raise Exists(f"{name}: 412, after its own creation")
        return made[0].unwrap()

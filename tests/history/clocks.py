"""Bar 12: the wall clock of the service steps, an hour or a year ahead or back, and stays there for some seconds.

Times are durations: TTLs, leases, delays of jobs and idempotency windows last as long as a true clock says. The history
has leases and keys, so the checker judges them. It has no TTL and no delay: a client keeps an account of these.
"""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

from tests.history.answers import Repeater
from tests.history.bar import Bar, claim
from tests.history.clients import Crowd, Mixed, Worker
from tests.history.recording import Client, Recording
from tests.support.dials import Dials
from tests.support.service import Service

HOUR_S, YEAR_S = 3600.0, 365 * 86_400.0
STEPS_S = (HOUR_S, -HOUR_S, YEAR_S, -YEAR_S)
SHORT, LATER = "t:short", "t:later"
TTL_S, DELAY_S = 3.0, 1.0
EARLY_S = 0.1 * TTL_S
"""A slewing clock gains a tenth at most."""
GRACE_S = 2.0
"""On a slow machine, what is over may be seen for a moment."""
LEASE_MS = 30_000


class Timed(Crowd):
    """The only client of a topic with a TTL and of a queue of delayed jobs."""

    def __init__(self, service: Service, recording: Recording, name: str, seed: int) -> None:
        super().__init__(service, recording, name, seed)
        self._numbers = count()
        self._appended: dict[int, tuple[float, float]] = {}
        """number of a record → start and end of its append."""
        self._delayed: dict[int, tuple[float, float]] = {}
        self._claimed: set[int] = set()
        self.checked = 0
        self.expired = 0
        self.latest_s = 0.0

    @property
    def claimed(self) -> int:
        return len(self._claimed)

    def turn(self) -> None:
        number, began = next(self._numbers), time.monotonic()
        for topic, record, of in (
            (SHORT, {"data": number}, self._appended),
            (LATER, {"data": number, "delay_ms": int(1000 * DELAY_S)}, self._delayed),
        ):
            answer = self.client.ask("POST", f"/v0/topics/{topic}", {"records": [record]})
            if answer.outcome == "ok":
                of[number] = began, time.monotonic()
        self._look()
        self._claim()
        self.stopping.wait(self.rng.random() * 0.2)

    def _look(self) -> None:
        began = time.monotonic()
        answer = self.client.ask("POST", f"/v0/topics/{SHORT}/diff", {"from_seq": 0, "limit": 1000})
        ended = time.monotonic()
        if answer.outcome != "ok":
            return
        found = {record["data"] for record in answer.body["records"]}
        for number, (start, end) in list(self._appended.items()):
            self.checked += 1
            if ended - start < TTL_S - EARLY_S:
                claim(number in found, "EarlyExpiry", f"{number} is gone {ended - start:.1f} s after its append")
            elif began - end > TTL_S + GRACE_S:
                claim(number not in found, "LateExpiry", f"{number} is there {began - end:.1f} s after its append")
                del self._appended[number]
                self.expired += 1

    def _claim(self) -> None:
        body = {"node": self.name, "max": 100, "lease_ms": LEASE_MS}
        answer = self.client.ask("POST", f"/v0/topics/{LATER}/claim", body)
        ended = time.monotonic()
        if answer.outcome != "ok" or not answer.body["claimed"]:
            return
        for job in answer.body["claimed"]:
            claim(job["data"] not in self._claimed, "CameTwice", f"job {job['data']}")
            self._claimed.add(job["data"])
            start, end = self._delayed.pop(job["data"], (0.0, ended))
            text = f"job {job['data']} came {ended - start:.1f} s after its append"
            claim(ended - start > DELAY_S - EARLY_S, "CameEarly", text)
            self.latest_s = max(self.latest_s, ended - end - DELAY_S)
        seqs = [job["$seq"] for job in answer.body["claimed"]]
        self.client.ask("POST", f"/v0/topics/{LATER}/ack", {"node": self.name, "seqs": seqs})

    def check_all(self) -> None:
        """Each schedule comes once."""
        deadline = time.monotonic() + DELAY_S + GRACE_S
        while self._delayed and time.monotonic() < deadline:
            self._claim()
            time.sleep(0.05)
        claim(not self._delayed, "NeverCame", f"jobs {sorted(self._delayed)}")
        self.client.close()


class Clocks(Bar):
    fault = "other"
    rest_s = (0.5, 3.0)

    def __init__(self, directory: Path, seed: int, scale: float) -> None:
        super().__init__(directory, seed, scale)
        self._dials = Dials(directory / "dials")
        self.environment = self._dials.environment
        self._timed: list[Timed] = []
        self._steps = 0

    def begin(self, service: Service) -> None:
        super().begin(service)
        for topic, config in ((SHORT, {"ttl_ms": int(1000 * TTL_S)}), (LATER, {"type": "queue"})):
            assert service.request("PUT", f"/v0/topics/{topic}", config)[0] == 201

    def crowd(self, service: Service, recording: Recording, clients: int) -> list[Crowd]:
        kinds: list[type[Crowd]] = [Mixed, Repeater, Worker]
        crowd = [kinds[n % len(kinds)](service, recording, f"c{n}", self.seed) for n in range(clients)]
        self._timed = [Timed(service, recording, "timed", self.seed)]
        return [*crowd, *self._timed]

    def strike(self, service: Service) -> tuple[str, float]:
        self._dials.turn(clock_ahead_s=self.rng.choice(STEPS_S))
        self._steps += 1
        time.sleep(self.rng.uniform(0.5, 6) * self.scale)
        self._dials.turn()
        return "all", time.monotonic()

    def finish(self, client: Client, path: Path) -> None:
        for each in self._timed:
            each.check_all()
        super().finish(client, path)

    def happened(self, recording: Recording) -> dict[str, int]:
        (timed,) = self._timed
        return {"records expired": timed.expired, "delayed jobs claimed": timed.claimed}

    def figures(self) -> str:
        (timed,) = self._timed
        return (
            f"{self._steps} steps of the clock; {timed.checked} looks at records with a TTL, {timed.claimed} delayed "
            f"jobs, the latest {timed.latest_s:.2f} s late"
        )

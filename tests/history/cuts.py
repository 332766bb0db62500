"""Bar 3: power cuts. All topics of the history are of class `fsync`.

A history has no loss of the class `disk`, and no deleted topics: two kinds of clients keep accounts of their own, and
compare them with the service after each cut.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from itertools import count
from pathlib import Path
from random import Random
from typing import ClassVar

from tests.history.bar import Bar, Violation, await_ready, claim
from tests.history.clients import CONFIGS, Crowd
from tests.history.recording import Client, Recording
from tests.support.power import Power
from tests.support.service import Service

OLDEST_LOST_MS = 1000
"""A sync begins within 50 ms of a write; the rest is for a slow machine. `make prove` prints what was measured."""


class Cuts:
    """The moments of all cuts. One is added before the service starts again, so no answer overtakes it."""

    def __init__(self) -> None:
        self.times_ns: list[int] = []

    def after(self, moment_ns: int) -> int | None:
        """The first cut after a moment."""
        at = bisect_left(self.times_ns, moment_ns)
        return self.times_ns[at] if at < len(self.times_ns) else None


class Suffix(Crowd):
    """The only writer of a topic of class `disk`. A cut takes the last records that it had acknowledged, none before
    one that stays, and none that is old. No seq is given twice."""

    def __init__(self, service: Service, recording: Recording, name: str, seed: int, cuts: Cuts) -> None:
        super().__init__(service, recording, name, seed)
        self.topic = f"s:{name}"
        self._cuts = cuts
        self._seen = 0
        self._numbers = count()
        self._highest = 0
        self._acked: dict[int, tuple[int, int, int]] = {}
        """seq → number, and when its append began and ended."""
        self._unsure: set[int] = set()
        self._safe: set[int] = set()
        """Seqs that were seen after a cut, and acknowledged before it: they are on the device."""
        self.lost = 0
        self.oldest_lost_ms = 0.0

    def turn(self) -> None:
        if len(self._cuts.times_ns) > self._seen:
            self._seen = self.check() or self._seen
        number, began_ns = next(self._numbers), time.monotonic_ns()
        body = {"records": [{"data": number}], "create": False}
        answer = self.client.ask("POST", f"/v0/topics/{self.topic}", body)
        if answer.outcome == "ok":
            seq = answer.body["first_seq"]
            claim(seq > self._highest, "SeqReused", f"{self.topic}: seq {seq}, and {self._highest} was given")
            self._highest = seq
            self._acked[seq] = number, began_ns, time.monotonic_ns()
        elif answer.outcome == "unknown":
            self._unsure.add(number)
        self.stopping.wait(self.rng.random() * (0.005 if answer.outcome == "ok" else 0.05))

    def check(self) -> int:
        """Read the topic and compare. Returns the number of cuts that this covers, 0 if it cannot be read now."""
        covers, position, found = len(self._cuts.times_ns), 0, {}
        while True:
            body = {"from_seq": position, "limit": 1000}
            answer = self.client.ask("POST", f"/v0/topics/{self.topic}/diff", body)
            claim(answer.status != 404, "Undone", f"{self.topic} was created, and a cut undid it")
            if answer.outcome != "ok":
                return 0
            found |= {record["$seq"]: record["data"] for record in answer.body["records"]}
            position = answer.body["next_from_seq"]
            if answer.body["caught_up"]:
                break
        self._compare(found, covers)
        return covers

    def check_all(self) -> None:
        assert self.check() == len(self._cuts.times_ns), f"{self.topic} cannot be read in the end"
        self.client.close()

    def _compare(self, found: dict[int, int], covers: int) -> None:
        """The topic had these records after the first `covers` cuts."""
        for seq, number in found.items():
            known = self._acked[seq][0] if seq in self._acked else number
            claim(known == number, "SeqReused", f"{self.topic}: seq {seq} is {number}, and was {known}")
            sent = seq in self._acked or number in self._unsure
            claim(sent, "Returned", f"{self.topic}: seq {seq}, {number}, had been lost")
        self._highest = max(self._highest, *found, 0)
        for seq in sorted(self._acked.keys() - found.keys()):
            claim(seq not in self._safe, "Lost", f"{self.topic}: seq {seq} is lost, and had survived a cut")
            number, began_ns, acked_ns = self._acked.pop(seq)
            cut_ns = self._cuts.after(began_ns)
            if cut_ns is None:
                raise Violation("Lost", f"{self.topic}: seq {seq}, {number}, is lost without a cut")
            age_ms = (cut_ns - acked_ns) / 1e6
            text = f"{self.topic}: seq {seq} is lost, acknowledged {age_ms:.0f} ms before"
            claim(age_ms < OLDEST_LOST_MS, "OldLost", text)
            later = [
                each for each, (_, at_ns, _) in self._acked.items() if each > seq and each in found and at_ns < cut_ns
            ]
            claim(not later, "NotASuffix", f"{self.topic}: seq {seq} is lost, and {later} stay")
            self.lost += 1
            self.oldest_lost_ms = max(self.oldest_lost_ms, age_ms)
        before_ns = self._cuts.times_ns[covers - 1] if covers else 0
        self._safe.update(seq for seq, (_, at_ns, _) in self._acked.items() if at_ns < before_ns)


class Maker(Crowd):
    """Creates topics and deletes them. A cut undoes neither."""

    CHECKED = 40
    """Topics that are looked at after each cut, at most; all of them in the end."""

    def __init__(self, service: Service, recording: Recording, name: str, seed: int, cuts: Cuts) -> None:
        super().__init__(service, recording, name, seed)
        self._cuts = cuts
        self._seen = 0
        self._numbers = count()
        self.there: dict[str, bool | None] = {}
        """Whether a topic exists; None if that is not known."""

    def turn(self) -> None:
        if (cuts := len(self._cuts.times_ns)) > self._seen:
            for topic in list(self.there)[-self.CHECKED :]:
                self.look(topic)
            self._seen = cuts
        known = [topic for topic, there in self.there.items() if there]
        if known and self.rng.random() < 0.4:
            topic = self.rng.choice(known)
            self._note(topic, self.client.ask("DELETE", f"/v0/topics/{topic}").outcome, there=False)
        else:
            topic = f"m:{self.name}-{next(self._numbers)}"
            durability = self.rng.choice(("disk", "fsync", "memory", "ephemeral"))
            self._note(
                topic, self.client.ask("PUT", f"/v0/topics/{topic}", {"durability": durability}).outcome, there=True
            )
        self.pause_after_failure()
        self.stopping.wait(self.rng.random() * 0.02)

    def _note(self, topic: str, outcome: str, *, there: bool) -> None:
        self.client.outcome = outcome
        if outcome != "failed":
            self.there[topic] = there if outcome == "ok" else None

    def look(self, topic: str) -> None:
        """Compare whether the topic exists with what is known."""
        status = self.client.ask("GET", f"/v0/topics/{topic}").status
        if status in (200, 404):
            known, exists = self.there[topic], status == 200
            text = f"{topic} was {'created' if known else 'deleted'}, and a cut undid it"
            claim(known in (None, exists), "Undone", text)
            self.there[topic] = exists

    def check_all(self) -> None:
        for topic in self.there:
            self.look(topic)
        self.client.close()


class PowerCuts(Bar):
    fault = "other"
    rest_s = (0.3, 1.5)
    configs: ClassVar = {topic: {**config, "durability": "fsync"} for topic, config in CONFIGS.items()}

    def __init__(self, directory: Path, seed: int, scale: float) -> None:
        super().__init__(directory, seed, scale)
        self._power = Power(directory, Random(f"{seed} power"))
        self.environment = self._power.environment
        self._cuts = Cuts()
        self._writers: list[Suffix] = []
        self._makers: list[Maker] = []

    def crowd(self, service: Service, recording: Recording, clients: int) -> list[Crowd]:
        self._writers = [Suffix(service, recording, f"w{n}", self.seed, self._cuts) for n in range(2)]
        self._makers = [Maker(service, recording, "maker", self.seed, self._cuts)]
        for each in self._writers:
            assert service.request("PUT", f"/v0/topics/{each.topic}", {})[0] == 201
        return [*super().crowd(service, recording, clients), *self._writers, *self._makers]

    def strike(self, service: Service) -> tuple[str, float]:
        self._cuts.times_ns.append(self._power.cut(service))
        lifted = time.monotonic()
        await_ready(service.start(wait=False))
        return "all", lifted

    def finish(self, client: Client, path: Path) -> None:
        for each in (*self._writers, *self._makers):
            each.check_all()
        super().finish(client, path)

    def happened(self, recording: Recording) -> dict[str, int]:
        return {"files with writes that a cut may take": self._power.unsynced}

    def figures(self) -> str:
        lost, oldest_ms = sum(each.lost for each in self._writers), max(each.oldest_lost_ms for each in self._writers)
        made = sum(len(each.there) for each in self._makers)
        return (
            f"power cuts: {self._power.figures()}; of class disk {lost} records lost, the oldest acknowledged "
            f"{oldest_ms:.0f} ms before; {made} topics created"
        )

"""Claims about watchers and writers under all faults at once: every gap in a watcher's records is explained.

Twenty topics of four kinds are written all the time. Some are capped, some have their oldest records deleted, some are
deleted and created again, some are left alone. Watchers lose their connections, read slowly, and return with the id of
the last frame they took. Shards are killed every two seconds, in the long form the gateway too. For each watcher and
topic, seqs must be consecutive, and a tombstone or a deletion must explain each hole. In the end every watcher is at
the head.

No record may come twice unless a gateway was killed. With several gateways, the kill of the session's shard explains
records whose positions it had not saved: a watcher that returns to another gateway gets them again.
"""

from __future__ import annotations

import http.client
import math
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from proto.model.names import shard_of
from tests.support.events import Event, Watch
from tests.support.service import Service

CAP = 40
KINDS = ("capped", "plain", "trimmed", "remade")
TOPICS = {kind: [f"{kind}:{n}" for n in range(5)] for kind in KINDS}
ALL = [topic for topics in TOPICS.values() for topic in topics]
ENVIRONMENT = {
    "TOPICS_WATCH_QUEUE_FRAMES": "6",
    "TOPICS_WATCH_QUEUE_BYTES": "60000",
    "TOPICS_BUFFER_GRACE_MS": "150",
    "TOPICS_RESTART_LIMIT": "1000",
    "TOPICS_CHECKPOINT_BYTES": "300000",
}
PATIENCE_S = 30.0
UNSAVED_S = 1.0
"""How old a position may be that a killed shard has not saved: gateways send them four times a second."""


class World:
    def __init__(self, service: Service, seed: int) -> None:
        self.service = service
        self.seed = seed
        self.writing = threading.Event()
        self.writing.set()
        self.stop = threading.Event()
        """Set when all records are written: each watcher connects once more, and gets the rest."""
        self.trimmed: dict[str, set[int]] = {topic: set() for topic in TOPICS["trimmed"]}
        """Seqs that are deleted, or about to be."""
        self.heads: dict[str, int] = {}
        self.gone: set[str] = set()
        """Topics whose last change was a deletion."""
        self.problems: list[Any] = []
        self.gateway_kills = 0
        self.several_gateways = service.environment["TOPICS_GATEWAYS"] != "1"
        self.killed: dict[str, float] = {}
        """When each shard was killed first."""

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Repeat a request until the service answers; return the response."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                status, answer = self.service.request(method, path, body)
            except (OSError, http.client.HTTPException):
                status, answer = 503, None
            if status not in (429, 503):
                return answer
            time.sleep(0.05)
        raise AssertionError(f"{method} {path} was not answered")


def write(world: World, number: int) -> None:
    rng = random.Random(world.seed * 1000 + number)
    count = 0
    while world.writing.is_set():
        topic = rng.choice(ALL)
        count += 1
        records = [{"data": "x" * rng.choice([10, 10, 2000])} for _ in range(rng.choice([1, 1, 2, 7, 30]))]
        body: dict[str, Any] = {"records": records, "idempotency_key": f"{number}-{count}"}
        if topic in TOPICS["capped"]:
            body["config"] = {"cap_records": CAP}
        world.ask("POST", f"/v0/topics/{topic}", body)
        if topic in world.trimmed and rng.random() < 0.1:
            state = world.ask("GET", f"/v0/topics/{topic}")
            before = min(state["head_seq"], state["earliest_seq"] + rng.randrange(20))
            world.trimmed[topic].update(range(1, before))  # first, because a watcher may see it before the response
            world.ask("POST", f"/v0/topics/{topic}/delete", {"before_seq": before})
        elif topic in TOPICS["remade"] and rng.random() < 0.1:
            world.ask("DELETE", f"/v0/topics/{topic}")
        time.sleep(rng.random() * 0.02)


class Watcher:
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.rng = random.Random(world.seed * 2000 + number)
        self.topics = self.rng.sample(ALL, self.rng.randrange(1, len(ALL)))
        self.at: dict[str, int] = {}
        self.received: dict[tuple[str, int], float] = {}
        """When each record came, by topic and seq."""
        self.told: set[str] = set()
        """Topics that this watcher was told are deleted: a session is told once."""
        self.last_id = ""
        self.connections = 0

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:  # a thread's failure is the test's
            self.world.problems.append(repr(error))

    def _run(self) -> None:
        rng = self.rng
        asked = {
            "topics": {key: {} for key in self.topics},
            "limit": rng.choice([1, 5, 256]),
            "consistency": rng.choice(["eventual", "strong"]),
        }
        made = self.world.ask("POST", "/v0/watch?lenient=true", asked)
        self.wid, self.topics = made["wid"], list(made["topics"])
        final = False
        while not final:
            final = self.world.stop.is_set()
            try:
                stream = Watch(self.world.service, self.wid, self.last_id)
            except (OSError, http.client.HTTPException):
                time.sleep(0.1)
                final = False
                continue
            with stream:
                if stream.status == 200:
                    final = self._follow(stream, final)
                elif stream.status == 503:
                    time.sleep(0.1)
                    final = False
                else:
                    self._wrong("status", stream.status, stream.raw)
                    return

    def _follow(self, stream: Watch, final: bool) -> bool:
        """Read for a while; the last time, until all records have arrived. Returns whether it was the last time."""
        self.connections += 1
        rng = self.rng
        until = time.monotonic() + (PATIENCE_S if final else rng.random() * 3)
        slow = not final and rng.random() < 0.3
        done = 0
        while time.monotonic() < until:
            if slow:
                stream.gate.clear()
                time.sleep(rng.random() * 0.5)
                stream.gate.set()
            time.sleep(0.01)
            ended = stream.ended.is_set()
            events = stream.events[done:]
            for event in events:
                self._check(event)
                self.last_id = event.ident or self.last_id
            done += len(events)
            if final and all(self._finished(stream, topic) for topic in self.topics):
                return True
            if ended and done == len(stream.events):
                return False
        if final:
            behind = {t: (self.at.get(t, 0), self.world.heads.get(t), stream.kinds(t)[-3:]) for t in self.topics}
            self._wrong("not at the head in time", {t: b for t, b in behind.items() if b[0] != b[1]})
        return final

    def _finished(self, stream: Watch, topic: str) -> bool:
        if topic in self.world.gone:
            return topic in self.told
        return "caught-up" in stream.kinds(topic) and self.at.get(topic, 0) >= self.world.heads[topic]

    def _check(self, event: Event) -> None:
        topic = event.data.get("topic")
        at = self.at.get(topic, 0)
        if event.kind in ("record", "tombstone"):
            self.told.discard(topic)
        if event.kind == "record":
            for seq in (record["$seq"] for record in event.data["records"]):
                if seq <= at:
                    if not self._may_come_again(topic, seq):
                        self._wrong(topic, "came twice", at, seq)
                    continue
                missing = range(at + 1, seq)
                if not all(lost in self.world.trimmed.get(topic, ()) for lost in missing):
                    self._wrong(topic, "missing", at, seq)
                at = seq
                self.received[topic, seq] = time.monotonic()
            self.at[topic] = at
        elif event.kind == "tombstone":
            remade = event.data["reason"] == "recreated"
            if topic not in TOPICS["remade" if remade else "capped"] or (
                not remade and event.data["gap_from"] > at + 1
            ):
                self._wrong(topic, "unexplained", at, event.data)
            # A killed gateway's unsaved frames come again, so a gap may begin before the watcher's position.
            self.at[topic] = event.data["earliest_seq"] - 1 if remade else max(at, event.data["gap_to"])
        elif event.kind == "topic-deleted":
            if topic not in TOPICS["remade"]:
                self._wrong(topic, "is not deleted")
            self.told.add(topic)

    def _may_come_again(self, topic: str, seq: int) -> bool:
        if self.world.gateway_kills:
            return True
        killed = self.world.killed.get(f"shard-{shard_of(self.wid, 2):02d}", math.inf)
        return self.world.several_gateways and self.received.get((topic, seq), -math.inf) >= killed - UNSAVED_S

    def _wrong(self, *what: Any) -> None:
        self.world.problems.append((self.wid, *what))


def chaos(service: Service, seed: int, watchers: int, seconds: float, victims: list[str]) -> None:
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    world = World(service, seed)
    for topic in ALL:
        world.ask("PUT", f"/v0/topics/{topic}", {"cap_records": CAP} if topic in TOPICS["capped"] else {})
    crowd = [Watcher(world, number) for number in range(watchers)]
    writers = [threading.Thread(target=write, args=(world, number)) for number in range(3)]
    readers = [threading.Thread(target=watcher.run) for watcher in crowd]
    for thread in (*writers, *readers):
        thread.start()
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            time.sleep(2)
            victim = rng.choice(victims)
            world.gateway_kills += victim == "gateway"
            world.killed.setdefault(victim, time.monotonic())
            service.kill_child(victim)
        service.wait_ready()
    finally:
        world.writing.clear()
        for thread in writers:
            thread.join()
        for topic in ALL:
            state = world.ask("GET", f"/v0/topics/{topic}")
            world.heads[topic] = state.get("head_seq", 0)
            if "error" in state:
                assert state["error"]["code"] == "topic_not_found", state
                world.gone.add(topic)
        world.stop.set()
        for thread in readers:
            thread.join()
    assert not world.problems, (seed, len(world.problems), world.problems[:5])
    assert sum(watcher.connections for watcher in crowd) > watchers


def test_whatever_a_watcher_gets_is_explained(new_service: Callable[..., Service]) -> None:
    with new_service(**ENVIRONMENT) as service:
        chaos(service, random.randrange(10**6), 12, 8, ["shard-00", "shard-01"])


@pytest.mark.long
def test_whatever_fifty_watchers_get_in_a_minute_is_explained(new_service: Callable[..., Service]) -> None:
    with new_service(**ENVIRONMENT) as service:
        chaos(service, random.randrange(10**6), 50, 60, ["shard-00", "shard-01", "gateway"])

"""Claims about routers in killed processes: a chain, a tree and a cycle over two shards, while writers write.

After every kill of any subset of processes, each seq seen before still has its record. In the end every destination
holds every acknowledged record, and `exactly_once` ones hold it exactly once.
"""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from tests.support.service import Service, ask, until

KILLS = 6
CHAIN = ["rk:0", "rk:1", "rk:2", "rk:3"]
EDGES = [*pairwise(CHAIN), ("rk:0", "rk:tree"), ("rk:tree", "rk:leaf")]
CYCLE = ["rk:ping", "rk:pong"]
HOPS = 8


class Writer(threading.Thread):
    """Writes numbers to the first topic, and sometimes directly to a destination. Repeats writes without a response."""

    def __init__(self, service: Service, seed: int) -> None:
        super().__init__()
        self.service = service
        self.rng = random.Random(seed)
        self.acked: list[int] = []
        self.round: list[int] = []
        """Numbers that the cycle acknowledged."""
        self.stopping = False

    def run(self) -> None:
        number = 0
        while not self.stopping:
            number += 1
            topic = self.rng.choices((CHAIN[0], CHAIN[2], CYCLE[0]), (80, 12, 8))[0]
            data = -number if topic == CHAIN[2] else number
            body = {"records": [{"data": data}], "idempotency_key": f"k{number}"}
            while True:
                try:
                    if self.service.request("POST", f"/v0/topics/{topic}", body, timeout_s=5)[0] in (200, 201):
                        break
                except (OSError, http.client.HTTPException):
                    pass
                if self.stopping:
                    return
            if topic == CHAIN[0]:
                self.acked.append(number)
            elif topic == CYCLE[0]:
                self.round.append(number)


def everything(service: Service, topic: str) -> dict[int, Any]:
    connection = service.connect()
    found: dict[int, Any] = {}
    cursor = 0
    try:
        while True:
            status, answer = ask(connection, "POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000})
            assert status == 200, answer
            assert answer["tombstone"] is None, answer["tombstone"]
            found |= {record["$seq"]: record["data"] for record in answer["records"]}
            cursor = answer["next_from_seq"]
            if answer["caught_up"]:
                return found
    finally:
        connection.close()


def test_copies_survive_the_death_of_any_processes(new_service: Callable[..., Service]) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    rng = random.Random(seed)
    service = new_service(shards=2, TOPICS_CHECKPOINT_INTERVAL_MS="700").start()
    for source, dest in EDGES:
        body = {"source": source, "dest": dest, "guarantee": "exactly_once"}
        assert service.request("PUT", f"/v0/routers/{source}-{dest}", body)[0] == 201
    for source, dest in (CYCLE, CYCLE[::-1]):
        body = {"source": source, "dest": dest, "allow_cycle": True}
        assert service.request("PUT", f"/v0/routers/{source}-{dest}", body)[0] == 201
    topics = sorted({dest for _, dest in EDGES})
    seen: dict[str, dict[int, Any]] = {topic: {} for topic in (*topics, *CYCLE)}

    def look() -> None:
        for topic in seen:
            now = everything(service, topic)
            assert seen[topic].items() <= now.items(), f"{topic}: seqs name others than before (seed {seed})"
            seen[topic] = now

    writer = Writer(service, seed)
    writer.start()
    try:
        for _ in range(KILLS):
            goal = len(writer.acked) + rng.randrange(20, 120)
            until(lambda goal=goal: len(writer.acked) >= goal, "writes")
            look()
            victims = rng.choice((["shard-00"], ["shard-01"], ["shard-00", "shard-01"], ["gateway"], []))
            if victims:
                before = {name: service.kill_child(name) for name in victims}
                until(
                    lambda before=before: all(service.child(n)["incarnation"] > i for n, i in before.items()),
                    "new processes",
                )
                service.wait_ready()
            else:
                service.kill_group()
                service.start()
            look()
    finally:
        writer.stopping = True
        writer.join()
    wanted = writer.acked
    for topic in topics:
        until(lambda topic=topic: len(wanted) <= len(everything(service, topic)), f"everything in {topic}")
    until(lambda: _settled(service), "the end of the chain")
    look()
    for topic in topics:
        got = [data for _, data in sorted(seen[topic].items()) if data > 0]
        assert len(got) == len(set(got)), f"{topic} holds a record twice (seed {seed})"
        assert set(wanted) <= set(got), f"{topic} lacks {sorted(set(wanted) - set(got))[:9]} (seed {seed})"
        assert got == sorted(got), f"{topic} is out of order (seed {seed})"
    until(lambda: _rested(service, len(writer.round)), "the cycle to rest")
    look()
    for topic, copies in zip(CYCLE, (HOPS // 2 + 1, HOPS // 2), strict=True):
        went = Counter(seen[topic].values())
        assert went == dict.fromkeys(writer.round, copies), f"{topic} holds {went} (seed {seed})"


def _settled(service: Service) -> bool:
    heads = {t: service.request("GET", f"/v0/topics/{t}")[1]["head_seq"] for t in ("rk:0", "rk:2", "rk:3")}
    return bool(heads["rk:3"] == heads["rk:2"] and heads["rk:2"] >= heads["rk:0"])


def _rested(service: Service, records: int) -> bool:
    return all(service.request("GET", f"/v0/topics/{t}")[1]["head_seq"] >= records * HOPS // 2 for t in CYCLE)

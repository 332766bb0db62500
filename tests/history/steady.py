"""A steady load of all features: the clients of the bars at a pace, and one more for what a history does not have.

Retention removes as much as clients write, and workers complete more jobs than are published: so a service that keeps
nothing too much has the same size after a minute and after a day. No history is kept, because it would grow.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.history.clients import CONFIGS, Crowd, Mixed, Paced, Poller, SocketWatcher, Watcher, Worker
from tests.history.samples import Latencies
from tests.support.service import Service
from topics_history import format as f

KEPT = 2000
"""Records that a topic keeps."""
LATER, DEAD, SHORT, MADE = "s:later", "s:dead", "s:short", "s:made:"
CLASSES = ["s:memory", "s:ephemeral"]
STEADY: dict[str, dict[str, object]] = {
    **{name: {"cap_records": KEPT} | config if "type" not in config else config for name, config in CONFIGS.items()},
    "s:memory": {"durability": "memory", "cap_records": KEPT},
    "s:ephemeral": {"durability": "ephemeral", "cap_records": KEPT},
    SHORT: {"ttl_ms": 5000},
    DEAD: {"cap_records": 100},
    LATER: {"type": "queue", "max_deliveries": 3, "dead_letter": DEAD},
}
MADE_AT_ONCE = 20
ENVIRONMENT = {
    "TOPICS_CACHE_BYTES": "1000000",
    "TOPICS_CHECKPOINT_BYTES": "2000000",
    "TOPICS_CHECKPOINT_INTERVAL_MS": "10000",
    "TOPICS_SEGMENT_MAX_BYTES": "500000",
    "TOPICS_WAL_SEGMENT_BYTES": "2000000",
    "TOPICS_WATCH_SESSION_TTL_MS": "20000",
}
"""What the service does every minute or every five, it does often; and what it fills in hours is soon full."""
LISTS = (
    "/v0/topics?prefix=s:&page_size=5",
    "/v0/topics?page_size=100",
    "/v0/routers",
    "/v0/cursors",
    "/v0/metrics/history",
    "/v0/ready",
)


KINDS = (
    *("Append", "Read", "Frame", "GetState", "Delete", "CursorPut", "CursorGet", "Claim", "Ack", "Nack", "Extend"),
    *("topics", "routers", "cursors", "watch", "lines of a watch", "metrics", "ready"),
)
"""What clients do. Each kind succeeds again and again."""


class Unrecorded:
    """In the place of a recording: counts outcomes, keeps how long appends took until they are sampled, and notes for
    how long nothing succeeded."""

    def __init__(self, latencies: Latencies) -> None:
        self._latencies = latencies
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        """Requests by kind and outcome."""
        self._began = time.monotonic()
        self._last: dict[str, float] = {}
        self._silent_s: dict[str, float] = {}

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def write(
        self, kind: type[f.Operation], client: str, start_ns: int, outcome: f.Outcome, waited_ns: int = 0, **more: Any
    ) -> int:
        end_ns = self.now_ns()
        self.count(kind.__name__, outcome, client)
        if kind is f.Append and outcome == "ok":
            self._latencies.add((end_ns - start_ns) / 1e6)
        return end_ns

    def count(self, kind: str, outcome: str, client: str) -> None:
        now = time.monotonic()
        with self._lock:
            self.counts[f"{kind} {outcome}"] += 1
            if outcome == "ok" and kind != f.Open.__name__:  # a stream that opens may still bring nothing
                for each in (kind, client):
                    self._silent_s[each] = max(self._silent_s.get(each, 0.0), now - self._last.get(each, self._began))
                    self._last[each] = now

    def silences_s(self, clients: Iterable[str]) -> dict[str, float]:
        """The longest time without a success, of each kind and each client."""
        now = time.monotonic()
        with self._lock:
            return {
                each: max(self._silent_s.get(each, 0.0), now - self._last.get(each, self._began))
                for each in (*KINDS, *clients)
            }


class SteadyMixed(Paced, Mixed):
    pass


class SteadyWorker(Paced, Worker):
    pass


class SteadyPoller(Paced, Poller):
    pass


class Others(Crowd):
    """Classes without a promise, TTLs, delayed jobs with retries and dead letters, topics that come and go, watches of
    a prefix, lists and metrics. Each answer is a success, or is refused for a while."""

    def turn(self) -> None:
        kinds = (self._append, self._job, self._work, self._come_and_go, self._list, self._watch)
        self.rng.choices(kinds, (6, 4, 4, 3, 2, 0.2))[0]()
        self.stopping.wait(self.rng.random() * 0.04)

    def _ask(self, method: str, path: str, body: Any = None, *, absent: bool = False) -> Any:
        """The answer; None if there was none, or a refusal."""
        answer = self.client.ask(method, path, body)
        gone = absent and answer.status == 404
        self._count(path.partition("?")[0].split("/")[2], "absent" if gone else answer.outcome)
        assert answer.status in (0, 200, 201, 429, 503) or gone, (method, path, answer)
        return answer.body if answer.outcome == "ok" else None

    def _count(self, kind: str, outcome: str) -> None:
        self.client.recording.count(kind, outcome, self.name)

    def _append(self) -> None:
        topic = self.rng.choice([*CLASSES, SHORT])
        records = [{"data": "x" * self.rng.randrange(200), "tag": "t"} for _ in range(self.rng.choice((1, 10)))]
        self._ask("POST", f"/v0/topics/{topic}", {"records": records})
        self._ask("POST", f"/v0/topics/{topic}/diff", {"from_seq": 0, "limit": 10})

    def _job(self) -> None:
        job = {"data": 1, "delay_ms": self.rng.choice((0, 100, 2000))}
        self._ask("POST", f"/v0/topics/{LATER}", {"records": [job]})

    def _work(self) -> None:
        path, node = f"/v0/topics/{LATER}", {"node": self.name}
        told = self._ask("POST", f"{path}/claim", {**node, "max": 10, "lease_ms": 1000})
        for job in told["claimed"] if told else ():
            of = {**node, "seqs": [job["$seq"]], "lease_ids": [job["lease_id"]]}
            if self.rng.random() < 0.7:
                self._ask("POST", f"{path}/ack", of)
            else:
                self._ask("POST", f"{path}/nack", {**of, "delay_ms": self.rng.choice((0, 200)), "reason": "once more"})

    def _come_and_go(self) -> None:
        path = f"/v0/topics/{MADE}{self.rng.randrange(MADE_AT_ONCE)}"
        if self.rng.random() < 0.5:
            self._ask("POST", path, {"records": [{"data": 1}]})
        else:
            self._ask("DELETE", path, absent=True)

    def _list(self) -> None:
        if self.rng.random() < 0.2:
            self._scrape()
        else:
            self._ask("GET", self.rng.choice(LISTS))

    def _scrape(self) -> None:
        connection, outcome = self.client.connect(), "unknown"
        try:
            connection.request("GET", "/v0/metrics")
            response = connection.getresponse()
            if response.read() and response.status == 200:
                outcome = "ok"
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        self._count("metrics", outcome)

    def _watch(self) -> None:
        """Open a session over a prefix, and read some lines of it."""
        told = self._ask("POST", "/v0/watch", {"prefix": MADE, "heartbeat_ms": 1000})
        if told is None:
            return
        connection, outcome = self.client.connect(), "unknown"
        try:
            connection.request("GET", f"/v0/watch/{told['wid']}")
            response = connection.getresponse()
            for _ in range(self.rng.randrange(1, 8)):
                if self.stopping.is_set():
                    return
                if response.status != 200 or not response.readline():
                    break
            else:
                outcome = "ok"
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        self._count("lines of a watch", outcome)


def crowd(service: Service, recording: Unrecorded, clients: int, seed: int) -> list[Crowd]:
    """The clients, before they start."""
    kinds: list[type[Crowd]] = [SteadyMixed, Others, SteadyWorker, Watcher, SteadyMixed, SocketWatcher, SteadyPoller]
    found = [kinds[n % len(kinds)](service, recording, f"c{n}", seed) for n in range(clients)]  # type: ignore[arg-type]
    for each in found:
        each.client.longest_body = 300
    return found

"""A recording: requests to a service, each written into a history with its times, its outcome and its answer.

The clock is `time.monotonic_ns` of this process, so all clients of a history are threads of it. An operation is written
when its answer has arrived, under the lock that orders the lines.

    no connection could be made                             failed
    404 `cursor_not_found`                                  ok: the cursor is at 0
    other 4xx, 429 among them, or `outcome: not_done`       failed
    503 with the reason `write_failed`                      failed
    2xx                                                     ok
    no whole answer, any other 5xx                          unknown
"""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.support.service import Service
from topics_history import format as f

POOL_BYTES = 1 << 16
LONGEST_BODY = 4096
TIMEOUT_S = 15.0
LEAVES = 0.1
"""Of the requests to several machines, those before which a client connects again."""


@dataclass(frozen=True, slots=True)
class Answer:
    outcome: f.Outcome
    status: int
    body: Any


def answered(status: int, body: Any) -> Answer:
    """The answer of a service that answered, with its outcome. A cursor that is not there is at 0."""
    if status < 300:
        return Answer("ok", status, body)
    error = body.get("error", {})
    if error.get("code") == "cursor_not_found":
        return Answer("ok", status, {"seq": 0})
    told = error.get("detail") or {}
    undone = told.get("outcome") == "not_done" or told.get("reason") == "write_failed"
    return Answer("failed" if undone or status < 500 else "unknown", status, body)


class Recording:
    """The history of all clients. `answered` requests had an answer; the longest of them took `slowest_ns`, beyond what
    it waited for."""

    def __init__(self, path: Path, topics: dict[str, f.Topic], routers: list[f.Router]) -> None:
        self._file = path.open("wb")
        self._writer = f.Writer(self._file, topics, routers)
        self._lock = threading.Lock()
        self.operations = 0
        self.done: Counter[type[f.Operation]] = Counter()
        """Operations with success, by kind."""
        self.answered = 0
        self.slowest_ns = 0

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def write(
        self, kind: type[f.Operation], client: str, start_ns: int, outcome: f.Outcome, waited_ns: int = 0, **more: Any
    ) -> int:
        """Write an operation that ends now; return its end. `waited_ns` is the time that a client asked to wait."""
        with self._lock:
            end_ns = self.now_ns()
            self._writer.write(kind(client=client, start_ns=start_ns, end_ns=end_ns, outcome=outcome, **more))
            self.operations += 1
            self.done[kind] += outcome == "ok"
            if outcome == "ok" and kind not in (f.Frame, f.Fault):
                self.answered += 1
                self.slowest_ns = max(self.slowest_ns, end_ns - start_ns - waited_ns)
        return end_ns

    def close(self) -> None:
        with self._lock:
            self._writer.close()
            self._file.close()


def body_of(data: Any) -> str:
    """The text that stands for a record: the writer's name and counter, and a digest of the bytes as they were read."""
    return f"{data['w']}/{hashlib.blake2b(data['p'].encode(), digest_size=8).hexdigest()}"


def pairs(records: list[Any]) -> list[tuple[int, str]]:
    return [(record["$seq"], body_of(record["data"])) for record in records]


class Requests:
    """Requests of one client, one after the other, each written down. Not for two threads."""

    outcome: f.Outcome = "ok"
    """Of the last request."""
    longest_body = LONGEST_BODY

    def __init__(self, recording: Recording, name: str, seed: int) -> None:
        self.recording = recording
        self.name = name
        self.rng = Random(f"{seed} {name}")
        self._pool = self.rng.randbytes(POOL_BYTES // 2).hex()
        self._sent = 0

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """Send one request of the API."""
        raise NotImplementedError

    def _recorded(
        self,
        kind: type[f.Operation],
        request: tuple[str, str, Any],
        result: Callable[[Any], Any],
        waited_ms: int = 0,
        **more: Any,
    ) -> Any:
        """Ask, and write it down; return the result, or None."""
        start_ns = self.recording.now_ns()
        answer = self.ask(*request)
        found = result(answer.body) if answer.outcome == "ok" else None
        self.recording.write(kind, self.name, start_ns, answer.outcome, waited_ms * 1_000_000, result=found, **more)
        self.outcome = answer.outcome
        return found

    # -- logs

    def append(self, topic: str, count: int = 1, *, tag: str | None = None, keyed: bool = False) -> Any:
        """Append records of seeded contents. With a key, repeat it a few times until it is known to have happened."""
        self.last_append = self.new_append(topic, count, tag=tag, keyed=keyed)
        for _ in range(5 if keyed else 1):
            found = self.append_again(*self.last_append)
            if self.outcome != "unknown":
                break
        return found

    def new_append(
        self, topic: str, count: int = 1, *, tag: str | None = None, keyed: bool = False
    ) -> tuple[str, Any, f.AppendArgs]:
        """An append of seeded contents, for `append_again`."""
        records, bodies = [], []
        for _ in range(count):
            self._sent += 1
            at, length = self.rng.randrange(POOL_BYTES - LONGEST_BODY), self.rng.randrange(self.longest_body + 1)
            data = {"w": f"{self.name}-{self._sent}", "p": self._pool[at : at + length]}
            records.append({"data": data} | ({"tag": tag} if tag else {}))
            bodies.append(body_of(data))
        body: dict[str, Any] = {"records": records, "create": False}
        key = bodies[0] if keyed else None
        if key:
            body["idempotency_key"] = key
        args = f.AppendArgs(bodies, [tag] * count if tag else None, key)
        return topic, body, args

    def append_again(self, topic: str, body: Any, args: f.AppendArgs) -> Any:
        """Repeat a `last_append`. Only one with a key may be repeated."""
        return self._recorded(
            f.Append,
            ("POST", f"/v0/topics/{topic}", body),
            lambda told: f.Appended(told["first_seq"], told["last_seq"], told["head_seq"]),
            topic=topic,
            args=args,
        )

    def read(self, topic: str, after: int, *, limit: int = 100, wait_ms: int = 0) -> Any:
        def result(told: Any) -> f.ReadResult:
            gap = told["tombstone"]
            return f.ReadResult(
                pairs(told["records"]),
                told["next_from_seq"],
                told["head_seq"],
                told["earliest_seq"],
                told["caught_up"],
                (gap["gap_from"], gap["gap_to"]) if gap and gap["gap_to"] else None,  # up to 0: the topic is empty
            )

        body = {"from_seq": after, "limit": limit, "wait_ms": wait_ms, "max_batch_bytes": 1 << 20}
        request = ("POST", f"/v0/topics/{topic}/diff", body)
        return self._recorded(f.Read, request, result, wait_ms, topic=topic, args=f.ReadArgs(after))

    def state(self, topic: str) -> Any:
        return self._recorded(f.GetState, ("GET", f"/v0/topics/{topic}", None), _bounds, topic=topic)

    def delete(self, topic: str, before: int | None = None, tag: str | None = None) -> Any:
        body = ({"before_seq": before} if before is not None else {}) | ({"match": tag} if tag else {})
        args = f.DeleteArgs(before, tag)
        return self._recorded(f.Delete, ("POST", f"/v0/topics/{topic}/delete", body), _bounds, topic=topic, args=args)

    def put_cursor(self, topic: str, cursor: str, seq: int) -> Any:
        request = ("PUT", f"/v0/topics/{topic}/cursors/{cursor}", {"seq": seq})
        return self._recorded(f.CursorPut, request, _position, topic=topic, args=f.CursorPutArgs(cursor, seq))

    def get_cursor(self, topic: str, cursor: str) -> Any:
        request = ("GET", f"/v0/topics/{topic}/cursors/{cursor}", None)
        return self._recorded(f.CursorGet, request, _position, topic=topic, args=f.CursorGetArgs(cursor))

    # -- queues

    def peek(self, topic: str, first: int) -> Any:
        def result(told: Any) -> f.ReadResult:
            return f.ReadResult(pairs(told["jobs"]), told["next_seq"] - 1, caught_up=not told["more"])

        request = ("POST", f"/v0/topics/{topic}/peek", {"first_seq": first, "max": 100})
        return self._recorded(f.Read, request, result, topic=topic, args=f.ReadArgs(first - 1))

    def claim(self, topic: str, most: int, lease_ms: int, wait_ms: int = 0) -> Any:
        def result(told: Any) -> f.ClaimResult:
            return f.ClaimResult([(job["$seq"], body_of(job["data"]), job["lease_id"]) for job in told["claimed"]])

        body = {"node": self.name, "max": most, "lease_ms": lease_ms, "wait_ms": wait_ms}
        args = f.ClaimArgs(self.name, lease_ms)
        request = ("POST", f"/v0/topics/{topic}/claim", body)
        return self._recorded(f.Claim, request, result, wait_ms, topic=topic, args=args)

    def use(self, kind: type[f.Operation], topic: str, jobs: list[tuple[int, str, str]], lease_ms: int = 0) -> Any:
        """Ack, nack or extend."""
        args = f.LeaseArgs([seq for seq, _, _ in jobs], [lease for _, _, lease in jobs], lease_ms)
        body: dict[str, Any] = {"node": self.name, "seqs": args.seqs, "lease_ids": args.lease_ids}
        if kind is f.Extend:
            body["lease_ms"] = lease_ms
        request = ("POST", f"/v0/topics/{topic}/{kind.__name__.lower()}", body)
        return self._recorded(kind, request, lambda told: f.LeaseResult(told["skipped"]), topic=topic, args=args)


class Client(Requests):
    """The requests of a client over HTTP."""

    def __init__(self, service: Service, recording: Recording, name: str, seed: int) -> None:
        super().__init__(recording, name, seed)
        self.service = service
        self.port: int | None = None
        """That of a proxy in front of the service."""
        self.machines: Callable[[], Sequence[Service]] = lambda: (service,)
        """Those that clients may use: each connection is to one of them."""
        self.timeout_s = TIMEOUT_S
        self.last: tuple[str, int] | None = None
        """Host and port of the last connection."""
        self.broken: Exception | None = None
        """The last error of a connection."""
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connect(self) -> http.client.HTTPConnection:
        """A connection of its own, which the caller closes."""
        return http.client.HTTPConnection(*self.address(), timeout=self.timeout_s)

    def address(self) -> tuple[str, int]:
        """Host and port for the next connection."""
        machines = self.machines()
        machine = machines[0] if len(machines) == 1 else self.rng.choice(machines)
        self.last = machine.host, self.port or machine.port
        return self.last

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        if len(self.machines()) > 1 and self.rng.random() < LEAVES:
            self.close()
        connection = self._connection
        if connection is None:
            connection = self.connect()
            try:
                connection.connect()
            except OSError:
                return Answer("failed", 0, None)
            self._connection = connection
        content = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.broken = error
            self.close()
            return Answer("unknown", 0, None)
        return answered(response.status, answer)


def _bounds(told: Any) -> f.Bounds:
    return f.Bounds(told["head_seq"], told["earliest_seq"])


def _position(told: Any) -> f.CursorResult:
    return f.CursorResult(told["seq"])

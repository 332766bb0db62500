"""Claims about restarts under load: SIGTERM, start, SIGTERM, start, with clients at work all the time.

The clients follow the contract and do no more. They repeat a request refused with `Retry-After` after that time, and
one without a response at once. Writes carry an idempotency key; readers keep a cursor. Watchers and pushed workers
behave like a browser's EventSource, which never retries after a response other than an event stream. Any other error
fails the test, including a response that breaks off in the middle.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from tests.support.service import Service, until
from tests.support.writers import verify

TOPICS = {"log:a": "disk", "log:b": "disk", "log:c": "fsync", "log:d": "memory"}
QUEUE = "jobs"
PATIENCE_S = 60.0
PAUSE_S = 0.02


class Client(threading.Thread):
    """Does one `turn` after the other until it is told to finish."""

    def __init__(self, service: Service, name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.service = service
        self.random = random.Random(f"{seed}/{name}")
        self.turns = 0
        self.refused: Counter[str] = Counter()
        """Refusals with `Retry-After`, by code."""
        self.unanswered: Counter[str] = Counter()
        """Requests without the first byte of a response, by error."""
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self._connection: http.client.HTTPConnection | None = None

    def turn(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.turn()
                self.turns += 1
        except BaseException as error:
            self.failure = error
        finally:
            self.hang_up()

    def ask(self, path: str, body: Any, method: str = "POST") -> Any:
        """Repeat a request until the response is no temporary refusal; return it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            response = self.answered(method, path, json.dumps(body).encode(), {"Content-Type": "application/json"})
            if response is None:
                time.sleep(PAUSE_S)
                continue
            answer = json.loads(response.read())
            if response.status in (200, 201):
                return answer
            self._check_refusal(response, answer)
            time.sleep(float(response.headers["Retry-After"]))
        raise AssertionError(f"{path} was not answered within {PATIENCE_S:g} s")

    def answered(self, method: str, path: str, body: bytes | None, headers: Any) -> http.client.HTTPResponse | None:
        """Return the head of a response, whose body is still unread, or None if none came."""
        try:
            if self._connection is None:
                self._connection = self.service.connect(timeout_s=PATIENCE_S)
            self._connection.request(method, path, body, headers)
            return self._connection.getresponse()
        except (ConnectionError, http.client.RemoteDisconnected) as error:
            self.unanswered[type(error).__name__] += 1
            self.hang_up()
            return None

    def _check_refusal(self, response: http.client.HTTPResponse, answer: Any) -> None:
        code = answer["error"]["code"]
        assert (response.status, code) in ((503, "shutting_down"), (503, "not_ready"), (429, "throttled")), answer
        assert "Retry-After" in response.headers, answer
        self.refused[code] += 1

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def finish(self) -> None:
        self.stopping.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), f"{self.name} hangs"
        if self.failure is not None:
            raise AssertionError(f"{self.name}: {self.failure!r}") from self.failure


class Writer(Client):
    """Writes batches to `topics`; has the fields that `verify` reads."""

    def __init__(self, service: Service, name: str, seed: int, topics: list[str]) -> None:
        super().__init__(service, name, seed)
        self.acked: dict[str, dict[int, Any]] = {topic: {} for topic in topics}
        self._numbers = count(1)

    def turn(self) -> None:
        topic = self.random.choice(list(self.acked))
        batch = [
            {"id": f"{self.name}/{next(self._numbers)}", "pad": "é" * self.random.randrange(100)}
            for _ in range(self.random.choice((1, 1, 2, 5, 20)))
        ]
        body = {"records": [{"data": data} for data in batch], "idempotency_key": batch[0]["id"]}
        answer = self.ask(f"/v0/topics/{topic}", body)
        self.acked[topic].update(zip(answer["seqs"], batch, strict=True))
        self.stopping.wait(self.random.random() * 0.02)


class Reader(Client):
    """Sends long polls from its position; every seq must come once and in order."""

    def __init__(self, service: Service, name: str, seed: int, topic: str) -> None:
        super().__init__(service, name, seed)
        self.topic = topic
        self.at = 0

    def turn(self) -> None:
        page = self.ask(f"/v0/topics/{self.topic}/diff", {"from_seq": self.at, "limit": 200, "wait_ms": 2000})
        assert not page.get("tombstone"), page["tombstone"]
        seqs = [record["$seq"] for record in page["records"]]
        assert seqs == list(range(self.at + 1, self.at + 1 + len(seqs))), (self.at, seqs)
        self.at = page["next_from_seq"]


class EventSource(Client):
    """Opens one connection after the other, as in the HTML standard. A subclass gives the address and reads events."""

    def __init__(self, service: Service, name: str, seed: int) -> None:
        super().__init__(service, name, seed)
        self.last_id = ""
        self.retry_s = 3.0
        self.farewells: Counter[int] = Counter()

    def path(self) -> str:
        raise NotImplementedError

    def take(self, event: str, data: Any) -> None:
        raise NotImplementedError

    def turn(self) -> None:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": self.last_id} if self.last_id else {})
        response = self.answered("GET", self.path(), None, headers)
        if response is None:
            self.stopping.wait(PAUSE_S)
            return
        assert response.status == 200, f"an EventSource gives up: {response.status} {response.read()!r}"
        assert response.headers["Content-Type"].startswith("text/event-stream"), response.headers
        try:
            self._read(response)
        finally:
            self.hang_up()
        self.stopping.wait(self.retry_s)

    def leave(self) -> None:
        """End the connection, from any thread."""
        sock = self._connection.sock if self._connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        self.stopping.set()
        self.leave()
        super().finish()

    def _read(self, response: http.client.HTTPResponse) -> None:
        fields: dict[str, str] = {}
        while True:
            line = response.readline()
            if self.stopping.is_set():
                return
            if not line:
                self._check_end(response)
                return
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if line != b"\n":
                fields[name] = value
                continue
            if "retry" in fields:
                self.retry_s = int(fields["retry"]) / 1000
            self.last_id = fields.get("id", self.last_id)
            if fields.get("event") == "error":
                code = json.loads(fields["data"])["code"]
                assert code == 503, fields
                self.farewells[code] += 1
            elif "data" in fields:
                self.take(fields["event"], json.loads(fields["data"]))
            fields = {}

    def _check_end(self, response: http.client.HTTPResponse) -> None:
        # http.client reports no error where the last chunk is missing.
        assert (response.chunk_left is None) if response.chunked else not response.length, "the stream broke off"


class Watcher(EventSource):
    def __init__(self, service: Service, name: str, seed: int, topics: list[str]) -> None:
        super().__init__(service, name, seed)
        self.at = dict.fromkeys(topics, 0)
        asked = {"topics": {topic: {"from_seq": 0} for topic in topics}, "heartbeat_ms": 1000}
        self._wid = str(self.ask("/v0/watch", asked)["wid"])
        self.hang_up()

    def path(self) -> str:
        return f"/v0/watch/{self._wid}"

    def take(self, event: str, data: Any) -> None:
        assert event in ("record", "caught-up"), (event, data)
        for record in data.get("records", ()):
            topic = data["topic"]
            assert record["$seq"] == self.at[topic] + 1, (topic, self.at[topic], record["$seq"])
            self.at[topic] += 1


class Visitor(Watcher):
    """Opens a stream, leaves at the first event, and repeats: so streams are opened at every moment of a restart."""

    def take(self, event: str, data: Any) -> None:
        super().take(event, data)
        self.retry_s = 0
        self.leave()

    def _read(self, response: http.client.HTTPResponse) -> None:
        # Of bytes after the client has left; IncompleteRead if they end between a chunk and its line break.
        with contextlib.suppress(ConnectionError, http.client.IncompleteRead):
            super()._read(response)

    def _check_end(self, response: http.client.HTTPResponse) -> None:
        pass  # the client itself ended the stream


class Worker(Client):
    """Claims jobs, acks by lease, and remembers the jobs whose acks the service accepted."""

    def __init__(self, service: Service, name: str, seed: int) -> None:
        super().__init__(service, name, seed)
        self.done: Counter[int] = Counter()
        self.skipped: set[int] = set()
        """Acks that changed nothing: their first response was lost, or the lease was over."""

    def turn(self) -> None:
        claimed = self.ask(f"/v0/topics/{QUEUE}/claim", {"node": self.name, "max": 10, "lease_ms": 60_000})["claimed"]
        if claimed:
            self.ack([job["$seq"] for job in claimed], [job["lease_id"] for job in claimed])
        else:
            self.stopping.wait(0.05)

    def ack(self, seqs: list[int], leases: list[str]) -> None:
        answer = self.ask(f"/v0/topics/{QUEUE}/ack", {"node": self.name, "seqs": seqs, "lease_ids": leases})
        skipped = set(answer["skipped"])
        self.skipped |= skipped
        self.done.update(seq for seq in seqs if seq not in skipped)


class PushedWorker(EventSource):
    """Receives pushed jobs, and acks each over a connection of its own."""

    def __init__(self, service: Service, name: str, seed: int) -> None:
        super().__init__(service, name, seed)
        self.acks = Worker(service, name, seed)

    def path(self) -> str:
        return f"/v0/topics/{QUEUE}/work?node={self.name}&max=5&lease_ms=60000"

    def take(self, event: str, data: Any) -> None:
        assert event == "job", (event, data)
        self.acks.ack([data["$seq"]], [data["lease_id"]])

    def finish(self) -> None:
        super().finish()
        self.acks.hang_up()


def roll(service: Service, seed: int, restarts: int, every_s: float) -> None:
    """Run the clients, with a restart every `every_s`."""
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    admin = Client(service, "admin", seed)
    for topic, durability in TOPICS.items():
        admin.ask(f"/v0/topics/{topic}", {"durability": durability}, "PUT")
    admin.ask(f"/v0/topics/{QUEUE}", {"type": "queue"}, "PUT")
    names = list(TOPICS)
    writers = [Writer(service, f"writer{n}", seed, names) for n in range(3)]
    producer = Writer(service, "producer", seed, [QUEUE])
    readers = [Reader(service, f"reader-{topic}", seed, topic) for topic in names]
    watchers = [Watcher(service, f"watcher{n}", seed, names[n:]) for n in range(3)]
    watchers += [Visitor(service, f"visitor{n}", seed, names[:1]) for n in range(2)]
    workers = [Worker(service, f"worker{n}", seed) for n in range(2)]
    pushed = [PushedWorker(service, f"pushed{n}", seed) for n in range(2)]
    clients: list[Client] = [*writers, producer, *readers, *watchers, *workers, *pushed]

    def all_well() -> bool:
        failed = [f"{client.name}: {client.failure!r}" for client in clients if client.failure is not None]
        assert not failed, failed
        return True

    for client in clients:
        client.start()
    try:
        for _ in range(restarts):
            began = time.monotonic()
            assert service.stop() == 0
            service.start()
            while all_well() and time.monotonic() - began < every_s:
                time.sleep(PAUSE_S)
        for writer in (*writers, producer):
            writer.finish()
        heads = {topic: admin.ask(f"/v0/topics/{topic}", None, "GET")["head_seq"] for topic in names}
        until(
            lambda: all_well() and all(each.at >= heads[each.topic] for each in readers),
            "readers to be at the head",
            PATIENCE_S,
        )
        until(
            lambda: all_well() and all(at >= heads[t] for each in watchers for t, at in each.at.items()),
            "watchers",
            PATIENCE_S,
        )
        until(
            lambda: all_well() and admin.ask(f"/v0/topics/{QUEUE}", None, "GET")["count"] == 0,
            "every job to be done",
            PATIENCE_S,
        )
    finally:
        admin.hang_up()
        for client in clients:
            client.stopping.set()
    for client in clients:
        client.finish()
    assert verify(service, writers) > 0  # type: ignore[arg-type]
    hands = [*workers, *(each.acks for each in pushed)]
    done = sum((hand.done for hand in hands), Counter[int]())
    assert max(done.values()) == 1, "a job was done twice"
    unsure = set().union(*(hand.skipped for hand in hands))
    assert set(producer.acked[QUEUE]) <= set(done) | unsure
    assert all(client.turns for client in clients)
    assert all(source.farewells[503] for source in (*watchers[:3], *pushed)), "each stream ended with a last frame"


def test_clients_get_through_two_restarts(new_service: Callable[..., Service]) -> None:
    with new_service() as service:
        roll(service, random.randrange(10**6), 2, 4)


@pytest.mark.long
def test_clients_get_through_a_minute_of_restarts(new_service: Callable[..., Service]) -> None:
    with new_service() as service:
        roll(service, random.randrange(10**6), 6, 10)

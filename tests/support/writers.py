"""Writers that remember acknowledged records, and the check that each record exists exactly once."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.service import Service, ask


@dataclass(frozen=True, slots=True)
class Answer:
    """One answered write. `at` is monotonic time in s."""

    at: float
    topic: str
    status: int
    body: dict[str, Any]


class Writer(threading.Thread):
    """A thread that writes batches of random size to random `topics` until stopped. It reopens a broken connection.

    No record is ever sent twice, so a record found twice was stored twice.
    """

    def __init__(self, service: Service, name: str, topics: Sequence[str], seed: int, durability: str) -> None:
        super().__init__(name=name, daemon=True)
        self.acked: dict[str, dict[int, Any]] = {topic: {} for topic in topics}
        """topic → seq → data"""
        self.answers: list[Answer] = []
        self.broken = 0
        """Requests without an answer."""
        self.failure: BaseException | None = None
        self._service = service
        self._topics = list(topics)
        self._random = random.Random(seed)
        self._durability = durability
        self._sent = 0
        self._stop_requested = threading.Event()

    def run(self) -> None:
        try:
            while not self._stop_requested.is_set():
                connection = self._service.connect(timeout_s=15)
                try:
                    while not self._stop_requested.is_set():
                        self._write(connection)
                except (OSError, http.client.HTTPException):
                    self.broken += 1
                    self._stop_requested.wait(0.005)  # the service may be down: do not spin
                finally:
                    connection.close()
        except BaseException as error:
            self.failure = error

    def _write(self, connection: http.client.HTTPConnection) -> None:
        topic = self._random.choice(self._topics)
        batch = []
        for _ in range(self._random.choice((1, 1, 1, 2, 5, 20))):
            self._sent += 1
            batch.append({"id": f"{self.name}/{self._sent}", "pad": "é" * self._random.randrange(200)})
        body = {"records": [{"data": data} for data in batch], "config": {"durability": self._durability}}
        status, answer = ask(connection, "POST", f"/v0/topics/{topic}", body)
        self.answers.append(Answer(time.monotonic(), topic, status, answer))
        if status in (200, 201):
            self.acked[topic].update(zip(answer["seqs"], batch, strict=True))
        else:
            self._stop_requested.wait(0.005)

    def stop(self) -> None:
        self._stop_requested.set()

    def finish(self) -> None:
        """Stop, wait, and raise the thread's exception if there was one."""
        self.stop()
        self.join(30)
        assert not self.is_alive(), f"{self.name} hangs"
        if self.failure is not None:
            raise self.failure

    @property
    def acks(self) -> int:
        return sum(map(len, self.acked.values()))


def read_all(service: Service, topic: str) -> list[tuple[int, Any]]:
    """Every record of a topic: `(seq, data)`."""
    records: list[tuple[int, Any]] = []
    connection = service.connect()
    try:
        at, caught_up = 0, False
        while not caught_up:
            status, page = ask(connection, "POST", f"/v0/topics/{topic}/diff", {"from_seq": at, "limit": 1000})
            assert status == 200, page
            records += [(record["$seq"], record["data"]) for record in page["records"]]
            assert page["next_from_seq"] > at or page["caught_up"]
            at, caught_up = page["next_from_seq"], page["caught_up"]
    finally:
        connection.close()
    return records


def verify(service: Service, writers: Sequence[Writer]) -> int:
    """As `verify_read`, of a service."""
    return verify_read(lambda topic: read_all(service, topic), writers)


def verify_read(read: Callable[[str], list[tuple[int, Any]]], writers: Sequence[Writer]) -> int:
    """Check that every acked record exists exactly once, under its seq, with its content. Seqs must have no holes, and
    no record may exist twice. Returns the number of acked records."""
    expected: dict[str, dict[int, Any]] = {}
    for writer in writers:
        for topic, records in writer.acked.items():
            known = expected.setdefault(topic, {})
            twice = known.keys() & records.keys()
            assert not twice, f"{topic}: seqs {sorted(twice)[:5]} were given to two writes"
            known.update(records)
    for topic, acked in expected.items():
        if not acked:
            continue
        found = read(topic)
        seqs = [seq for seq, _ in found]
        assert seqs == list(range(1, len(seqs) + 1)), f"{topic}: seqs are not contiguous"
        held = dict(found)
        lost = {seq: data for seq, data in acked.items() if held.get(seq) != data}
        assert not lost, f"{topic}: {len(lost)} acked records lost or changed, the first one {min(lost.items())}"
        ids = Counter(data["id"] for _, data in found)
        assert ids.total() == len(ids), f"{topic}: stored twice: {[i for i, n in ids.items() if n > 1][:5]}"
    return sum(map(len, expected.values()))

"""The load of the demo: writers that use all machines in turn, and a comparison of what was acknowledged with what is
there."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from typing import Any

PER_WRITE = 10
PER_READ = 1000
TIMEOUT_S = 15.0
PATIENCE_S = 120.0
PAUSE_S = 0.05
"""Between two attempts of one write."""


class Difference(Exception):
    """What is there is not what was acknowledged."""


class Machine:
    """A machine, as one client sees it: a connection that is made again after a failure."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the answer; status 0 if there was none."""
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
            raw = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json", "Accept": "application/json"}
            self._connection.request(method, path, raw, headers)
            answer = self._connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            self.close()
            return 0, None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def held(self) -> list[int]:
        """The shards that this machine holds."""
        status, found = self.ask("GET", "/v0/metrics")
        phases = found["topics_shard_phase"] if status == 200 else []
        ready = (each["labels"]["shard"] for each in phases if each["labels"]["phase"] == "ready" and each["value"])
        return sorted(map(int, ready))


class Writer(threading.Thread):
    """Writes to a topic of its own until stopped. Each write goes to the next machine. One that fails is sent again, to
    the machine after that, with the same idempotency key: so it is written once, whatever became of the first."""

    def __init__(self, topic: str, ports: Callable[[], list[int]]) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.acked: list[str] = []
        self.longest_s = 0.0
        """The longest time that a write has taken."""
        self.again = 0
        """Writes that were sent more than once."""
        self.stop = threading.Event()
        self.error: Exception | None = None
        self._ports = ports
        self._machines: dict[int, Machine] = {}

    def run(self) -> None:
        try:
            self._until_done({"durability": "fsync"}, 0, "PUT")
            number = 0
            while not self.stop.is_set():
                number += 1
                records = [f"{self.topic} {number}.{part}" for part in range(PER_WRITE)]
                body = {"records": [{"data": each} for each in records], "idempotency_key": f"{self.topic}-{number}"}
                self._until_done(body, number, "POST")
                self.acked += records
        except Exception as error:
            self.error = error
        finally:
            for machine in self._machines.values():
                machine.close()

    def _until_done(self, body: Any, number: int, method: str) -> None:
        began, attempt = time.monotonic(), 0
        while True:
            ports = self._ports()
            port = ports[(number + attempt) % len(ports)]
            machine = self._machines.setdefault(port, Machine(port))
            status, answer = machine.ask(method, f"/v0/topics/{self.topic}", body)
            taken = time.monotonic() - began
            if status in (200, 201):
                self.longest_s = max(self.longest_s, taken)
                self.again += attempt > 0
                return
            if status not in (0, 503):
                raise Difference(f"a write to {self.topic} was refused: {status} {answer}")
            if taken > PATIENCE_S:
                raise Difference(f"a write to {self.topic} was not done in {PATIENCE_S:.0f} s: {status} {answer}")
            attempt += 1
            time.sleep(PAUSE_S)


def _read(machine: Machine, port: int, topic: str, body: dict[str, int]) -> dict[str, Any]:
    """Read a part of a topic. A shard may be away for a moment, also when nothing is wrong with its machine."""
    began = time.monotonic()
    while True:
        status, answer = machine.ask("POST", f"/v0/topics/{topic}/diff", body)
        if status == 200:
            return answer
        if status not in (0, 503) or time.monotonic() - began > PATIENCE_S:
            raise Difference(f"{topic} could not be read through port {port}: {status} {answer}")
        time.sleep(PAUSE_S)


def compare(port: int, writer: Writer) -> int:
    """Read the writer's topic through a machine. Returns the number of records. Raises `Difference` unless there is
    each acknowledged record, once, in order, and nothing else."""
    machine, found, cursor = Machine(port), list[str](), 0
    try:
        while True:
            answer = _read(machine, port, writer.topic, {"from_seq": cursor, "limit": PER_READ})
            if not answer["records"]:
                break
            found += [record["data"] for record in answer["records"]]
            cursor = answer["next_from_seq"]
    finally:
        machine.close()
    for at, (wanted, got) in enumerate(zip(writer.acked, found, strict=False)):
        if wanted != got:
            raise Difference(f"{writer.topic}: record {at + 1} is {got!r}, acknowledged was {wanted!r}")
    if len(found) != len(writer.acked):
        raise Difference(f"{writer.topic} has {len(found)} records, acknowledged were {len(writer.acked)}")
    return len(found)

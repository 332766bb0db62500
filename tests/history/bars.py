"""Bars: a real service, clients, faults, and the verdict over their history.

    1    no fault
    2    SIGKILL of the gateway, a shard, the supervisor or all of them, every 2 to 10 s
    5    SIGSTOP of the gateway, a shard or the supervisor, and SIGCONT after 0.1 to 60 s

At the end the faults are lifted, the clients stop, the router copies what is left, and every topic is read from its
first seq. The history stays in the directory of the run.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.history.clients import CONFIGS, COPY, QUEUES, ROUTER, TOPICS, Crowd, Mixed, Watcher, Worker
from tests.history.recording import Client, Recording
from tests.support.service import Service, until
from topics_history import format as f
from topics_history.checker import Report, check

BARS = (1, 2, 5)
CHILDREN = ("gateway", "shard-00", "shard-01")
BACK_S = 60.0
ENVIRONMENT = {
    "TOPICS_RESTART_LIMIT": "1000",
    "TOPICS_CHECKPOINT_BYTES": "2000000",
    "TOPICS_SEGMENT_MAX_BYTES": "500000",
    "TOPICS_HANG_TIMEOUT_MS": "3000",
}


@dataclass(slots=True)
class Outcome:
    report: Report
    seconds: float
    slowest_s: float
    """The longest request that was answered with success, beyond the time that it asked to wait."""
    longest_back_s: float
    """From the longest fault, or its end if it was a pause, until the service was ready again."""


class Nemesis:
    """Causes one fault after the other. `scale` shortens pauses between them, and pauses of processes."""

    def __init__(self, service: Service, recording: Recording, bar: int, seed: int, scale: float) -> None:
        self._service = service
        self._recording = recording
        self._bar = bar
        self._rng = random.Random(f"{seed} nemesis")
        self._scale = scale
        self.longest_back_s = 0.0

    def rest(self, stopping: threading.Event) -> None:
        stopping.wait(self._rng.uniform(2, 10) * self._scale)

    def strike(self) -> None:
        """One fault, from before it until the service is ready again."""
        start_ns = time.monotonic_ns()
        if self._bar == 2:
            victim, kind = self._rng.choice((*CHILDREN, "supervisor", "all")), "kill"
            lifted = time.monotonic()
            self._kill(victim)
        else:
            victim, kind = self._rng.choice((*CHILDREN, "supervisor")), "pause"
            self._pause(victim)
            lifted = time.monotonic()
        self._service.wait_ready(BACK_S)
        self.longest_back_s = max(self.longest_back_s, time.monotonic() - lifted)
        self._recording.write(f.Fault, "nemesis", start_ns, "ok", args=f.FaultArgs(kind, victim))

    def _kill(self, victim: str) -> None:
        service = self._service
        if victim in CHILDREN:
            incarnation = service.kill_child(victim)
            until(lambda: service.child(victim)["incarnation"] > incarnation, f"another {victim}", BACK_S)
            return
        if victim == "all":
            service.kill_group()
        else:
            assert service.process is not None
            os.kill(service.process.pid, signal.SIGKILL)
            service.wait_exit()
        service.start()

    def _pause(self, victim: str) -> None:
        service = self._service
        assert service.process is not None
        pid = service.process.pid if victim == "supervisor" else service.child(victim)["pid"]
        with _Stopped(pid):
            time.sleep(min(self._rng.choice((0.1, 1, 5, 60)) * self._scale, 60))


class _Stopped:
    """A process that is stopped, by descriptor: its number may name another one when it is continued."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def __enter__(self) -> None:
        signal.pidfd_send_signal(self._descriptor, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        try:
            signal.pidfd_send_signal(self._descriptor, signal.SIGCONT)
        except ProcessLookupError:
            pass  # the supervisor has replaced it
        os.close(self._descriptor)


def run(directory: Path, bar: int, seconds: float, seed: int, *, clients: int = 8, scale: float = 1.0) -> Outcome:
    """Run a bar, and have its history checked. Raises `AssertionError` if the service does not come back."""
    assert bar in BARS, f"there is no bar {bar}; there are {BARS}"
    path = directory / "history.jsonl"
    recording = Recording(path, TOPICS, [ROUTER])
    began = time.monotonic()
    with Service(directory, **ENVIRONMENT) as service:
        for topic, config in CONFIGS.items():
            assert service.request("PUT", f"/v0/topics/{topic}", config)[0] in (200, 201)
        wanted = {"source": ROUTER.source, "dest": ROUTER.dest}
        assert service.request("PUT", "/v0/routers/p", wanted)[0] in (200, 201)
        nemesis = Nemesis(service, recording, bar, seed, scale)
        kinds: list[type[Crowd]] = [Mixed, Mixed, Worker, Watcher]
        crowd = [kinds[n % 4](service, recording, f"c{n}", seed) for n in range(clients)]
        for each in crowd:
            each.start()
        idle = threading.Event()
        try:
            while time.monotonic() < began + seconds and not any(each.failure for each in crowd):
                nemesis.rest(idle)
                if bar != 1:
                    nemesis.strike()
        finally:
            for each in crowd:
                each.stopping.set()
        for each in crowd:
            each.finish()
        service.wait_ready()
        read_everything(Client(service, recording, "last", seed), recording)
    recording.close()
    report = check(path)
    return Outcome(report, time.monotonic() - began, recording.slowest_ns / 1e9, nemesis.longest_back_s)


def read_everything(client: Client, recording: Recording) -> None:
    """Wait until the router has copied a last record, then read each topic to its end."""
    marker = client.append(ROUTER.source, keyed=True)
    assert marker is not None, "the service does not take a record after the last fault"
    sent = client.read(ROUTER.source, marker.first_seq - 1).records[0][1]
    deadline, position, copied = time.monotonic() + BACK_S, 0, False
    while not copied and time.monotonic() < deadline:
        found = client.read(COPY, position, wait_ms=1000)
        if found is not None:
            position, copied = found.next_from_seq, any(body == sent for _, body in found.records)
    recording.write(f.Settled, client.name, time.monotonic_ns(), "ok")
    for topic in CONFIGS:
        position, ended = 0, False
        while not ended:
            in_queue = topic in QUEUES
            found = client.peek(topic, position + 1) if in_queue else client.read(topic, position, limit=1000)
            assert found is not None, f"{topic} cannot be read in the end"
            position, ended = found.next_from_seq, found.caught_up
    client.close()

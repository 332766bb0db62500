"""A bar: the topics, the clients and the faults of a run. The first one has all features and no fault; others derive
from it."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.history.clients import CONFIGS, COPY, ROUTER, TOPICS, Crowd, Mixed, Watcher, Worker
from tests.history.recording import Client, Recording
from tests.support.service import Service, until
from topics_history import format as f

CHILDREN = ("gateway", "shard-00", "shard-01")
BACK_S = 60.0
LONGEST_PAUSE_S = 60.0


class Violation(AssertionError):
    """The service broke a promise that a history does not show. Any other error of a run says nothing of a promise: it
    may be the machine's, or the bar's own."""

    def __init__(self, promise: str, text: str) -> None:
        super().__init__(f"{promise}: {text}")
        self.promise = promise


def claim(held: bool, promise: str, text: str) -> None:
    """Raise `Violation` if a promise was not held."""
    if not held:
        raise Violation(promise, text)


class Bar:
    configs: ClassVar[dict[str, dict[str, Any]]] = CONFIGS
    topics: ClassVar[dict[str, f.Topic]] = TOPICS
    routers: ClassVar[list[f.Router]] = [ROUTER]
    fault = ""
    """The kind of its faults in a history; empty if it has none."""
    rest_s = (2.0, 10.0)
    """Pauses between faults."""
    not_read: tuple[str, ...] = ()
    """Topics of the history that no read shows to their end."""

    def __init__(self, directory: Path, seed: int, scale: float) -> None:
        """`scale` shortens pauses between faults, and pauses of processes."""
        self.directory = directory
        self.seed = seed
        self.scale = scale
        self.rng = Random(f"{seed} nemesis")
        self.environment: dict[str, str] = {}
        """Added to that of the service."""
        self.enter: Sequence[str] = ()
        """A command before that of the service, as of `Service`."""
        self.counts: Counter[str] = Counter()
        """Of what a run needs enough to prove something, if this bar has such a rule."""

    def service(self, **environment: str) -> Service:
        """The service, before it starts."""
        return Service(self.directory, enter=self.enter, **environment)

    def crowd(self, service: Service, recording: Recording, clients: int) -> list[Crowd]:
        """The clients, before they start."""
        kinds: list[type[Crowd]] = [Mixed, Mixed, Worker, Watcher]
        return [kinds[n % len(kinds)](service, recording, f"c{n}", self.seed) for n in range(clients)]

    def begin(self, service: Service) -> None:
        """Called when the service is ready, before the clients start."""
        for topic, config in self.configs.items():
            assert service.request("PUT", f"/v0/topics/{topic}", config)[0] in (200, 201), topic
        for router in self.routers:
            wanted = {"source": router.source, "dest": router.dest}
            assert service.request("PUT", "/v0/routers/p", wanted)[0] in (200, 201)

    def strike(self, service: Service) -> tuple[str, float]:
        """Cause a fault and lift it. Returns its victim, and when it ended. The caller waits until the service is
        ready."""
        raise NotImplementedError

    def finish(self, client: Client, path: Path) -> None:
        """Called when faults and clients have ended: record reads that show everything."""
        for topic in self.configs:
            there = client.ask("GET", f"/v0/topics/{topic}").status != 404
            claim(there, "Undone", f"{topic} was created, and is not there in the end")
        _await_copies(client)
        client.recording.write(f.Settled, client.name, time.monotonic_ns(), "ok")
        for topic in self.configs:
            read_whole(client, topic, self.topics[topic].type == "queue")

    def judge(self, path: Path) -> None:
        """Check what a history does not say. Raises `Violation`."""

    def happened(self, recording: Recording) -> dict[str, int]:
        """What the bar is about besides its faults, and how often it happened so far. A run in which one of these never
        did shows nothing."""
        return {f"{kind.__name__} with success": recording.done[kind] for kind in f.OfTopic.__subclasses__()}

    def figures(self) -> str:
        """Those of this bar alone."""
        return ""

    def close(self) -> None:
        """Called in the end, also after a failure."""


def read_whole(client: Client, topic: str, queue: bool) -> list[tuple[int, str]]:
    """Read a topic from its first record to its last."""
    records, position, ended = [], 0, False
    while not ended:
        found = client.peek(topic, position + 1) if queue else client.read(topic, position, limit=1000)
        assert found is not None, f"{topic} cannot be read in the end"
        records += found.records
        position, ended = found.next_from_seq, found.caught_up
    return records


def _await_copies(client: Client) -> None:
    """Wait until the router has copied a last record."""
    marker = client.append(ROUTER.source, keyed=True)
    assert marker is not None, "the service does not take a record after the last fault"
    sent = client.read(ROUTER.source, marker.first_seq - 1).records[0][1]
    deadline, position, copied = time.monotonic() + BACK_S, 0, False
    while not copied and time.monotonic() < deadline:
        found = client.read(COPY, position, wait_ms=1000)
        if found is not None:
            position, copied = found.next_from_seq, any(body == sent for _, body in found.records)


class Kills(Bar):
    """SIGKILL of the gateway, a shard, the supervisor or all of them."""

    fault = "kill"

    def strike(self, service: Service) -> tuple[str, float]:
        return kill(service, self.rng)


class Pauses(Bar):
    """SIGSTOP of the gateway, a shard or the supervisor, and SIGCONT after 0.1 to 60 s."""

    fault = "pause"

    def strike(self, service: Service) -> tuple[str, float]:
        return pause(service, self.rng, self.scale)


def await_ready(service: Service) -> None:
    """Wait until the service is ready after a power cut. Raises `Violation` as soon as a shard refuses to start: a cut
    leaves no files that it may refuse."""

    def decided() -> bool:
        assert service.process is not None
        children = service.status().get("children", {}).values()
        held = any(child["state"] == "held" for child in children) or service.process.poll() is not None
        return held or service.is_ready()

    until(decided, "readiness, or a shard that refuses to start", BACK_S)
    refused = [line for line in service.log_text().splitlines() if "child_held" in line]
    claim(not refused, "Refused", "; ".join(refused))
    service.wait_ready(BACK_S)


def kill(service: Service, rng: Random) -> tuple[str, float]:
    victim, lifted = rng.choice((*CHILDREN, "supervisor", "all")), time.monotonic()
    if victim in CHILDREN:
        incarnation = service.kill_child(victim)
        until(lambda: service.child(victim)["incarnation"] > incarnation, f"another {victim}", BACK_S)
        return victim, lifted
    if victim == "all":
        service.kill_group()
    else:
        assert service.process is not None
        os.kill(service.process.pid, signal.SIGKILL)
        service.wait_exit()
    service.start()
    return victim, lifted


def pause(service: Service, rng: Random, scale: float) -> tuple[str, float]:
    victim = rng.choice((*CHILDREN, "supervisor"))
    assert service.process is not None
    pid = service.process.pid if victim == "supervisor" else service.child(victim)["pid"]
    with Stopped(pid):
        time.sleep(min(rng.choice((0.1, 1, 5, 60)) * scale, LONGEST_PAUSE_S))
    return victim, time.monotonic()


class Stopped:
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

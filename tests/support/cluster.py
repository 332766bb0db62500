"""Machines with one bucket that hear each other, each in a network namespace of its own. To their clients, which are in
the namespace `clients`, they are one service with an address for each of its `members`.
"""

from __future__ import annotations

import http.client
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.bucket import S3Server
from tests.support.network import STORE, Network, network
from tests.support.service import Service, until

SHARDS = 3
PORT, HEARS = 4000, 4100
PATIENCE_S = 120.0
"""Test machines are slow."""


def changes(terms: Mapping[int, str], given: Mapping[int, str]) -> Counter[str]:
    """How often a shard got another holder, by moves and by takeovers. `terms` has the machine that had each term, by
    its number, and `given` the one that it was to be given to."""
    found: Counter[str] = Counter()
    for (term, before), (_, after) in pairwise(sorted(terms.items())):
        if before != after:
            found["moves" if given.get(term) == after else "takeovers"] += 1
    return found


def _seen(machine: Service) -> tuple[list[int], Any]:
    """The shards that a machine holds, and what it answers to the readiness probe."""
    try:
        answer: Any = machine.request("GET", "/v0/ready", timeout_s=2)
    except (OSError, http.client.HTTPException) as error:
        answer = error
    return sorted(machine.held()), answer


class Cluster(Service):
    """Faults are caused at `machines`, by name, and at `net`. A start is that of all but `spare`, and so is the end.
    Raises `NetworkError` at the start."""

    net: Network
    store: S3Server

    def __init__(
        self, directory: Path, names: Sequence[str], spare: Sequence[str], ttl_ms: int, **environment: str
    ) -> None:
        """`ttl_ms` is the time to live of a term."""
        super().__init__(directory, shards=SHARDS, port=PORT)
        self.ttl_s = ttl_ms / 1000
        self.machines: dict[str, Service] = {}
        self.members: tuple[Service, ...] = ()
        """Machines that are part of the service, whether they run or not."""
        self._stack = ExitStack()
        self._names, self._spare = tuple(names), tuple(spare)
        self._settings = environment | {"TOPICS_TERM_TTL_MS": str(ttl_ms)}

    # -- as a service

    def start(self, *, wait: bool = True) -> Cluster:
        assert wait
        try:
            self.net = self._stack.enter_context(network(*self._names, *self._spare))
            with self.net.inside("bucket"):
                self.store = self._stack.enter_context(S3Server(host=f"{STORE}.1"))
            self._stack.enter_context(self.net.inside("clients"))
            self.machines = {name: self._made(name) for name in self.net.names}
            for name in self._names:
                self.join(name)
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def _made(self, name: str) -> Service:
        address = self.net.address(name)
        settings = {
            "TOPICS_HOST": "0.0.0.0",
            "TOPICS_ALLOW_INSECURE_NO_AUTH": "true",
            "TOPICS_BUCKET": self.store.url,
            "TOPICS_REPLICATION": "sync",
            "TOPICS_ADVERTISE": f"http://{address}:{PORT}",
            "TOPICS_CLUSTER_LISTEN": f"{address}:{HEARS}",
        }
        settings |= self.store.environment | self._settings
        (self.directory / name).mkdir()
        enter = self.net.spaces[name].enter
        made = Service(self.directory / name, shards=SHARDS, port=PORT, enter=enter, host=address, **settings)
        self._stack.callback(made.close)
        return made

    def close(self) -> None:
        self._stack.close()
        super().close()

    def request(self, method: str, path: str, body: Any = None, *, timeout_s: float = 10) -> tuple[int, Any]:
        """Repeat a request until a machine answers it."""
        found: list[tuple[int, Any]] = []

        def answered() -> bool:
            for each in self.members:
                try:
                    found.append(each.request(method, path, body, timeout_s=timeout_s))
                except (OSError, http.client.HTTPException, json.JSONDecodeError):
                    continue
                if found[-1][0] not in (429, 503):
                    return True
            return False

        try:
            until(answered, f"an answer to {method} {path}", PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; the last one: {found[-1:]}") from None
        return found[-1]

    def wait_ready(self, timeout_s: float = PATIENCE_S) -> None:
        """Return when each member is ready, and each shard has one holder."""
        try:
            until(self._whole, "all machines and a holder of each shard", max(timeout_s, PATIENCE_S))
        except AssertionError as error:
            found = {name: _seen(each) for name, each in self.machines.items() if each in self.members}
            raise AssertionError(f"{error}: {found}{self.log_tail()}") from None

    def _whole(self) -> bool:
        held = [index for each in self.members for index in each.held()]
        return sorted(held) == list(range(SHARDS)) and all(each.is_ready() for each in self.members)

    def log_tail(self, lines: int = 20) -> str:
        return "".join(f"\n=== {name}{each.log_tail(lines)}" for name, each in self.machines.items())

    # -- members

    def join(self, name: str) -> None:
        """Start a machine with an empty directory."""
        machine = self.machines[name]
        shutil.rmtree(machine.data_dir, ignore_errors=True)
        machine.start(wait=False)
        self.members = (*self.members, machine)

    def left(self, name: str) -> None:
        """Count a machine no longer as a member."""
        self.members = tuple(each for each in self.members if each is not self.machines[name])

    # -- looking at it

    def changes(self) -> Counter[str]:
        """As the function `changes`, of all shards."""
        with self.net.inside("bucket"):
            moves = [json.loads(data) for data in self.store.objects("topics/moves/").values()]
            shards = [self.store.objects(f"topics/shard-{index:02d}/terms/") for index in range(SHARDS)]
        found: Counter[str] = Counter()
        for index, terms in enumerate(shards):
            given = {each["term"]: each["target"] for each in moves if each["shard"] == index}
            held = [json.loads(data) for data in terms.values()]
            found += changes({each["term"]: each["member"] for each in held}, given)
        return found

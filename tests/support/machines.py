"""Machines with one bucket behind a balancer. To their clients they are one service, with the address of the balancer.

Each machine has a way of its own to the bucket, which is a bad one (`tests.support.bad_bucket`).
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from tests.support.bad_bucket import BadBucket
from tests.support.balancer import Balancer
from tests.support.bucket import S3Server
from tests.support.programs import free_port
from tests.support.service import Service, until

PATIENCE_S = 240.0
"""Test machines are slow."""
SHARDS = 2


class Machines(Service):
    """`machines` by name. Faults are caused there; a start is that of all, and so is the end."""

    def __init__(
        self, directory: Path, names: Sequence[str], rng: Random, share: float, ttl_ms: int, **environment: str
    ) -> None:
        """`share` of the requests to the bucket meet a fault; `ttl_ms` is the time to live of a term."""
        super().__init__(directory, shards=SHARDS)
        self.ttl_s = ttl_ms / 1000
        self.store = S3Server()
        self._stack = ExitStack()
        self.ways: dict[str, BadBucket] = {}
        self.machines: dict[str, Service] = {}
        for name in names:
            (directory / name).mkdir()
            port = free_port()
            way = BadBucket("127.0.0.1", self.store.port, rng, share, 2 * self.ttl_s)
            self._stack.callback(way.close)
            settings = {
                "TOPICS_BUCKET": self.store.url,
                "TOPICS_REPLICATION": "sync",
                "TOPICS_TERM_TTL_MS": str(ttl_ms),
                "TOPICS_ADVERTISE": f"http://127.0.0.1:{port}",
            }
            settings |= self.store.environment | {"AWS_ENDPOINT_URL": way.endpoint}
            self.ways[name] = way
            self.machines[name] = Service(directory / name, shards=SHARDS, port=port, **{**settings, **environment})
            self._stack.callback(self.machines[name].close)
        self._balancer: Balancer | None = None

    # -- as a service

    def start(self, *, wait: bool = True) -> Machines:
        assert wait
        try:
            self._stack.enter_context(self.store)
            for each in self.machines.values():
                each.start(wait=False)
            self.wait_ready()
            self._balancer = self._stack.enter_context(Balancer(list(self.machines.values())))
        except BaseException:
            self.close()
            raise
        self.port = self._balancer.port
        return self

    def close(self) -> None:
        self._stack.close()
        super().close()

    def request(self, method: str, path: str, body: Any = None, *, timeout_s: float = 10) -> tuple[int, Any]:
        """Repeat a request until a machine answers it."""
        assert self._balancer is not None
        return self._balancer.request(method, path, body)

    def wait_ready(self, timeout_s: float = PATIENCE_S) -> None:
        """Return when one machine holds the shards and all others stand by."""
        try:
            until(self._whole, "a holder and a standby", max(timeout_s, PATIENCE_S))
        except AssertionError as error:
            raise AssertionError(f"{error}{self.log_tail()}") from None

    def log_tail(self, lines: int = 40) -> str:
        return "".join(f"\n=== {name}{each.log_tail(lines)}" for name, each in self.machines.items())

    # -- looking at it

    def holder(self) -> str:
        """The machine that is ready; empty if none is."""
        return next((name for name, each in self.machines.items() if each.process and each.is_ready()), "")

    def name_of(self, address: str) -> str:
        return next(name for name, each in self.machines.items() if address == each.environment["TOPICS_ADVERTISE"])

    def terms(self, shard: int) -> list[str]:
        """The machines that held a shard, or wanted to, in the order of its terms."""
        found = self.store.objects(f"topics/shard-{shard:02d}/terms/")
        return [self.name_of(json.loads(data)["address"]) for data in found.values()]

    def _whole(self) -> bool:
        holder = self.holder()
        return holder != "" and all(self._stands_by(name) for name in self.machines if name != holder)

    def _stands_by(self, name: str) -> bool:
        try:
            status, answer = self.machines[name].request("GET", "/v0/ready", timeout_s=2)
        except (OSError, http.client.HTTPException):
            return False
        return bool(status == 503 and answer["error"].get("detail", {}).get("standby"))

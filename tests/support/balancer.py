"""A load balancer for tests: one port for the service that is ready, as a proxy with a health check has."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from tests.support.relay import Relay
from tests.support.service import Service, ask, until

CHECK_S = 0.05


class Balancer(Relay):
    """Passes connections on to the first of `services` that is ready, and ends them when it no longer is. A context
    manager."""

    def __init__(self, services: Sequence[Service]) -> None:
        super().__init__()
        self._services = services
        self.url = f"http://{self.host}:{self.port}"
        self._ready: set[Service] = set()
        self._target: Service | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()

    def __enter__(self) -> Balancer:
        for each in self._services:  # one that hangs does not delay the checks of others
            threading.Thread(target=self._check, args=(each,), daemon=True).start()
        self.start()
        until(lambda: self._target, "a service that is ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self.close()
        self.end_all()

    def target(self) -> Service | None:
        return self._target

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Repeat a request until it is answered with neither 429, 502 nor 503."""
        found: list[tuple[int, Any]] = []

        def answered() -> bool:
            with contextlib.closing(http.client.HTTPConnection(self.host, self.port, timeout=3)) as connection:
                try:
                    found.append(ask(connection, method, path, body))
                except (OSError, http.client.HTTPException, json.JSONDecodeError):
                    return False
            return found[-1][0] not in (429, 502, 503)

        until(answered, f"an answer to {method} {path}: {found[-1:]}", 60)
        return found[-1]

    def _check(self, service: Service) -> None:
        while not self._over.wait(CHECK_S):
            note = self._ready.add if service.is_ready() else self._ready.discard
            with self._lock:
                note(service)
                target = next((each for each in self._services if each in self._ready), None)
                if target is not self._target:
                    self._target = target
                    self.end_all()

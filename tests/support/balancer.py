"""A load balancer for tests: one port for the service that is ready, as a proxy with a health check has."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from tests.support.service import Service, ask, until

CHECK_S = 0.05


class Balancer:
    """Passes connections on to the first of `services` that is ready, and ends them when it no longer is. A context
    manager."""

    host = "127.0.0.1"

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = services
        self._listener = socket.create_server((self.host, 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://{self.host}:{self.port}"
        self._target: Service | None = None
        self._open: set[socket.socket] = set()
        self._over = threading.Event()

    def __enter__(self) -> Balancer:
        for each in (self._check, self._accept):
            threading.Thread(target=each, daemon=True).start()
        until(lambda: self._target, "a service that is ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._listener.close()
        self._end_all()

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

    def _check(self) -> None:
        while not self._over.wait(CHECK_S):
            target = next((each for each in self._services if each.is_ready()), None)
            if target is not self._target:
                self._target = target
                self._end_all()

    def _end_all(self) -> None:
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        target = self._target
        with client:
            if target is None:
                return
            try:
                server = socket.create_connection((target.host, target.port), timeout=2)
            except OSError:
                return
            with server:
                server.settimeout(None)
                ends = {client, server}
                self._open |= ends
                back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                back.start()
                _copy(client, server)
                back.join()
                self._open -= ends


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Pass bytes on until one side ends; then both do."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)

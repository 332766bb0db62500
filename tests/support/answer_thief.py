"""A proxy that loses answers: it passes a request on, waits until the service has answered, and breaks the connection.

    lost      nothing of the answer arrives
    torn      the beginning of it arrives
    cut       the request does not arrive whole

The client can tell none of them from a request that was not done.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from random import Random

from tests.support.service import Service

PIECE = 1 << 16


class AnswerThief:
    """One port in front of a service. A context manager. `share` of the pieces that pass end a connection."""

    def __init__(self, service: Service, rng: Random, share: float) -> None:
        self._service = service
        self._rng = rng
        self._share = share
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.counts = {"lost": 0, "torn": 0, "cut": 0}

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        with client:
            try:
                server = socket.create_connection((self._service.host, self._service.port), timeout=2)
            except OSError:
                return
            with server:
                server.settimeout(None)
                back = threading.Thread(target=self._copy, args=(server, client, ("lost", "torn")), daemon=True)
                back.start()
                self._copy(client, server, ("cut",))
                back.join()

    def _copy(self, source: socket.socket, sink: socket.socket, faults: tuple[str, ...]) -> None:
        """Pass bytes on until one side ends, or a fault ends both."""
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                if self._rng.random() < self._share:
                    fault = self._rng.choice(faults)
                    self.counts[fault] += 1
                    if fault != "lost":
                        sink.sendall(data[: self._rng.randrange(len(data))])
                    break
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

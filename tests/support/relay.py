"""A TCP proxy for tests: one port, from which bytes go to a service and back."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.support.service import Service

PIECE = 1 << 16


class Relay:
    """A thread accepts connections; two more pass the bytes of each. `target` says where a new connection goes, and
    `passed` what becomes of a piece."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self._listener = socket.create_server((self.host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more."""
        self._listener.close()

    def end_all(self) -> None:
        """End all connections."""
        for each in list(self._open):
            _end(each)

    def target(self) -> Service | None:
        """None: a new connection is closed."""
        raise NotImplementedError

    def passed(self, data: bytes, sink: socket.socket, *, back: bool) -> bool:
        """Send a piece on; `back`: it is of the service. False ends the connection."""
        sink.sendall(data)
        return True

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        target = self.target()
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
                back = threading.Thread(target=self._copy, args=(server, client), kwargs={"back": True}, daemon=True)
                back.start()
                self._copy(client, server, back=False)
                back.join()
                self._open -= ends

    def _copy(self, source: socket.socket, sink: socket.socket, *, back: bool) -> None:
        """Pass bytes on until one side ends; then both do."""
        with contextlib.suppress(OSError):
            while (data := source.recv(PIECE)) and self.passed(data, sink, back=back):
                pass
        for each in (source, sink):
            _end(each)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)

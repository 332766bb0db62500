"""A browser's EventSource resumes by itself after every kind of broken connection. Headless Chromium."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.browser import FLAGS, PATIENCE_S
from tests.support.events import watch, write
from tests.support.programs import running, tool
from tests.support.service import Service, until

PAGE = """<!doctype html><title>watch</title><script>
let count = 0
function tell(kind, id, data) {
    fetch("/seen", {method: "POST", body: JSON.stringify({n: count++, kind, id, data})})
}
const source = new EventSource(location.hash.slice(1))
source.onopen = () => tell("open", "", null)
source.onerror = () => tell("error", "", source.readyState)
for (const kind of ["record", "tombstone", "caught-up", "topic-deleted"])
    source.addEventListener(kind, event => tell(kind, event.lastEventId, JSON.parse(event.data)))
</script>"""


class Front:
    """One origin for the browser: the page, what the page reports, and the service behind everything else."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: dict[socket.socket, socket.socket] = {}
        """Connections of the browser, and the service's connection behind each."""
        self._threads: list[threading.Thread] = []
        self._told: list[dict[str, Any]] = []
        self._start(self._accept)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def cut(self) -> None:
        """Break every connection to the service with a reset."""
        for client, service in tuple(self._open.items()):
            _reset(client)
            service.shutdown(socket.SHUT_RDWR)

    @property
    def told(self) -> list[dict[str, Any]]:
        """The reports of the page, in their order."""
        return sorted(self._told, key=lambda each: each["n"])

    def _start(self, what: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=what, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        raw = b""
        while b"\r\n\r\n" not in raw:
            data = client.recv(65536)
            if not data:
                client.close()
                return
            raw += data
        head, _, body = raw.partition(b"\r\n\r\n")
        if head.startswith(b"GET /page"):
            self._answer(client, b"text/html", PAGE.encode())
        elif head.startswith(b"POST /seen"):
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            while len(body) < length:
                body += client.recv(65536)
            self._told.append(json.loads(body))
            self._answer(client, b"text/plain", b"")
        elif head.startswith(b"GET /v0/"):
            self._pass_on(client, raw)
        else:
            self._answer(client, b"text/plain", b"")

    def _answer(self, client: socket.socket, kind: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        client.sendall(head % (kind, len(body)) + body)
        client.close()

    def _pass_on(self, client: socket.socket, raw: bytes) -> None:
        with client:
            try:
                service = socket.create_connection(("127.0.0.1", self._service.port), 5)
            except OSError:
                _reset(client)  # as if no process listened
                return
            with service:
                self._open[client] = service
                try:
                    service.settimeout(None)
                    service.sendall(raw)
                    while data := service.recv(65536):
                        client.sendall(data)
                except OSError:
                    pass
                self._open.pop(client, None)


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@contextmanager
def browsing(service: Service, path: str, profile: Path) -> Iterator[Front]:
    front = Front(service)
    url = f"http://127.0.0.1:{front.port}/page#{path}"
    with running([tool("chromium", "chromium-browser"), *FLAGS, f"--user-data-dir={profile}", url]):
        try:
            yield front
        finally:
            front.close()


def seqs(told: list[dict[str, Any]]) -> list[int]:
    return [record["$seq"] for each in told if each["kind"] == "record" for record in each["data"]["records"]]


def check_order(told: list[dict[str, Any]]) -> None:
    """Check that seqs are consecutive; they may go back only where a new connection was opened."""
    last, opened = 0, False
    for each in told:
        assert each["kind"] not in ("tombstone", "topic-deleted"), each
        if each["kind"] == "open":
            opened = True
        for record in each["data"]["records"] if each["kind"] == "record" else ():
            seq = record["$seq"]
            assert seq == last + 1 or (opened and seq <= last), f"{seq} after {last}: {told}"
            last, opened = seq, False


def is_live(told: list[dict[str, Any]]) -> bool:
    """Whether the page has caught up since it opened its last connection. Records that were written later follow."""
    kinds = [each["kind"] for each in told]
    return "caught-up" in kinds and kinds[::-1].index("caught-up") < kinds[::-1].index("open")


def test_an_event_source_goes_on_where_it_was(new_service: Callable[..., Service], tmp_path: Path) -> None:
    with new_service() as service:
        write(service, "a", *range(5))
        with browsing(service, f"/v0/watch/{watch(service, topics={'a': {}})}", tmp_path / "profile") as front:

            def see(seq: int) -> None:
                until(lambda: seq in seqs(front.told), f"seq {seq}; the page told {front.told}", PATIENCE_S)

            see(5)
            front.cut()
            write(service, "a", *range(5, 10))
            see(10)
            service.kill_child("gateway")
            until(service.is_ready, "the gateway's successor")
            write(service, "a", *range(10, 15))
            see(15)
            service.restart()
            write(service, "a", *range(15, 20))
            see(20)
            until(lambda: is_live(front.told), f"the page to be live again; it told {front.told}")
            check_order(front.told)
            assert set(seqs(front.told)) == set(range(1, 21))
            assert [each["kind"] for each in front.told].count("open") >= 4

"""An event stream passes a buffering proxy, because its head forbids buffering. nginx with its defaults."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.events import Watch, watch, write
from tests.support.programs import free_port, run, running, tool
from tests.support.service import Service, until


@contextmanager
def nginx(directory: Path, upstream: int, extra: str = "") -> Iterator[int]:
    """Start nginx; return its port. Only its listener, its upstream and the places of its files are set."""
    port = free_port()
    temporary = "".join(f"{n}_temp_path {directory}/{n};" for n in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    path = directory / "nginx.conf"
    user = "user root;" if os.getuid() == 0 else ""
    server = f"listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{upstream}; {extra} }}"
    path.write_text(
        f"daemon off; pid {directory}/pid; error_log {directory}/error.log; {user} events {{}} "
        f"http {{ access_log off; {temporary} server {{ {server} }} }}"
    )
    command = [tool("nginx"), "-e", str(directory / "error.log"), "-c", str(path)]
    run(*command, "-t")
    with running(command):
        yield port


class Behind:
    """The service seen through the proxy."""

    host = "127.0.0.1"

    def __init__(self, service: Service, port: int) -> None:
        self.port = port
        until(lambda: service.is_ready() and self._answers(), "nginx")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def latencies_ms(service: Service, stream: Watch, topic: str, times: int) -> list[float]:
    """Return for each write the time from its ack to its frame."""
    found = []
    for number in range(times):
        seq = write(service, topic, number)["last_seq"]
        acked = time.monotonic()
        stream.wait_seq(topic, seq)
        found.append((time.monotonic() - acked) * 1000)
    return found


def test_frames_arrive_at_once_through_default_buffering(shared: Service, tmp_path: Path) -> None:
    write(shared, "nginx", "before")
    wid = watch(shared, topics={"nginx": {"tail": True}})
    with nginx(tmp_path, shared.port) as port, Watch(Behind(shared, port), wid) as stream:  # type: ignore[arg-type]
        stream.wait_for("caught-up")
        assert sorted(latencies_ms(shared, stream, "nginx", 9))[4] < 100


def test_without_that_header_they_would_not(shared: Service, tmp_path: Path) -> None:
    """A proxy that ignores the header buffers the stream, so the test above would notice its absence."""
    write(shared, "buffered", "before")
    wid = watch(shared, topics={"buffered": {}}, heartbeat_ms=60_000)
    with nginx(tmp_path, shared.port, "proxy_ignore_headers X-Accel-Buffering;") as port:
        Behind(shared, port)
        with socket.create_connection(("127.0.0.1", port), 0.5) as client:
            client.sendall(b"GET /v0/watch/%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % wid.encode())
            came = b""
            try:
                while data := client.recv(65536):
                    came += data
            except TimeoutError:
                pass
            assert b"event: record" not in came

"""Claims about the proxies of deploy/ in front of two machines: all traffic goes to the one that /v0/ready says holds.

The machines are stand-ins that answer the probe as a holder and a standby do, and note what reaches them.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_deploy import DEPLOY, Door, adapted, certificate, run_caddy, run_nginx
from tests.support.programs import free_port, run, running, tool
from tests.support.service import until

__all__ = ["certificate"]


class Machine(ThreadingHTTPServer):
    """Answers /v0/ready by what it `holds`, and everything else with its name."""

    daemon_threads = True

    def __init__(self, name: str, holds: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.name, self.holds = name, holds
        self.got: list[str] = []
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A proxy may hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer leaves in one piece, as the service sends it. Caddy 2.6 may break off what comes after the first piece.
    wbufsize = -1
    server: Machine

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/v0/ready":
            self.server.got.append(f"{self.command} {self.path}")
        holds = self.server.holds
        body = json.dumps({"machine": self.server.name} if holds else {"error": {"code": "not_ready"}}).encode()
        self.send_response(200 if holds else 503)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


def pointed(name: str, one: Machine, two: Machine) -> str:
    """A shipped configuration, with these machines in it."""
    text = (DEPLOY / "proxy" / name).read_text()
    for printed, machine in (("10.0.0.1:4000", one), ("10.0.0.2:4000", two)):
        assert printed in text
        text = text.replace(printed, f"127.0.0.1:{machine.server_port}")
    return text


@contextlib.contextmanager
def nginx(directory: Path, tls: Path, port: int, one: Machine, two: Machine) -> Iterator[None]:
    text = adapted(
        pointed("nginx-two-machines.conf", one, two),
        named=f"10\\.0\\.0\\.2:4000 => 127\\.0\\.0\\.1:{two.server_port}",
        port=f"listen 443 => listen 127.0.0.1:{port}",
        port6=f"listen [::]:443 => listen [::1]:{port}",
        tls=f"/etc/topics/tls => {tls}",
    )
    with run_nginx(directory, text):
        yield


@contextlib.contextmanager
def caddy(directory: Path, tls: Path, port: int, one: Machine, two: Machine) -> Iterator[None]:
    with run_caddy(directory, tls, port, pointed("Caddyfile-two-machines", one, two)):
        yield


@contextlib.contextmanager
def haproxy(directory: Path, tls: Path, port: int, one: Machine, two: Machine) -> Iterator[None]:
    (directory / "both.pem").write_text((tls / "cert.pem").read_text() + (tls / "key.pem").read_text())
    text = adapted(
        pointed("haproxy.cfg", one, two),
        port=f"bind :443 => bind 127.0.0.1:{port}",
        tls=f"/etc/topics/tls => {directory}",
    )
    path = directory / "haproxy.cfg"
    path.write_text(text)
    run(tool("haproxy"), "-c", "-f", str(path))
    with running([tool("haproxy"), "-db", "-f", str(path)]):
        yield


def asked(door: Door, method: str, path: str) -> tuple[int, Any]:
    with door.opened(method, path, {} if method == "POST" else None) as answer:
        return answer.status, json.load(answer)


def at(door: Door, machine: Machine) -> bool:
    try:
        return asked(door, "GET", "/v0/topics") == (200, {"machine": machine.name})
    except (OSError, json.JSONDecodeError):
        return False


@pytest.mark.parametrize("proxy", [nginx, caddy, haproxy], ids=["nginx", "caddy", "haproxy"])
def test_traffic_goes_to_the_machine_that_holds(certificate: Path, tmp_path: Path, proxy: Any) -> None:
    one, two = Machine("one", holds=False), Machine("two", holds=True)
    port = free_port()
    door = Door(port, certificate)
    with proxy(tmp_path, certificate, port, one, two):
        for holder, other in ((two, one), (one, two)):
            other.holds, holder.holds = False, True
            until(lambda holder=holder: at(door, holder), f"the proxy to find machine {holder.name}")
            for machine in (one, two):
                machine.got.clear()
            for number in range(20):
                assert asked(door, "POST", f"/v0/topics/{number}") == (200, {"machine": holder.name})
            assert holder.got == [f"POST /v0/topics/{number}" for number in range(20)], "each once"
            assert other.got == []
        one.holds = two.holds = False

        def refused() -> bool:
            with door.opened("POST", "/v0/topics/x", {}) as answer:
                return answer.status == 503 and answer.headers["Retry-After"] == "1" and "error" in json.load(answer)

        until(refused, "503, and when to retry, while no machine holds")
        for path in ("/v0/watch/w", "/v0/topics/x/work?node=n"):
            with door.opened("GET", path) as answer:
                assert (answer.status, answer.read()) == (200, b"retry: 2000\n\n"), "a browser reconnects after 200"
                assert answer.headers.get_content_type() == "text/event-stream"
        two.shutdown()
        two.server_close()
        one.holds = True
        until(lambda: at(door, one), "the machine that is left")
    one.shutdown()
    one.server_close()

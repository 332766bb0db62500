"""Claims about deploy/: its files work with Prometheus' own checks, and with real proxies over real TLS."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import free_port, run, running, tool
from tests.support.service import Service, until
from tests.support.websocket import UPGRADE

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_prometheus_takes_the_scrape_and_the_alerts_fire_when_they_should() -> None:
    directory = DEPLOY / "prometheus"
    run(tool("promtool"), "check", "config", "prometheus.yml", cwd=directory)
    run(tool("promtool"), "test", "rules", "topics.rules.test.yml", cwd=directory)


def panels() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "topics.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def rules() -> list[str]:
    return re.findall(r"expr: (.*)", (DEPLOY / "prometheus" / "topics.rules.yml").read_text())


def queries() -> list[str]:
    return panels() + rules()


@pytest.mark.parametrize(
    "metric",
    [
        "topics_topic_queue_dead_lettered_total",
        "topics_letters_waiting",
        "topics_topic_queue_oldest_waiting_ms",
        "topics_cursor_lag",
        "topics_replica_lag_seconds",
        "topics_replica_term",
        "topics_replica_damaged",
        "topics_files_set_apart",
        "topics_records_missing",
        "topics_member",
    ],
)
@pytest.mark.parametrize("where", [panels, rules])
def test_what_needs_somebody_is_shown_and_watched(where: Callable[[], list[str]], metric: str) -> None:
    assert any(metric in query for query in where())


def test_dashboard_and_alerts_name_only_metrics_that_exist(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    machines = {"TOPICS_REPLICATION": "sync", "TOPICS_CLUSTER_LISTEN": "127.0.0.1:0"}
    with Service(tmp_path, TOPICS_GATEWAYS="2", TOPICS_BUCKET=(tmp_path / "bucket").as_uri(), **machines) as running:
        running.request("POST", "/v0/topics/seen", {"records": [{"data": 1}]})
        with contextlib.closing(running.connect()) as connection:
            connection.request("GET", "/v0/metrics")
            text = connection.getresponse().read().decode()
    there = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    there |= {f"{name}_{part}" for name in there for part in ("bucket", "sum", "count")}
    named = {name for query in queries() for name in re.findall(r"\btopics_\w+", query)}
    assert len(named) > 15
    assert named - there == set()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("tls")
    name = ["-subj", "/CN=topics.example.com", "-addext", "subjectAltName=DNS:topics.example.com"]
    files = ["-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem")]
    run(tool("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *name, *files)
    return directory


def adapted(text: str, **changes: str) -> str:
    for _, change in changes.items():
        old, new = change.split(" => ")
        assert old in text
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def nginx(directory: Path, tls: Path, port: int, upstream: int) -> Iterator[None]:
    text = adapted(
        (DEPLOY / "proxy" / "nginx.conf").read_text(),
        port=f"listen 443 => listen 127.0.0.1:{port}",
        port6=f"listen [::]:443 => listen [::1]:{port}",
        tls=f"/etc/topics/tls => {tls}",
        upstream=f"127.0.0.1:4000 => 127.0.0.1:{upstream}",
    )
    with run_nginx(directory, text):
        yield


@contextlib.contextmanager
def run_nginx(directory: Path, text: str) -> Iterator[None]:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        text = re.sub(r".*\[::1\].*\n", "", text)
    temporary = "".join(
        f"{each}_temp_path {directory}/{each};" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (directory / "nginx.conf").write_text(
        f"daemon off; pid {directory}/pid; error_log {directory}/error.log; worker_processes 1;"
        f"{'user root;' if os.getuid() == 0 else ''} events {{}} http {{ access_log off; {temporary}\n{text}\n}}"
    )
    command = [tool("nginx"), "-e", str(directory / "error.log"), "-c", str(directory / "nginx.conf")]
    run(*command, "-t")
    with running(command):
        yield


@contextlib.contextmanager
def caddy(directory: Path, tls: Path, port: int, upstream: int, patience: str = "300ms") -> Iterator[None]:
    text = adapted(
        (DEPLOY / "proxy" / "Caddyfile").read_text(),
        upstream=f"127.0.0.1:4000 => 127.0.0.1:{upstream}",
    )
    with run_caddy(directory, tls, port, text, patience):
        yield


@contextlib.contextmanager
def run_caddy(directory: Path, tls: Path, port: int, text: str, patience: str = "300ms") -> Iterator[None]:
    text = adapted(
        text,
        stop="grace_period 10s => grace_period 1s\n\tadmin off\n\tauto_https disable_redirects",
        site=f"topics.example.com {{ => topics.example.com:{port} {{",
        tls=f"/etc/topics/tls => {tls}",
        patience=f"lb_try_duration 10s => lb_try_duration {patience}",
    )
    path = directory / "Caddyfile"
    path.write_text(text)
    home = {**os.environ, "HOME": str(directory), "XDG_DATA_HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}
    arguments = ["--config", str(path), "--adapter", "caddyfile"]
    run(tool("caddy"), "validate", *arguments, env=home)
    with running([tool("caddy"), "run", *arguments], env=home):
        yield


class Door:
    """HTTPS to a proxy, with its certificate checked."""

    def __init__(self, port: int, tls: Path) -> None:
        self.port = port
        self._context = ssl.create_default_context(cafile=str(tls / "cert.pem"))

    def socket(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        return self._context.wrap_socket(plain, server_hostname="topics.example.com")

    @contextlib.contextmanager
    def opened(self, method: str, path: str, body: Any = None) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("topics.example.com", timeout=10)
        with contextlib.closing(connection), self.socket() as connection.sock:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            with connection.getresponse() as response:
                yield response

    def request(self, method: str, path: str, body: Any = None) -> Any:
        with self.opened(method, path, body) as response:
            content = json.load(response)
            assert response.status in (200, 201), content
            return content

    def reachable(self) -> bool:
        try:
            self.socket().close()
        except OSError:
            return False
        return True

    def answers(self) -> bool:
        try:
            with self.opened("GET", "/v0/ready") as response:
                return response.status == 200
        except OSError:
            return False


@pytest.mark.parametrize("proxy", [nginx, caddy], ids=["nginx", "caddy"])
def test_requests_streams_and_sockets_pass_a_proxy_over_tls(
    shared: Service, certificate: Path, tmp_path: Path, proxy: Any
) -> None:
    port, topic = free_port(), f"over-{proxy.__name__}"
    with proxy(tmp_path, certificate, port, shared.port):
        door = Door(port, certificate)
        until(door.answers, "the proxy to answer")
        assert door.request("POST", f"/v0/topics/{topic}", {"records": [{"data": "first"}]})["first_seq"] == 1
        large = {"records": [{"data": "x" * 1_000_000}] * 9}
        assert door.request("POST", f"/v0/topics/{topic}", large)["last_seq"] == 10

        wid = door.request("POST", "/v0/watch", {"topics": {topic: {}}})["wid"]
        with door.opened("GET", f"/v0/watch/{wid}") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            # Written while the stream is open: the frame must arrive at once, not when a buffer is full.
            door.request("POST", f"/v0/topics/{topic}", {"records": [{"data": "while it is open"}]})
            while b"while it is open" not in (line := stream.readline()):
                assert line, "the stream ended"

        with door.socket() as raw:
            head = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
            raw.sendall(f"GET /v0/ws HTTP/1.1\r\nHost: topics.example.com\r\n{head}\r\n".encode())
            assert raw.recv(4096).startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize("proxy", [nginx, caddy], ids=["nginx", "caddy"])
def test_a_proxy_passes_the_host_with_its_port(certificate: Path, tmp_path: Path, proxy: Any) -> None:
    """A browser's `Origin` names the port, so a `Host` without it would make every WebSocket a foreign one."""
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        upstream.settimeout(20)
        with proxy(tmp_path, certificate, port, upstream.getsockname()[1]):
            door = Door(port, certificate)
            until(door.reachable, "the proxy to answer")
            with door.socket() as raw:
                raw.sendall(f"GET /v0/ws HTTP/1.1\r\nHost: topics.example.com:{port}\r\n\r\n".encode())
                passed, _ = upstream.accept()
                with passed:
                    passed.settimeout(20)
                    head = b""
                    while b"\r\n\r\n" not in head and (data := passed.recv(4096)):
                        head += data
    hosts = [line for line in head.decode().lower().split("\r\n") if line.startswith("host:")]
    assert hosts == [f"host: topics.example.com:{port}"]


@pytest.mark.parametrize("proxy", [nginx, caddy], ids=["nginx", "caddy"])
def test_behind_a_proxy_a_stopped_service_is_one_to_come_back_to(certificate: Path, tmp_path: Path, proxy: Any) -> None:
    """No service listens behind the proxy. Clients get a status; EventSources, which end at any but 200, a stream."""
    port = free_port()
    with proxy(tmp_path, certificate, port, free_port()):
        door = Door(port, certificate)
        until(door.reachable, "the proxy to answer")
        asked = [door.opened("POST", "/v0/topics/a", {"records": [{"data": 1}]}), door.opened("GET", "/v0/topics/a")]
        streams = [door.opened("GET", path) for path in ("/v0/watch/w", "/v0/topics/q/work?node=n")]
        for each in asked:
            with each as answer:
                assert (answer.status, answer.headers["retry-after"]) == (503, "1")
                assert answer.headers["content-type"] == "application/json"
                assert json.load(answer)["error"]["code"] == "not_ready"
        for each in streams:
            with each as answer:
                assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
                assert answer.read() == b"retry: 2000\n\n"

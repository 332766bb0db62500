"""Claims about keys in the real service: they leak nowhere, SIGHUP reloads them, and unclear ones prevent the start."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import Service, until

NewService = Callable[..., Service]
MARK = f"s3cr3t{os.urandom(6).hex()}"
"""In each secret of these services. It is new in each run: another run on this machine has secrets of its own."""
SECRETS = [f"{MARK}-full-6f1d", f"{MARK}-read-77aa", f"{MARK}-tenant-c0de"]
ENTRIES = [SECRETS[0], f"{SECRETS[1]}:read", f"{SECRETS[2]}:rw:tenant:|shared."]
WRONG = f"{MARK}-unknown-dead"
RECORD = {"records": [{"data": 1}]}


def ask(
    service: Service, method: str, path: str, secret: str | None = None, body: Any = None, **headers: str
) -> tuple[int, bytes]:
    connection = service.connect()
    try:
        if secret is not None:
            headers["Authorization"] = f"Bearer {secret}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def raw(service: Service, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", service.port), 5) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(65536), b""))


def answers(service: Service) -> Iterator[bytes]:
    """Return the service's responses to valid, invalid and malformed requests that carry secrets."""
    for secret in (*SECRETS, WRONG):
        for method, path, body in (
            ("GET", "/v0/topics", None),
            ("GET", "/v0/topics/tenant:a", None),
            ("GET", "/v0/topics/other", None),
            ("POST", "/v0/topics/tenant:a", RECORD),
            ("POST", "/v0/topics/tenant:b", {"records": []}),
            ("POST", "/v0/topics/tenant:new", {**RECORD, "config": {"dead_letter": "others"}}),
            ("PUT", "/v0/topics/tenant:a", {"dead_letter": "others"}),
            ("DELETE", "/v0/topics/tenant:a", None),
            ("PATCH", "/v0/topics/tenant:a", None),
            ("GET", "/v0/metrics", None),
            ("GET", "/v0/openapi.json", None),
            ("GET", "/v0/asyncapi.json", None),
            ("GET", "/v0/nothing", None),
            ("GET", "/", None),
        ):
            yield ask(service, method, path, secret, body)[1]
        yield ask(service, "GET", "/v0/metrics", secret, Accept="application/json")[1]
        yield raw(
            service, b"GET /v0/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n\r\n" % secret.encode()
        )
        yield raw(service, b"GET /v0/topics HTTP/1.1\r\nAuthorization: Bearer %b\r\n\r\n" % secret.encode())
        yield raw(
            service, b"GET /v0/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\n\r\n" % secret.encode()
        )
        yield raw(
            service, b"GET /v0/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic %b\r\n" % secret.encode()
        )
        for pages in (b"/", b"/v0/topics"):
            yield raw(
                service,
                b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nAuthorization: Bearer %b\r\n\r\n"
                % (pages, secret.encode()),
            )


def places(service: Service) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of every place in processes and files where a secret could be read."""
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue  # the test's own process holds the secrets
        for name in ("environ", "cmdline", "comm"):
            try:
                yield f"{process}/{name}", (process / name).read_bytes()
            except OSError:
                pass
    for directory in (service.runtime_dir, service.directory):
        for path in directory.rglob("*"):
            if path.is_file() and path.name != "keys":
                yield str(path), path.read_bytes()


def writable_memory(pid: int) -> Iterator[bytes]:
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            span, mode, *_ = line.split()
            if not mode.startswith("rw"):
                continue
            start, end = (int(each, 16) for each in span.split("-"))
            try:
                memory.seek(start)
                yield memory.read(end - start)
            except OSError:
                pass


def from_variable(new_service: NewService, _: Path) -> Service:
    return new_service(TOPICS_API_KEYS=",".join(ENTRIES), TOPICS_LOG_LEVEL="debug")


def from_file(new_service: NewService, directory: Path) -> Service:
    path = directory / "keys"
    path.write_text("\n".join(ENTRIES))
    path.chmod(0o600)
    return new_service(TOPICS_API_KEYS_FILE=str(path), TOPICS_LOG_LEVEL="debug")


@pytest.mark.parametrize("source", [from_variable, from_file])
def test_secrets_are_nowhere_to_be_found(source: Any, new_service: NewService, tmp_path: Path) -> None:
    service = source(new_service, tmp_path).start()
    secrets = [secret.encode() for secret in SECRETS]
    # No client has presented a key yet, so even memory must hold none.
    try:
        for pid in service.pids():
            for memory in writable_memory(pid):
                assert not any(secret in memory for secret in secrets), f"process {pid}"
    except PermissionError:
        pass  # this system forbids reading the memory
    said = list(answers(service))
    service.kill_child("gateway")
    until(lambda: service.child("gateway")["incarnation"] == 2, "a new gateway")
    until(service.is_ready, "readiness")
    said += answers(service)
    assert service.process is not None
    service.process.send_signal(signal.SIGHUP)
    until(lambda: "reload" in service.log_text(), "word of the reload")
    for answer in said:
        assert MARK.encode() not in answer
    seen = list(places(service))
    # A process with secrets hides its environment from all but root, its own user included.
    readable = os.getuid() == 0
    assert any(path.endswith(f"{service.process.pid}/environ") for path, _ in seen) == readable
    for path, content in seen:
        assert MARK.encode() not in content, path
    assert service.stop() == 0
    assert MARK not in service.log_text()
    assert "event=authentication keys=3" in service.log_text() or '"keys": 3' in service.log_text()
    assert "no_authentication" not in service.log_text()


def test_a_file_is_read_again_on_sighup_and_connections_stay(new_service: NewService, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("old\n")
    service = new_service(TOPICS_API_KEYS_FILE=str(path)).start()
    assert service.process is not None
    connection = service.connect()

    def status(secret: str) -> int:
        connection.request("GET", "/v0/topics", headers={"Authorization": f"Bearer {secret}"})
        response = connection.getresponse()
        response.read()
        return response.status

    assert (status("old"), status("new")) == (200, 401)
    kept: socket.socket = connection.sock
    path.write_text("new\nother:read\n")
    service.process.send_signal(signal.SIGHUP)
    until(lambda: status("new") == 200, "the new key to be known")
    assert status("old") == 401
    path.write_text("new:reed\n")
    service.process.send_signal(signal.SIGHUP)
    until(lambda: "keys_not_reloaded" in service.log_text(), "a complaint")
    assert "entry 1 of 1" in service.log_text()
    assert status("new") == 200
    assert connection.sock is kept
    connection.close()
    service.kill_child("gateway")
    until(lambda: service.child("gateway")["incarnation"] == 2, "a new gateway")
    until(service.is_ready, "readiness")
    assert ask(service, "GET", "/v0/topics", "new")[0] == 200
    assert ask(service, "GET", "/v0/topics", "old")[0] == 401


@pytest.mark.parametrize("entry", ["s3cr3t:reed", "s3cr3t:read:*", ":read", "read:s3cr3t"])
def test_an_unclear_entry_stops_the_start_without_being_repeated(entry: str, new_service: NewService) -> None:
    service = new_service(TOPICS_API_KEYS=f"fine,{entry}").start(wait=False)
    assert service.wait_exit() == 2
    assert "TOPICS_API_KEYS: entry 2 of 2" in service.log_text()
    assert "s3cr3t" not in service.log_text()
    assert not service.data_dir.exists()


def test_with_keys_it_may_listen_beyond_loopback(new_service: NewService) -> None:
    service = new_service(TOPICS_HOST="0.0.0.0", TOPICS_API_KEYS="only-me").start()
    assert ask(service, "GET", "/v0/topics")[0] == 401
    assert ask(service, "GET", "/v0/topics", "only-me")[0] == 200
    assert "reachable_from=everywhere" in service.log_text()


def test_the_log_tells_from_where_each_listener_can_be_reached(new_service: NewService) -> None:
    exposed = {"TOPICS_ALLOW_INSECURE_NO_AUTH": "1", "TOPICS_WALRUS_LISTEN": "0.0.0.0:0"}
    (line,) = boot_lines(new_service(**exposed), "no_authentication")
    assert "reachable_from=everywhere" in line, "HTTP is on loopback, but another protocol is not"


def test_protocols_without_keys_tell_from_where_they_can_be_reached(tmp_path: Path) -> None:
    settings = {"TOPICS_ALLOW_INSECURE_NO_AUTH": "1", "TOPICS_API_KEYS": "only-me-and-nobody-else"}
    service = Service(tmp_path, TOPICS_WALRUS_LISTEN="0.0.0.0:0", TOPICS_ROG_LISTEN="127.0.0.1:0", **settings)
    try:
        rog, walrus = sorted(boot_lines(service, "protocol_without_keys"), key=lambda line: "protocol=Walrus" in line)
        assert 'reachable_from="this machine"' in rog
        assert "reachable_from=everywhere" in walrus
        (line,) = [line for line in service.log_text().splitlines() if "event=authentication" in line]
        assert 'reachable_from="this machine"' in line
    finally:
        service.close()


def boot_lines(service: Service, event: str) -> list[str]:
    """The lines of one event that the service writes while it starts."""
    service.start(wait=False)
    until(lambda: "event=starting" in service.log_text(), "the line that ends what is told of listeners")
    return [line for line in service.log_text().splitlines() if f"event={event} " in line]


def test_probes_ask_for_a_key_when_told_so(new_service: NewService) -> None:
    service = new_service(TOPICS_API_KEYS="k:delete", TOPICS_PROBE_AUTH="true").start(wait=False)
    until(service.status, "its status file")
    service.port = int(service.status()["url"].rpartition(":")[2])
    until(lambda: _reachable(service) == 401, "an answer")
    assert ask(service, "GET", "/readyz")[0] == 401
    until(lambda: ask(service, "GET", "/v0/ready", "k")[0] == 200, "readiness")
    assert ask(service, "GET", "/v0/metrics", "k")[0] == 403


def _reachable(service: Service) -> int:
    try:
        return ask(service, "GET", "/v0/health")[0]
    except (OSError, http.client.HTTPException):
        return 0


def test_prefixes_and_scopes_hold_down_to_the_shards(new_service: NewService) -> None:
    service = new_service(TOPICS_API_KEYS=",".join(ENTRIES)).start()
    full, _, tenant = SECRETS
    for name in ("tenant:a", "tenant:b", "shared.x", "other", "tenan", "zzz"):
        assert ask(service, "POST", f"/v0/topics/{name}", full, RECORD)[0] == 201
    found: list[str] = []
    target = "/v0/topics?page_size=2"
    while True:
        page = json.loads(ask(service, "GET", target, tenant)[1])
        found += [entry["topic"] for entry in page["topics"]]
        if "next_cursor" not in page:
            break
        assert len(page["topics"]) == 2
        target = f"/v0/topics?page_size=2&cursor={page['next_cursor']}"
    assert found == ["shared.x", "tenant:a", "tenant:b"]
    shown = ask(service, "GET", "/v0/metrics", tenant)[1]
    assert b'{topic="tenant:a"}' in shown
    assert b'{topic="other"}' not in shown
    assert ask(service, "POST", "/v0/topics/tenant:c", tenant, RECORD)[0] == 201
    status, body = ask(service, "POST", "/v0/topics/tenant:d", tenant, {**RECORD, "config": {"priority": 1}})
    assert (status, json.loads(body)["error"]["code"]) == (403, "forbidden")
    assert ask(service, "GET", "/v0/topics/tenant:d", tenant)[0] == 404


def test_the_total_of_bytes_holds_over_shards_and_over_a_restart(new_service: NewService) -> None:
    service = new_service(TOPICS_MAX_TOTAL_BYTES=str(10 * 17)).start()

    def fill() -> list[int]:
        return [service.request("POST", f"/v0/topics/t{n}", RECORD)[0] for n in range(15)]

    statuses = fill()
    assert statuses.count(201) == 10
    assert statuses.count(429) == 5
    service.restart()
    assert set(fill()) == {429}
    assert service.request("DELETE", "/v0/topics/t0")[1]["deleted"]
    statuses = fill()
    assert sum(status < 300 for status in statuses) == 1


def test_keys_do_not_let_walrus_or_rog_beyond_loopback(tmp_path: Path) -> None:
    """The protocols have no authentication, so keys change nothing for them."""
    for variable in ("TOPICS_WALRUS_LISTEN", "TOPICS_ROG_LISTEN"):
        service = Service(tmp_path / variable, TOPICS_API_KEYS="secret-of-sixteen:read", **{variable: "0.0.0.0:0"})
        try:
            service.directory.mkdir(exist_ok=True)
            service.start(wait=False)
            assert service.wait_exit() == 2
            assert variable in service.log_text()
            assert not (service.data_dir / "shard-00").exists()
        finally:
            service.close()


def test_the_audit_log_outlives_the_gateway_and_may_be_truncated(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"

    def events() -> list[tuple[str, list[str]]]:
        return [(each["event"], each["names"]) for each in map(json.loads, audit.read_text().splitlines())]

    with Service(tmp_path, shards=1, TOPICS_AUDIT_LOG=str(audit)) as service:
        assert service.request("PUT", "/v0/topics/a", {})[0] == 201
        assert audit.stat().st_mode & 0o777 == 0o600
        service.kill_child("gateway")
        until(service.is_ready, "the gateway")
        assert service.request("PUT", "/v0/topics/b", {})[0] == 201
        assert events() == [("change", ["a"]), ("change", ["b"])]
        os.truncate(audit, 0)  # as copytruncate of logrotate
        assert service.request("DELETE", "/v0/topics/b")[0] == 200
        assert events() == [("change", ["b"])]
    audit.unlink()
    audit.symlink_to(tmp_path / "elsewhere")
    refused = Service(tmp_path, shards=1, TOPICS_AUDIT_LOG=str(audit)).start(wait=False)
    try:
        assert refused.wait_exit() == 1
        assert "TOPICS_AUDIT_LOG" in refused.log_text()
    finally:
        refused.close()
    assert not (tmp_path / "elsewhere").exists()


def test_the_audit_log_goes_on_in_a_new_file_after_sighup_and_loses_no_line(tmp_path: Path) -> None:
    audit, rotated = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"

    def names(path: Path) -> list[str]:
        return [name for line in path.read_text().splitlines() for name in json.loads(line)["names"]]

    with Service(tmp_path, shards=1, TOPICS_AUDIT_LOG=str(audit)) as service:

        def reopened(times: int) -> None:
            assert service.process is not None
            service.process.send_signal(signal.SIGHUP)
            until(lambda: service.log_text().count("audit_log_reopened") == times, "the new file")

        def make(topic: str) -> None:
            assert service.request("PUT", f"/v0/topics/{topic}", {})[0] in (200, 201)

        make("a")
        audit.rename(rotated)
        make("b")
        reopened(1)
        until(lambda: make("c") or audit.read_text(), "a line in it")
        assert names(rotated)[:2] == ["a", "b"]
        assert set(names(rotated)[2:] + names(audit)) == {"c"}
        assert audit.stat().st_mode & 0o777 == 0o600
        service.kill_child("gateway")
        until(service.is_ready, "another gateway")
        make("d")
        assert names(audit)[-1] == "d"
        audit.rename(tmp_path / "audit.jsonl.2")
        reopened(2)
        until(lambda: make("e") or audit.read_text(), "a line in the third one")
        before = audit.read_text()
        audit.rename(tmp_path / "audit.jsonl.3")
        audit.symlink_to(tmp_path / "elsewhere")
        assert service.process is not None
        service.process.send_signal(signal.SIGHUP)
        until(lambda: "audit_log_not_reopened" in service.log_text(), "the refusal")
        make("f")
        assert (tmp_path / "audit.jsonl.3").read_text().startswith(before)
        assert names(tmp_path / "audit.jsonl.3")[-1] == "f"
        assert not (tmp_path / "elsewhere").exists()

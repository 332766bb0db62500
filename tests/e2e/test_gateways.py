"""Claims about a service with several gateways: deaths lose nothing, limits hold over all, keys change in all."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.inside import descriptors
from tests.support.programs import leave_out
from tests.support.service import Service, ask, until
from tests.support.writers import Writer, verify

NAMES = ["gateway-0", "gateway-1", "gateway-2"]
KILLS = int(os.environ.get("TOPICS_TEST_KILLS", "6"))
PATIENCE_S = 30.0
APPENDED = "topics_http_requests_total[('operation', 'append'), ('status', '200')]"


@pytest.fixture
def sees_descriptors() -> None:
    if os.geteuid():
        leave_out("root, to see which gateway has a connection")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    with ExitStack() as services:

        def made(**environment: str) -> Service:
            service = Service(tmp_path, TOPICS_GATEWAYS="3", TOPICS_RESTART_LIMIT="1000", **environment)
            return services.enter_context(service)

        yield made


def opened(service: Service) -> list[int]:
    """The descriptors of each gateway."""
    return [descriptors(service.child(name)["pid"]) for name in NAMES]


def serving(service: Service) -> bool:
    return all(service.child(name)["state"] == "serving" for name in NAMES)


@pytest.mark.usefixtures("sees_descriptors")
def test_connections_are_spread_evenly(three: Callable[..., Service]) -> None:
    service = three()
    connections = [service.connect() for _ in range(30)]
    for connection in connections:
        assert ask(connection, "GET", "/v0/health")[0] == 200
    found = opened(service)
    assert max(found) - min(found) <= 6
    for connection in connections:
        connection.close()


def test_killed_gateways_lose_and_double_nothing(three: Callable[..., Service]) -> None:
    service = three()
    dice = random.Random(7)
    writers = [Writer(service, f"w{n}", [f"kill:{n}", "kill:all"], n, "fsync") for n in range(4)]
    for writer in writers:
        writer.start()
    until(lambda: all(writer.acks for writer in writers), "a first ack for every writer")
    for _ in range(KILLS):
        name = dice.choice(NAMES)
        incarnation = service.kill_child(name)
        until(lambda name=name, n=incarnation: service.child(name)["incarnation"] > n, "a new gateway", PATIENCE_S)
        until(lambda: serving(service), "all gateways", PATIENCE_S)
        acks = [writer.acks for writer in writers]
        until(lambda acks=acks: all(w.acks > n for w, n in zip(writers, acks, strict=True)), "further acks")
    for writer in writers:
        writer.finish()
    assert {answer.status for writer in writers for answer in writer.answers} <= {200, 201}, "none is refused"
    assert sum(writer.broken for writer in writers) > 0, "there were connections to break"
    assert verify(service, writers) > 0


def test_when_all_gateways_are_killed_connections_wait(three: Callable[..., Service]) -> None:
    service = three()
    for name in NAMES:
        os.kill(service.child(name)["pid"], signal.SIGSTOP)
    with ThreadPoolExecutor(8) as asking:
        answers = [asking.submit(service.request, "GET", "/v0/health", timeout_s=PATIENCE_S) for _ in range(8)]
        for name in NAMES:
            service.kill_child(name)
        assert [answer.result()[0] for answer in answers] == [200] * 8


def test_while_a_gateway_hangs_the_others_take_the_connections(three: Callable[..., Service]) -> None:
    service = three(TOPICS_HANG_TIMEOUT_MS="0")
    pid = service.child("gateway-1")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        for number in range(60):
            assert service.request("POST", "/v0/topics/hung", {"records": [{"data": number}]})[0] in (200, 201)
        assert time.monotonic() - began < PATIENCE_S
        until(lambda: counters(service).get(APPENDED) == 59, "all appends in a scrape of another one")
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.usefixtures("sees_descriptors")
def test_a_gateway_that_hangs_is_killed_and_replaced(three: Callable[..., Service]) -> None:
    service = three(TOPICS_HANG_TIMEOUT_MS="1000")
    with closing(service.connect(PATIENCE_S)) as connection:
        assert ask(connection, "GET", "/v0/health")[0] == 200
        name = service.gateway_of(connection)
        before = service.child(name)
        os.kill(before["pid"], signal.SIGSTOP)
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(connection, "GET", "/v0/health")
    until(lambda: service.child(name)["incarnation"] > before["incarnation"], "its successor", PATIENCE_S)
    assert "child_hung" in service.log_text()


@pytest.mark.usefixtures("sees_descriptors")
def test_a_ticket_outlives_the_gateway_that_gave_it(three: Callable[..., Service], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    service = three(TOPICS_API_KEYS_FILE=str(keys))
    headers = {"Authorization": "Bearer secret", "Content-Type": "application/json"}

    def asked(method: str, path: str, body: object = None) -> tuple[int, str, dict[str, Any]]:
        """The status, the gateway, and the answer, of a stream its beginning."""
        with closing(service.connect(PATIENCE_S)) as connection:
            connection.request(method, path, json.dumps(body) if body else None, headers if body else {})
            answer = connection.getresponse()
            name = service.gateway_of(connection)
            stream = answer.headers.get_content_type() == "text/event-stream"
            return answer.status, name, {} if stream else json.load(answer)

    asked("POST", "/v0/topics/ticket", {"records": [{"data": 1}]})
    path = asked("POST", "/v0/watch", {"topics": {"ticket": {}}})[2]["stream_url"]
    _, name, given = asked("POST", "/v0/tickets", {"path": path})
    incarnation = service.kill_child(name)
    until(lambda: service.child(name)["incarnation"] > incarnation, "a new gateway", PATIENCE_S)
    found = {asked("GET", f"{path}?ticket={given['ticket']}")[0] for _ in range(6)}
    assert found == {200, 401}, "it is used once, at whichever gateway"


@pytest.mark.usefixtures("sees_descriptors")
def test_a_session_whose_gateway_hangs_is_streamed_by_another(three: Callable[..., Service]) -> None:
    service = three(TOPICS_HANG_TIMEOUT_MS="0")
    service.request("POST", "/v0/topics/taken", {"records": [{"data": "first"}]})
    url = service.request("POST", "/v0/watch", {"topics": {"taken": {"from_seq": 0}}})[1]["stream_url"]
    with closing(service.connect(PATIENCE_S)) as hung, closing(service.connect(PATIENCE_S)) as other:
        hung.request("GET", url)
        first = hung.getresponse()
        assert any(b"first" in line for line in first)
        pid = service.child(service.gateway_of(hung))["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            other.request("GET", url)
            second = other.getresponse()
            service.request("POST", "/v0/topics/taken", {"records": [{"data": "later"}]}, timeout_s=PATIENCE_S)
            assert any(b"later" in line for line in second)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert '"code":409' in first.read().decode().replace(" ", "")
        second.close()


def test_limits_hold_over_all_gateways(three: Callable[..., Service], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    service = three(
        TOPICS_API_KEYS_FILE=str(keys),
        TOPICS_MAX_SSE_CONNECTIONS="9",
        TOPICS_MAX_SSE_CONNECTIONS_PER_KEY="5",
    )

    def opened(key: str) -> int:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection = service.connect()
        opening.callback(connection.close)
        connection.request("POST", "/v0/topics/limits", json.dumps({"records": [{"data": 1}]}), headers)
        connection.getresponse().read()
        connection.request("POST", "/v0/watch", json.dumps({"topics": {"limits": {}}}), headers)
        wid = json.load(connection.getresponse())["wid"]
        connection.request("GET", f"/v0/watch/{wid}", headers=headers)
        response = connection.getresponse()
        opening.callback(response.close)
        return response.status

    with ExitStack() as opening:
        # At most half of the streams of a service are those of one of several keys.
        assert [opened("one") for _ in range(8)] == [200] * 4 + [429] * 4
        assert [opened("two") for _ in range(6)] == [200] * 4 + [429] * 2
    with ExitStack() as opening:
        until(lambda: opened("one") == 200, "the slot of a stream that has ended")


def test_a_reload_reaches_all_gateways(three: Callable[..., Service], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("before\n")
    service = three(TOPICS_API_KEYS_FILE=str(keys))

    def statuses(key: str) -> set[int]:
        found = set()
        for _ in range(12):
            connection = service.connect()
            connection.request("GET", "/v0/topics", headers={"Authorization": f"Bearer {key}"})
            answer = connection.getresponse()
            found.add(answer.status)
            answer.close()
            connection.close()
        return found

    assert statuses("before") == {200}
    keys.write_text("after\n")
    assert service.process is not None
    service.process.send_signal(signal.SIGHUP)
    until(lambda: "keys_reloaded" in service.log_text(), "the reload")
    assert (statuses("before"), statuses("after")) == ({401}, {200})


def test_a_drain_ends_all_gateways_and_loses_nothing(three: Callable[..., Service]) -> None:
    service = three()
    writers = [Writer(service, f"w{n}", [f"drain:{n}"], n, "disk") for n in range(4)]
    for writer in writers:
        writer.start()
    until(lambda: all(writer.acks for writer in writers), "a first ack for every writer")
    assert service.stop() == 0
    for writer in writers:
        writer.finish()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", service.port))
    refused = [a.body["error"]["code"] for w in writers for a in w.answers if a.status == 503]
    assert set(refused) <= {"shutting_down"}
    service.start()
    assert verify(service, writers) > 0


def counters(service: Service) -> dict[str, float]:
    with urlopen(f"{service.url}/v0/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        sample.name + repr(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        if family.type == "counter" and family.name.startswith(("topics_http", "topics_gateway", "topics_internal"))
        for sample in family.samples
    }


def test_counters_of_all_gateways_are_in_each_scrape_and_never_fall(three: Callable[..., Service]) -> None:
    service = three()

    def rises(before: dict[str, float]) -> dict[str, float]:
        now = counters(service)
        fallen = {name: (value, now.get(name)) for name, value in before.items() if now.get(name, -1.0) < value}
        assert not fallen
        return now

    found = counters(service)
    for number in range(30):
        assert service.request("POST", "/v0/topics/counted", {"records": [{"data": number}]})[0] in (200, 201)
    until(lambda: counters(service).get(APPENDED) == 29, "all appends in one scrape", 5)
    for round_ in range(40):
        found = rises(found)
        if round_ % 10 == 3:
            name = NAMES[round_ % 3]
            incarnation = service.kill_child(name)
            until(lambda name=name, n=incarnation: service.child(name)["incarnation"] > n, "a new gateway", PATIENCE_S)
        service.request("POST", "/v0/topics/counted", {"records": [{"data": round_}]})
    assert found[APPENDED] >= 29
    until(lambda: counters(service)["topics_gateway_restarts_total[]"] == 4, "the restarts to be counted")


class Caller(threading.Thread):
    """Opens a connection for each request, `per_s` times a second."""

    def __init__(self, service: Service, per_s: float) -> None:
        super().__init__(daemon=True)
        self.statuses: Counter[int] = Counter()
        self.failures: list[str] = []
        self._service = service
        self._pause_s = 1 / per_s
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._pause_s):
            try:
                self.statuses[self._service.request("GET", "/v0/ready", timeout_s=PATIENCE_S)[0]] += 1
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))

    def finish(self) -> None:
        self._over.set()
        self.join(PATIENCE_S)


def rolled(service: Service) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "supervisor.cli", "roll"]
    return subprocess.run(command, env=service.environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("number", [1, 3])
def test_a_roll_refuses_and_resets_nothing(tmp_path: Path, number: int) -> None:
    with Service(tmp_path, TOPICS_GATEWAYS=str(number)) as service:
        before = {name: each["pid"] for name, each in service.status()["children"].items()}
        assert service.request("POST", "/v0/topics/quiet", {"records": [{"data": 1}]})[0] == 201
        writers = [Writer(service, f"w{n}", [f"roll:{n}"], n, "disk") for n in range(3)]
        callers = [Caller(service, 50) for _ in range(4)]
        for each in (*writers, *callers):
            each.start()
        until(lambda: all(writer.acks for writer in writers), "a first ack for every writer")
        with ThreadPoolExecutor(1) as asking:
            # A request that waits in a gateway that retires gets its answer.
            waiting = {"from_seq": 1, "wait_ms": 3000}
            parked = asking.submit(service.request, "POST", "/v0/topics/quiet/diff", waiting, timeout_s=PATIENCE_S)
            done = rolled(service)
            assert (done.returncode, done.stdout) == (0, "all gateways are new\n"), done.stderr
            assert parked.result()[0] == 200
        for each in (*writers, *callers):
            each.finish()
        after = {name: each["pid"] for name, each in service.status()["children"].items()}
        assert after.keys() == before.keys()
        assert {name for name in after if after[name] == before[name]} == {"shard-00", "shard-01"}
        assert [caller.failures for caller in callers] == [[]] * 4
        assert sum((caller.statuses for caller in callers), Counter()).keys() == {200}
        assert {answer.status for writer in writers for answer in writer.answers} <= {200, 201}
        assert [writer.broken for writer in writers] == [0] * 3
        assert verify(service, writers) > 0


def test_streams_end_with_a_last_event_and_resume_at_another_gateway(three: Callable[..., Service]) -> None:
    service = three()
    service.request("POST", "/v0/topics/streamed", {"records": [{"data": 0}]})
    wid = service.request("POST", "/v0/watch", {"topics": {"streamed": {"from_seq": 0}}})[1]["wid"]
    with closing(service.connect(PATIENCE_S)) as connection:
        connection.request("GET", f"/v0/watch/{wid}")
        stream = connection.getresponse()
        assert stream.status == 200
        assert rolled(service).returncode == 0
        text = stream.read().decode()
    assert '"code":503' in text.replace(" ", "")
    ident = re.findall(r"^id: ?(.*)$", text, re.MULTILINE)[-1]
    service.request("POST", "/v0/topics/streamed", {"records": [{"data": "later"}]})
    with closing(service.connect(PATIENCE_S)) as connection:
        connection.request("GET", f"/v0/watch/{wid}", headers={"Last-Event-ID": ident})
        stream = connection.getresponse()
        assert stream.status == 200
        assert any(b"later" in line for line in stream)
        stream.close()


def test_roll_says_why_it_did_nothing(tmp_path: Path) -> None:
    service = Service(tmp_path)
    try:
        nothing = rolled(service)
        assert (nothing.returncode, "no service runs here" in nothing.stderr) == (1, True)
    finally:
        service.close()

"""Claims about records that are nested deeper than clients may send today. Earlier releases took about 980 levels.

The earlier release is this one without the bound: a module of the test that every process of it imports at its start.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_topics.client import parse_diff
from tests.support.service import Service, until
from topics_client import Client

ROOT = Path(__file__).parents[2]
EARLIER = """
import sys
from proto.model import nesting
nesting.MAX_LEVELS = 1_000_000
sys.setrecursionlimit = lambda limit: None
"""
DEPTHS = (129, 500, 900, 970)
"""Of `data`. Its body has three levels more."""


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def send(service: Service, path: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a topic `deep` and a queue `jobs`, each with deep records and a flat one behind them."""
    directory = tmp_path_factory.mktemp("deep")
    (directory / "sitecustomize.py").write_text(EARLIER)
    with Service(directory, PYTHONPATH=f"{directory}:{ROOT}") as service:
        service.request("PUT", "/v0/topics/jobs", {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"})
        for topic in ("deep", "jobs"):
            for levels in DEPTHS:
                body = b'{"records":[{"data":%b,"meta":{"m":%b}}]}' % (nested(levels), nested(levels - 1))
                status, answer = send(service, f"/v0/topics/{topic}", body)
                assert status in (200, 201), answer
            service.request("POST", f"/v0/topics/{topic}", {"records": [{"data": "flat"}]})
        service.stop()
        service.environment["PYTHONPATH"] = str(ROOT)
        service.start()
        yield service


def command(service: Service, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "TOPICS_URL": service.url, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "supervisor.cli", *arguments],
        check=False,
        env=environment,
        capture_output=True,
        timeout=60,
    )


WANTED = [*map(nested, DEPTHS), b'"flat"']


def test_no_more_of_them_are_taken(deep: Service) -> None:
    status, answer = send(deep, "/v0/topics/deep", b'{"records":[{"data":%b}]}' % nested(126))
    assert (status, json.loads(answer)["error"]["detail"]) == (400, {"max": 128})


def test_reads_and_streams_deliver_them(deep: Service) -> None:
    status, answer = send(deep, "/v0/topics/deep/diff", b"{}")
    assert status == 200
    found = parse_diff("deep", answer).records
    assert [text.encode() for text in found.column("data").to_pylist()] == WANTED
    wid = deep.request("POST", "/v0/watch", {"topics": {"deep": {}}})[1]["wid"]
    connection = http.client.HTTPConnection("127.0.0.1", deep.port, timeout=10)
    connection.request("GET", f"/v0/watch/{wid}")
    answer = connection.getresponse()
    content = b""
    while b"caught-up" not in content:
        content += answer.read1()
    connection.close()
    for each in WANTED:
        assert b'"data":' + each in content


@pytest.mark.parametrize("arguments", [("read", "deep", "--data"), ("tail", "deep", "-n", "9", "--data")])
def test_commands_print_them(deep: Service, arguments: tuple[str, ...]) -> None:
    done = command(deep, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == WANTED


def test_whole_records_are_printed_and_exported(deep: Service) -> None:
    for arguments in (("read", "deep", "--json"), ("read", "deep"), ("export", "deep")):
        done = command(deep, *arguments)
        assert done.returncode == 0, done.stderr
        for each in WANTED:
            assert each in done.stdout


def test_the_python_client_passes_them(deep: Service) -> None:
    with Client(deep.url) as client:
        for found in (client.read("deep"), client.tail({"deep": 0})):
            depths = []
            for record in found:
                value, depth = record.data, 0
                while isinstance(value, list):
                    value, depth = value[0] if value else None, depth + 1
                depths.append(depth)
                if depth == 0:
                    break
            assert depths == [*DEPTHS, 0]


def test_jobs_are_handed_out_become_dead_letters_and_come_back(deep: Service) -> None:
    path = "/v0/topics/jobs/work?node=w&max=10&lease_ms=100"
    connection = http.client.HTTPConnection("127.0.0.1", deep.port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    content = b""
    while content.count(b"event: job") < len(WANTED) or not content.endswith(b"\n\n"):
        content += answer.read1()
    connection.close()
    for each in WANTED:
        assert b'"data":' + each in content

    def moved() -> bool:
        send(deep, "/v0/topics/jobs/claim", b'{"node":"w","max":10,"lease_ms":100}')
        status, state = deep.request("GET", "/v0/topics/dead")
        return status == 200 and bool(state["head_seq"] == len(WANTED))

    until(moved, "the dead letters")
    status, content = send(deep, "/v0/topics/dead/diff", b"{}")
    assert status == 200
    for each in WANTED:
        assert b'"data":' + each in content
    status, answer = send(deep, "/v0/topics/dead/redrive", b'{"queue":"jobs"}')
    assert status == 200, answer
    done = command(deep, "work", "jobs", "--exec", "cat", "--drain")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == WANTED

"""Claims about the demo of several machines (`make demo-cluster`), with less writers."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.support.service import Service

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cluster"


def test_no_record_is_lost_or_doubled_by_a_join_and_a_loss() -> None:
    demo = [sys.executable, str(EXAMPLE / "demo.py"), "--seconds", "1"]
    done = subprocess.run(demo, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    proof = re.search(r"PROOF all ([\d,]+) acknowledged .* once and in order, through each of 3 machines", done.stdout)
    assert proof, done.stdout
    total = int(proof[1].replace(",", ""))
    assert total > 100
    assert [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) records read through", done.stdout)] == [total] * 3
    assert done.stdout.count("SIGKILL") == 1


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("writers")


def test_the_demo_notices_what_is_lost_doubled_or_out_of_order(shared: Service, writers: Any) -> None:
    data = ["a", "b", "c"]
    shared.request("POST", "/v0/topics/compared", {"records": [{"data": each} for each in data]})
    writer = writers.Writer("compared", lambda: [shared.port])
    writer.acked = data
    assert writers.compare(shared.port, writer) == 3
    for acked in (["a", "b", "c", "d"], ["a", "b"], ["a", "c"], ["b", "a", "c"], ["a", "b", "b", "c"]):
        writer.acked = acked
        with pytest.raises(writers.Difference):
            writers.compare(shared.port, writer)


class Flaky(BaseHTTPRequestHandler):
    """Does each request, and loses the answer of each other one, or refuses it."""

    done: list[bytes]

    def do_POST(self) -> None:
        self.done.append(self.rfile.read(int(self.headers["Content-Length"])))
        if len(self.done) % 3 == 1:
            return  # no answer
        status = 503 if len(self.done) % 3 == 2 else 200
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_PUT = do_POST

    def log_message(self, *_: Any) -> None:
        pass


def test_a_write_without_an_answer_is_sent_again_as_the_same_write(
    writers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "PAUSE_S", 0)
    Flaky.done = []
    with HTTPServer(("127.0.0.1", 0), Flaky) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        writer = writers.Writer("t", lambda: [server.server_port])
        writer._until_done({"idempotency_key": "k"}, 1, "POST")
        writer._machines[server.server_port].close()
        server.shutdown()
        thread.join()
    assert len(Flaky.done) == 3
    assert len(set(Flaky.done)) == 1
    assert writer.again == 1

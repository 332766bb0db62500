"""HTTP client of the commands: which requests it retries, for how long, and which errors end them."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from supervisor.client.http_client import Client, Refused, Unavailable

Scripted = tuple[int, dict[str, str], bytes]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: ClassVar[list[Scripted | None]]
    seen: ClassVar[list[tuple[str, str, bytes, str | None]]]

    def do_GET(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        self.seen.append((self.command, self.path, body, self.headers.get("Authorization")))
        answer = self.script.pop(0)
        if answer is None:  # the connection ends without an answer
            self.close_connection = True
            return
        status, headers, raw = answer
        self.send_response(status)
        for name, value in {"Content-Length": str(len(raw)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    do_POST = do_PUT = do_GET

    def log_message(self, *_: Any) -> None:
        pass


class Time:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@contextmanager
def serving(*script: Scripted | None) -> Iterator[tuple[str, type[Handler]]]:
    class Ours(Handler):
        pass

    Ours.script, Ours.seen = list(script), []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ours)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/base", Ours
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


OK: Scripted = (200, {}, b'{"ok":true}')


def busy(status: int, code: str, headers: dict[str, str], detail: str = "{}") -> Scripted:
    text = f'{{"error": {{"code": "{code}", "message": "m", "detail": {detail}}}}}'
    return status, headers, text.encode()


def test_a_request_has_the_key_the_path_and_the_body() -> None:
    with serving(OK) as (url, handler), Client(url, "key") as client:
        assert client.post("/v0/x", b"{}").json() == {"ok": True}
        assert handler.seen == [("POST", "/base/v0/x", b"{}", "Bearer key")]


def test_it_comes_back_when_the_service_said() -> None:
    time = Time()
    script = (
        busy(503, "not_ready", {"Retry-After": "3"}),
        busy(429, "throttled", {"Retry-After": "1"}, '{"retry_after_ms": 250}'),
        busy(503, "not_ready", {}),
        OK,
    )
    with serving(*script) as (url, handler):
        with Client(url, sleep=time.sleep, clock=time.clock) as client:
            assert client.get("/").status == 200
        assert time.pauses == [3.0, 0.25, 0.4]
        assert len(handler.seen) == 4


def test_patience_ends_and_the_reason_is_told() -> None:
    time = Time()
    told: list[tuple[str, float]] = []
    with serving(*[busy(503, "not_ready", {"Retry-After": "4"})] * 4) as (url, _):
        client = Client(
            url, patience_s=10, sleep=time.sleep, clock=time.clock, waiting=lambda w, s: told.append((w, s))
        )
        with client, pytest.raises(Unavailable, match="503 not_ready: m"):
            client.get("/")
    assert time.pauses == [4.0, 4.0]
    assert [seconds for _, seconds in told] == [4.0, 4.0]


def test_a_lost_connection_is_made_again_after_growing_pauses() -> None:
    time = Time()
    with serving(None, None, None, OK) as (url, _), Client(url, sleep=time.sleep, clock=time.clock) as client:
        assert client.get("/").status == 200
    assert time.pauses == [0.1, 0.2, 0.4]


def test_a_kept_connection_that_ended_meanwhile_costs_no_patience() -> None:
    with serving(OK, None, OK) as (url, handler), Client(url, patience_s=0) as client:
        client.get("/a")
        assert client.get("/b").status == 200
        assert [path for _, path, _, _ in handler.seen] == ["/base/a", "/base/b", "/base/b"]


def test_nobody_there_is_unavailable_and_a_no_is_final() -> None:
    with Client("http://127.0.0.1:1", patience_s=0) as client, pytest.raises(Unavailable, match="refused"):
        client.get("/")
    script = busy(404, "topic_not_found", {}, '{"topic": "x"}'), (500, {}, b"<html>oh")
    with serving(*script) as (url, _), Client(url) as client:
        with pytest.raises(Refused) as caught:
            client.get("/")
        assert (caught.value.status, caught.value.code) == (404, "topic_not_found")
        assert caught.value.detail == {"topic": "x"}
        with pytest.raises(Refused, match=r"500 .*<html>oh"):
            client.get("/")


def test_a_status_may_be_an_answer() -> None:
    with serving(busy(503, "not_ready", {})) as (url, _), Client(url) as client:
        assert client.request("GET", "/", also=(503,)).status == 503


@pytest.mark.parametrize("url", ["localhost:4000", "ftp://x", "http://", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http://127"):
        Client(url)

"""HTTP client of the commands that look once: what it sends, and its errors."""

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
    seen: ClassVar[list[tuple[str, str | None]]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization")))
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

    def log_message(self, *_: Any) -> None:
        pass


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


def busy(status: int, code: str) -> Scripted:
    return status, {}, f'{{"error": {{"code": "{code}", "message": "m"}}}}'.encode()


def test_a_request_has_the_key_and_the_path() -> None:
    with serving(OK) as (url, handler), Client(url, "key") as client:
        assert client.get("/v0/x").json() == {"ok": True}
        assert handler.seen == [("/base/v0/x", "Bearer key")]


@pytest.mark.parametrize(("status", "code"), [(503, "not_ready"), (429, "throttled")])
def test_a_service_that_is_not_ready_or_busy_is_unavailable(status: int, code: str) -> None:
    told = pytest.raises(Unavailable, match=f"{status} {code}: m")
    with serving(busy(status, code)) as (url, _), Client(url) as client, told:
        client.get("/")


def test_a_kept_connection_that_ended_meanwhile_is_made_again() -> None:
    with serving(OK, None, OK) as (url, handler), Client(url) as client:
        client.get("/a")
        assert client.get("/b").status == 200
        assert [path for path, _ in handler.seen] == ["/base/a", "/base/b", "/base/b"]


def test_nobody_there_is_unavailable_and_a_no_is_final() -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(Unavailable, match="refused"):
        client.get("/")
    script = busy(404, "topic_not_found"), (500, {}, b"<html>oh")
    with serving(*script) as (url, _), Client(url) as client:
        with pytest.raises(Refused, match="404 topic_not_found: m"):
            client.get("/")
        with pytest.raises(Refused, match=r"500 .*<html>oh"):
            client.get("/")


def test_a_status_may_be_an_answer() -> None:
    with serving(busy(503, "not_ready")) as (url, _), Client(url) as client:
        assert client.get("/", also=(503,)).status == 503


@pytest.mark.parametrize("url", ["localhost:4000", "ftp://x", "http://", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http://127"):
        Client(url)

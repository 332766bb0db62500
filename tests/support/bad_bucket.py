"""A proxy that is a bad bucket: it passes the requests of one machine to an S3 server, and the answers back.

A share of the requests meets a fault. The machine cannot tell which, and a caller must not guess:

    refused    not done; answered 429, 503, or 409 to a conditional creation
    unsure     done; answered 503, 409 or 412 to a conditional creation, or not at all
    late       a write that is done a while later, when the machine may have given it up

The way of a machine may also be cut in one direction, until it is whole again:

    deaf       requests do not arrive. Then some arrive after all, as packets that were sent again, and some never do
    mute       requests arrive, answers do not
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

FAULTS = ("refused", "unsure", "late")
WAYS = ("deaf", "mute")
OF_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length"}
"""Headers that a proxy writes itself."""
UPSTREAM_S = 120.0


class BadBucket(ThreadingHTTPServer):
    """`share` of the requests meet a fault; 0 is a good bucket. `latest_s` is how late a write may be done."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, rng: Random, share: float, latest_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Passed)
        self.upstream = host, port
        self.rng = rng
        self.share = share
        self.latest_s = latest_s
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.counts = dict.fromkeys((*FAULTS, *WAYS), 0)
        self.way = ""
        """The direction that is cut, if one is."""
        self._whole = threading.Event()
        self._whole.set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def cut(self, way: str) -> None:
        self._whole.clear()
        self.way = way

    def mend(self) -> None:
        self.way = ""
        self._whole.set()

    def close(self) -> None:
        self.share = 0.0
        self.mend()
        self.shutdown()
        self.server_close()

    def is_cut(self, way: str) -> bool:
        """Whether the way is cut in this direction. If it is, wait until it is whole."""
        if self.way != way:
            return False
        self.counts[way] += 1
        self._whole.wait()
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A machine that is killed breaks its connections."""


class _Passed(BaseHTTPRequestHandler):
    """One connection of the machine, with one of its own to the server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is two writes: the second would wait 40 ms for the client's system
    server: BadBucket

    def setup(self) -> None:
        super().setup()
        self._up = http.client.HTTPConnection(*self.server.upstream, timeout=UPSTREAM_S)

    def finish(self) -> None:
        self._up.close()
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        try:
            self._pass()
        except (OSError, http.client.HTTPException):
            self.close_connection = True

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def _pass(self) -> None:
        server, rng = self.server, self.server.rng
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if server.is_cut("deaf") and rng.random() < 0.5:
            self.close_connection = True
            return
        fault = rng.choice(FAULTS) if rng.random() < server.share else ""
        creates = "If-None-Match" in self.headers
        if fault == "late" and self.command in ("GET", "HEAD"):
            fault = ""
        if fault:
            server.counts[fault] += 1
        if fault == "refused":
            self._answer(rng.choice((429, 503, 409) if creates else (429, 503)))
            return
        if fault == "late":
            threading.Event().wait(rng.random() * server.latest_s)
        answer, content = self._asked(body)
        if server.is_cut("mute"):
            self.close_connection = True
        elif fault == "unsure" and answer.status < 300:
            status = rng.choice((0, 503, 409, 412) if creates else (0, 503))
            if status:
                self._answer(status)
            self.close_connection = True
        else:
            self._answer(answer.status, answer.getheaders(), content)

    def _asked(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        up = self._up
        up.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in OF_CONNECTION:
                up.putheader(name, value)
        if body or self.command in ("PUT", "POST"):
            up.putheader("Content-Length", str(len(body)))
        up.endheaders(body or None)
        answer = up.getresponse()
        return answer, answer.read()

    def _answer(self, status: int, headers: list[tuple[str, str]] | None = None, content: bytes = b"") -> None:
        self.send_response_only(status)
        length = str(len(content))
        for name, value in headers or ():
            if name.lower() not in OF_CONNECTION:
                self.send_header(name, value)
            elif self.command == "HEAD" and name.lower() == "content-length":
                length = value
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(content)

"""What the examples with a page share: a service of their own, and a small server of the page.

The page speaks to the service itself. It is of another origin, so the service lists it in TOPICS_CORS_ORIGINS.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote

sys.path.append(str(Path(__file__).parents[1] / "flights"))
from service import Service

from topics_client import Forbidden, Unauthorized

HERE = Path(__file__).parent
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".jpg": "image/jpeg"}
BODY_BYTES = 20_000_000

Action = Callable[[str, bytes], None]
"""What a POST of the page does, with the rest of its path and its body."""


def arguments(what: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--port", type=int, default=8000, help="of the page, 0 for any [8000]")
    parser.add_argument(
        "--url", help="a service that runs, and has the page in TOPICS_CORS_ORIGINS [a service of its own]"
    )
    parser.add_argument("--key", default="", help="an API key of that service")
    return parser


@dataclass(frozen=True)
class Site:
    """A page and the service that it uses, at `url`. Browsers wait until `open`, so there is time to make topics."""

    url: str
    key: str
    server: ThreadingHTTPServer
    stack: contextlib.ExitStack

    def open(self) -> None:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.stack.callback(self.server.shutdown)
        print(f"the service is at {self.url}, its console at {self.url}/console")
        key = f"#{self.key}" if self.key else ""
        print(f"open http://127.0.0.1:{self.server.server_port}/{key}    (Ctrl-C ends it)", flush=True)


@contextlib.contextmanager
def serve(
    page: str,
    asked: argparse.Namespace,
    files: Path = HERE,
    actions: Mapping[str, Action] | None = None,
    **settings: str,
) -> Iterator[Site]:
    """Serve a page and the images in `files`, beside a service with these settings, until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="topics-example-") as directory, contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", asked.port), BaseHTTPRequestHandler))
        url = asked.url
        if not url:
            settings["TOPICS_CORS_ORIGINS"] = f"http://127.0.0.1:{server.server_port}"
            url = f"http://127.0.0.1:{stack.enter_context(Service(Path(directory) / 'data', **settings)).port}"
        server.RequestHandlerClass = handler(page, url, files, actions or {})
        try:
            yield Site(url, asked.key, server, stack)
        except Unauthorized as error:
            raise SystemExit(missing_key(url, asked.key, str(error))) from None
        except Forbidden as error:
            raise SystemExit(f"the key of --key may not do what the example needs: {error}") from None


def wait() -> NoReturn:
    """Wait for a signal. The kernel may give it to any thread, and only that one's sleep would end: so Python writes a
    byte for each signal, and the main thread waits for that."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno())
    while True:
        ours.recv(1)


def missing_key(url: str, key: str, why: str) -> str:
    if not key:
        return f"the service at {url} asks for an API key, and none was given: --key KEY"
    return f"the service at {url} does not take the key of --key: {why}"


def handler(page: str, url: str, files: Path, actions: Mapping[str, Action]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = Path(unquote(self.path.partition("?")[0])).name or page
            found = next(
                (each for each in (HERE / name, files / name) if each.suffix in KINDS and each.is_file()), None
            )
            if name == "service.js":
                self.answer(200, "text/javascript", f"export const api = {json.dumps(url)};\n".encode())
            elif found:
                self.answer(200, KINDS[found.suffix], found.read_bytes())
            else:
                self.answer(204 if name == "favicon.ico" else 404)

        def do_POST(self) -> None:
            _, name, rest = (
                unquote(self.path).split("/", 2) if self.path.count("/") > 1 else (*self.path.split("/"), "")
            )
            length = int(self.headers.get("content-length", 0))
            own = self.headers.get("origin") == f"http://{self.headers.get('host')}"  # pages of other sites may not
            if name not in actions or not own or length > BODY_BYTES:
                return self.answer(403)
            actions[name](rest, self.rfile.read(length))
            self.answer(204)

        def answer(self, status: int, kind: str = "text/plain", body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler

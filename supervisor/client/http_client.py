"""HTTP client of the commands: one kept-alive connection, JSON in and out, with retries.

Outcome of a request:

    2xx                                 returns an `Answer`
    429, 503                            retried after the time in the answer, `retry_after_ms` or else `Retry-After`;
                                        raises `Unavailable` when retries would exceed `patience_s`
    no connection, no answer or an      the same, with pauses of 0.1 s doubling to 5 s
    incomplete one
    any other                           raises `Refused` with the service's code and message

A kept-alive connection that the service has closed is reopened at once.

A request may therefore be executed twice. Callers send only requests that tolerate this; writes carry an idempotency
key.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from supervisor.errors import SupervisorError

TIMEOUT_S = 75.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
AGAIN = (429, 503)


class ClientError(SupervisorError):
    """A request failed. The message says why, in words for the user."""


class Refused(ClientError):
    """The service refused the request. A retry will not help."""

    def __init__(self, status: int, code: str, message: str, detail: Mapping[str, Any]) -> None:
        super().__init__(f"the service answered {status} {code}: {message}")
        self.status = status
        self.code = code
        self.detail = detail


class Unavailable(ClientError):
    """The service was not reachable, not ready or too busy during the whole patience."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    headers: http.client.HTTPMessage

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """HTTP client. Before each pause it calls `waiting` with the reason and the seconds. Raises `ValueError` for an
    invalid URL."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        patience_s: float = 60.0,
        timeout_s: float = TIMEOUT_S,
        waiting: Callable[[str, float], None] = lambda why, seconds: None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        scheme, self._host, self._port = origin(url)
        self.url = url.rstrip("/")
        self._tls = scheme == "https"
        self._path = urlsplit(url).path.rstrip("/")
        self._headers = {"Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        self._waiting = waiting
        self._sleep = sleep
        self._clock = clock
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str) -> Answer:
        return self.request("GET", path)

    def post(self, path: str, body: bytes) -> Answer:
        return self.request("POST", path, body)

    def put(self, path: str, body: bytes) -> Answer:
        return self.request("PUT", path, body)

    def request(self, method: str, path: str, body: bytes | None = None, also: Container[int] = ()) -> Answer:
        """Send one request, with retries; blocks. Statuses in `also` count as success. Raises `Refused`,
        `Unavailable`."""
        deadline = self._clock() + self._patience_s
        pause = FIRST_PAUSE_S
        while True:
            wanted: float | None
            kept = self._connection is not None
            try:
                status, headers, raw = self._once(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                why, wanted = f"{self.url}: {_cause(error)}", 0.0 if kept else None
            else:
                if 200 <= status < 300 or status in also:
                    return Answer(status, raw, headers)
                refused = _refusal(status, raw)
                if status not in AGAIN:
                    raise refused
                why, wanted = str(refused), _retry_after(headers, refused.detail)
            seconds = pause if wanted is None else wanted
            pause = min(2 * pause, LONGEST_PAUSE_S)
            if self._clock() + seconds > deadline and not (kept and not seconds):
                raise Unavailable(why)
            if seconds:
                self._waiting(why, seconds)
                self._sleep(seconds)

    def _once(self, method: str, path: str, body: bytes | None) -> tuple[int, http.client.HTTPMessage, bytes]:
        if self._connection is None:
            self._connection = self._connect()
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        self._connection.request(method, self._path + path, body, headers)
        response = self._connection.getresponse()
        raw = response.read()
        if response.will_close:
            self.close()
        return response.status, response.headers, raw

    def _connect(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if self._tls:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        connection.connect()
        # Head and body are two writes; without TCP_NODELAY the second waits for the acknowledgement of the first.
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a service's URL. Raises `ValueError`."""
    try:
        parts = urlsplit(url)
        default = {"http": 80, "https": 443}[parts.scheme]
        if not parts.hostname:
            raise ValueError
        return parts.scheme, parts.hostname, default if parts.port is None else parts.port
    except (ValueError, KeyError):
        raise ValueError(f"{url!r} is no URL of a service; write it like http://127.0.0.1:4000") from None


def _cause(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _refusal(status: int, raw: bytes) -> Refused:
    """The error of an answer. A proxy's answer need not have the service's form."""
    try:
        error = json.loads(raw)["error"]
        return Refused(status, str(error["code"]), str(error["message"]), error.get("detail") or {})
    except (ValueError, KeyError, TypeError):
        shown = raw[:200].decode(errors="replace").strip()
        return Refused(status, http.client.responses.get(status, "").lower(), shown or "nothing else", {})


def _retry_after(headers: http.client.HTTPMessage, detail: Mapping[str, Any]) -> float | None:
    """Seconds to wait before a retry; None if the answer does not say."""
    exact = detail.get("retry_after_ms")
    if isinstance(exact, int | float) and exact >= 0:
        return exact / 1000
    text = headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else None

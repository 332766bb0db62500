"""HTTP client of the commands that look at a service once: one kept-alive connection, GET, JSON out, no retries.

Such a command starts without the libraries of the Python client, which all other commands use.

Outcome of a request:

    2xx                              returns an `Answer`
    429, 503, no whole answer        raises `Unavailable`
    any other                        raises `Refused` with the service's code and message

A kept-alive connection that the service has closed is reopened.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Container
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from supervisor.errors import SupervisorError

TIMEOUT_S = 75.0
AGAIN = (429, 503)


class ClientError(SupervisorError):
    """A request failed. The message says why, in words for the user."""


class Refused(ClientError):
    """The service refused the request. A retry will not help."""


class Unavailable(ClientError):
    """The service was not reachable, not ready or too busy."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    headers: http.client.HTTPMessage

    def json(self) -> Any:
        return json.loads(self.body)


class Client(AbstractContextManager["Client"]):
    """HTTP client. Raises `ValueError` for an invalid URL."""

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        scheme, host, port = origin(url)
        self.url = url.rstrip("/")
        self._path = urlsplit(url).path.rstrip("/")
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        self._connection = kind(host, port, timeout=timeout_s)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str, also: Container[int] = ()) -> Answer:
        """Send one request; blocks. Statuses in `also` count as success. Raises `Refused`, `Unavailable`."""
        kept = self._connection.sock is not None
        try:
            found = self._once(path)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if kept:
                return self.get(path, also)
            raise Unavailable(f"{self.url}: {_cause(error)}") from None
        if 200 <= found.status < 300 or found.status in also:
            return found
        raise (Unavailable if found.status in AGAIN else Refused)(_refusal(found))

    def _once(self, path: str) -> Answer:
        self._connection.request("GET", self._path + path, headers=self._headers)
        response = self._connection.getresponse()
        return Answer(response.status, response.read(), response.headers)


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


def _refusal(answer: Answer) -> str:
    """The error of an answer. A proxy's answer need not have the service's form."""
    try:
        error = answer.json()["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        code = http.client.responses.get(answer.status, "").lower()
        message = answer.body[:200].decode(errors="replace").strip() or "nothing else"
    return f"the service answered {answer.status} {code}: {message}"

"""The head of an HTTP/1.1 response, as bytes."""

from __future__ import annotations

from email.utils import formatdate
from functools import cache
from http import HTTPStatus
from time import time

from gateway.http.messages import Response


@cache
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()


class _Date:
    """The Date header line, rendered once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        second = int(time())
        if second != self._second:
            self._second = second
            self._line = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
        return self._line


_date = _Date()


def head(response: Response, keep: bool, *, http_1_0: bool = False) -> bytes:
    """Return the status line and headers, empty line included. `keep` tells the client whether the connection can be
    used again."""
    bodiless = response.status == HTTPStatus.NO_CONTENT
    parts = [_status_line(response.status), _date.line()]
    if not bodiless:
        parts += (b"content-type: ", response.content_type, b"\r\n")
    for name, value in response.headers:
        parts += (name, b": ", value, b"\r\n")
    if bodiless:
        pass  # a 204 has no body, so neither header about one
    elif response.live is None:
        parts.append(b"content-length: %d\r\n" % len(response.body))
    elif not http_1_0:
        parts.append(b"transfer-encoding: chunked\r\n")
    if not keep:
        parts.append(b"connection: close\r\n")
    elif http_1_0 or response.live is not None:
        parts.append(b"connection: keep-alive\r\n")
    parts.append(b"\r\n")
    return b"".join(parts)

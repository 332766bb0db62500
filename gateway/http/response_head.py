"""The head of an HTTP/1.1 response, as bytes."""

from __future__ import annotations

from email.utils import formatdate
from functools import cache
from http import HTTPStatus
from time import time

from gateway.http.messages import JSON, Headers, Response, Shared


class _Plain:
    """The heads of responses that have only a body of JSON and `Shared` headers, with the date of this second."""

    def __init__(self) -> None:
        self._line = b""
        self._forms: dict[int | tuple[int, Headers], bytes] = {}

    def form(self, status: int, headers: Headers) -> bytes:
        """Return the head with a place for the length of the body."""
        line = _date.line()
        if line is not self._line:
            self._line = line
            self._forms = {}
        key = (status, headers) if headers else status
        form = self._forms.get(key)
        if form is None:
            lines = b"".join(b"%b: %b\r\n" % header for header in headers).replace(b"%", b"%%")
            parts = (_status_line(status), line, b"content-type: ", JSON, b"\r\n", lines, b"content-length: %d\r\n\r\n")
            form = self._forms[key] = b"".join(parts)
        return form


NOSNIFF = (b"x-content-type-options", b"nosniff")
"""Of every response: what others wrote is never a script or a page, whatever a browser takes it for."""


@cache
def _status_line(status: int) -> bytes:
    """The status line, and the header of every response."""
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode() + b"%b: %b\r\n" % NOSNIFF


class _Date:
    """The Date header line, rendered once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        second = int(time())
        if second != self._second:
            self._second = second
            self._line = b"date: %b\r\n" % formatdate(second, usegmt=True).encode()
        return self._line

    def value(self) -> bytes:
        return self.line()[len(b"date: ") : -len(b"\r\n")]


_date = _Date()
_plain = _Plain()


def fields(response: Response) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response over HTTP/2, without its status."""
    found = [(b"date", _date.value()), NOSNIFF]
    if response.status != HTTPStatus.NO_CONTENT:
        found.append((b"content-type", response.content_type))
        if response.live is None:
            found.append((b"content-length", b"%d" % len(response.body)))
    return found + list(response.headers)


def head(response: Response, keep: bool, *, http_1_0: bool = False) -> bytes:
    """Return the status line and headers, empty line included. `keep` tells the client whether the connection can be
    used again."""
    if (
        keep
        and not http_1_0
        and (not response.headers or type(response.headers) is Shared)
        and response.content_type is JSON
        and response.live is None
        and response.status != HTTPStatus.NO_CONTENT
    ):
        return _plain.form(response.status, response.headers) % len(response.body)
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

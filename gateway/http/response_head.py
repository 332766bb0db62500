"""The head of an HTTP/1.1 response, as bytes."""

from __future__ import annotations

from email.utils import formatdate
from functools import cache, lru_cache
from http import HTTPStatus
from time import time

from gateway.http.messages import JSON, Headers, Response, Shared

NOSNIFF = (b"x-content-type-options", b"nosniff")
"""Of every response: what others wrote is never a script or a page, whatever a browser takes it for."""


@cache
def _status_line(status: int) -> bytes:
    """The status line, and the header of every response."""
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode() + b"%b: %b\r\n" % NOSNIFF


@lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


@lru_cache(256)
def _plain(second: int, status: int, headers: Headers) -> bytes:
    """The head of a response that has only a body of JSON and `Shared` headers, with a place for the body's length."""
    lines = b"".join(b"%b: %b\r\n" % header for header in headers).replace(b"%", b"%%")
    first = b"%bdate: %b\r\ncontent-type: %b\r\n" % (_status_line(status), _date(second), JSON)
    return first + lines + b"content-length: %d\r\n\r\n"


def fields(response: Response) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response over HTTP/2, without its status."""
    found = [(b"date", _date(int(time()))), NOSNIFF]
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
        return _plain(int(time()), response.status, response.headers) % len(response.body)
    bodiless = response.status == HTTPStatus.NO_CONTENT
    parts = [_status_line(response.status), b"date: ", _date(int(time())), b"\r\n"]
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

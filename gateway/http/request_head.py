"""The head of an HTTP/1.1 request: from bytes to a value, without I/O.

llhttp parses. This module adds what llhttp leaves to its user: the framing of the body, and the refusal of forms that a
proxy in front might have read differently. Each refusal is a `400`, after which the connection must be closed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import httptools

from proto.model.errors import ErrorCode, TopicsError, invalid
from proto.model.limits import MAX_HEADER_BYTES, MAX_HEADER_COUNT

CHUNKED = -1
"""`Head.length` of a body in chunked framing."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
"""The first bytes of an HTTP/2 connection with prior knowledge; `SM\\r\\n\\r\\n` follows."""

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_OF_THE_CONNECTION = frozenset(
    {
        b"connection",
        b"content-length",
        b"transfer-encoding",
        b"te",
        b"trailer",
        b"upgrade",
        b"expect",
        b"http2-settings",
    }
    | {b"keep-alive", b"proxy-connection"}
)
_UNSERVED = b"PATCH"
"""A method that the parser knows and no operation serves."""


@dataclass(slots=True)
class Head:
    """A parsed head. `target` is the path in origin form, with its query. `length` is the body's in bytes or `CHUNKED`.
    `upgrade` is the protocol of the Upgrade header, in lower case, or b""."""

    method: str
    target: str
    headers: dict[bytes, bytes]
    length: int
    keep_alive: bool
    http_1_0: bool
    expects_continue: bool
    upgrade: bytes
    path: str = field(init=False)
    query: str = field(init=False)
    plan: Any = field(default=None, init=False, compare=False)
    """The API's result for requests with this head; see `gateway.http.known_heads`."""

    def __post_init__(self) -> None:
        self.path, _, self.query = self.target.partition("?")

    def plain(self) -> bytes:
        """Return the request as bytes that every parser reads the same: without a body, with `connection: close`."""
        lines = [f"{self.method} {self.target} HTTP/1.1".encode()]
        lines += [name + b": " + value for name, value in self.headers.items() if name not in _OF_THE_CONNECTION]
        if b"host" not in self.headers:
            lines.append(b"host: localhost")
        return b"\r\n".join([*lines, b"connection: close", b"", b""])


class _Fields:
    __slots__ = ("count", "headers", "hosts", "target")

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.count = 0
        self.hosts = 0

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.count += 1
        headers = self.headers
        if name in headers:
            if name == b"host":
                self.hosts += 1
            value = headers[name] + b", " + value
        headers[name] = value.rstrip(b" \t")


def headers_too_large() -> TopicsError:
    return TopicsError(
        ErrorCode.HEADERS_TOO_LARGE,
        f"a request's head may have {MAX_HEADER_BYTES} bytes and {MAX_HEADER_COUNT} headers",
        {"max_header_bytes": MAX_HEADER_BYTES, "max_header_count": MAX_HEADER_COUNT},
    )


def check_beginning(data: bytes) -> None:
    """Refuse at once bytes that cannot begin a head, so that the client need not wait for a timeout. Raises `400` and
    `431`."""
    if len(data) > MAX_HEADER_BYTES:
        raise headers_too_large()
    if not data[:1].isalpha():
        raise invalid("malformed HTTP request: it must begin with a method; this port speaks plain HTTP, not TLS")
    if data.count(b"\n") != data.count(b"\r\n"):
        raise invalid("malformed HTTP request: lines must end in CR LF")


def parse(raw: bytes) -> Head:
    """Parse a whole head, its empty line included. Raises `TopicsError` with 400 or 431."""
    if len(raw) > MAX_HEADER_BYTES:
        raise headers_too_large()
    lines = raw.count(b"\r\n")
    if raw.count(b"\n") != lines or raw.count(b"\r") != lines:
        raise invalid("malformed HTTP request: lines must end in CR LF, and neither may stand alone")
    fields = _Fields()
    parser = httptools.HttpRequestParser(fields)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserInvalidMethodError:
        name, _, rest = raw.partition(b" ")
        if _TOKEN.fullmatch(name) is None:
            raise invalid("malformed HTTP request: bad method") from None
        # The parser knows a fixed list of methods. Framing is the same for all others, and routing refuses them later
        # with the methods that the path allows.
        head = parse(_UNSERVED + b" " + rest)
        head.method = name.decode()
        return head
    except httptools.HttpParserError as error:
        raise invalid(f"malformed HTTP request: {error}") from None
    if fields.count > MAX_HEADER_COUNT:
        raise headers_too_large()
    return _checked(fields, parser.get_method().decode(), parser.get_http_version())


def _checked(fields: _Fields, method: str, version: str) -> Head:
    headers = fields.headers
    if version == "1.1":
        if b"host" not in headers or fields.hosts:
            raise invalid("malformed HTTP request: it must have exactly one Host header")
    elif version != "1.0":
        raise invalid(f"HTTP/{version} is not spoken here; use HTTP/1.1, or HTTP/2 with prior knowledge")
    connection = headers.get(b"connection", b"").lower()
    options = [option.strip() for option in connection.split(b",")] if connection else []
    keep_alive = b"close" not in options and (version == "1.1" or b"keep-alive" in options)
    return Head(
        method,
        origin_form(fields.target),
        headers,
        _length(headers, version),
        keep_alive,
        version == "1.0",
        version == "1.1" and headers.get(b"expect", b"").lower() == b"100-continue",
        headers.get(b"upgrade", b"").lower() if b"upgrade" in options else b"",
    )


def _length(headers: dict[bytes, bytes], version: str) -> int:
    coding = headers.get(b"transfer-encoding")
    length = headers.get(b"content-length")
    if coding is not None:
        if length is not None or version == "1.0" or coding.lower() != b"chunked":
            raise invalid("malformed HTTP request: Transfer-Encoding must be chunked, and without Content-Length")
        return CHUNKED
    if length is None:
        return 0
    if not length.isdigit() or len(length) > 19:
        raise invalid("malformed HTTP request: Content-Length must be one number")
    return int(length)


def origin_form(target: bytes) -> str:
    """The path and query of a request's target. Raises `400`."""
    if target[:1] != b"/":
        scheme, colon, rest = target.partition(b"://")
        if not colon or scheme.lower() not in (b"http", b"https"):
            raise invalid("malformed HTTP request: the target must be a path")
        cut = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
        target = rest[cut:] if rest[cut : cut + 1] == b"/" else b"/" + rest[cut:]
    if b"#" in target:
        raise invalid("malformed HTTP request: a fragment never belongs to a request; write # as %23")
    try:
        return target.decode("ascii")
    except UnicodeDecodeError:
        raise invalid("malformed HTTP request: the target must be ASCII; percent-encode the rest") from None

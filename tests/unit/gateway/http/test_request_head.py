"""Claims about the heads of HTTP/1.1 requests."""

import pytest

from gateway.http.request_head import CHUNKED, parse
from proto.model.errors import ErrorCode, TopicsError


def test_a_plain_head() -> None:
    head = parse(
        b"PUT /v0/topics/a?b=c HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\nX-One: a\r\nx-one: b \r\nE:\r\n\r\n"
    )
    assert (head.method, head.target, head.length) == ("PUT", "/v0/topics/a?b=c", 12)
    assert head.headers[b"x-one"] == b"a, b"
    assert head.headers[b"e"] == b""
    assert head.keep_alive
    assert not head.http_1_0


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        ("1.1", "", True),
        ("1.1", "Close", False),
        ("1.1", "x, close", False),
        ("1.0", "", False),
        ("1.0", "Keep-Alive", True),
        ("1.0", "keep-alive, close", False),
    ],
)
def test_whether_a_connection_is_kept(version: str, connection: str, kept: bool) -> None:
    line = f"Connection: {connection}\r\n" if connection else ""
    assert parse(f"GET / HTTP/{version}\r\nHost: h\r\n{line}\r\n".encode()).keep_alive is kept


def test_absolute_targets_become_paths() -> None:
    for target, path in (("http://h/a?b", "/a?b"), ("HTTP://h:1", "/"), ("http://h?x", "/?x")):
        assert parse(f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode()).target == path


def test_chunked_is_recognised_in_any_case() -> None:
    assert parse(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n").length == CHUNKED


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.9\r\nHost: h\r\n\r\n",
        b"G@T / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /\xc3\xa4 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET a HTTP/1.1\r\nHost: h\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1, 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1_0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\n\r\n",
        b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA: b\nC: d\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA: b\rC: d\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA: \0\r\n\r\n",
    ],
)
def test_bad_heads_are_400(raw: bytes) -> None:
    with pytest.raises(TopicsError) as caught:
        parse(raw)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("method", ["FROB", "frob", "get", "X" * 200, "A!b"])
def test_a_method_that_the_parser_does_not_know_is_for_its_path_to_refuse(method: str) -> None:
    head = parse(f"{method} /a?b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n".encode())
    assert (head.method, head.target, head.length, head.keep_alive) == (method, "/a?b", 3, True)
    for bad in (f"{method} a HTTP/1.1\r\nHost: h", f"{method} /a HTTP/1.1", f"{method}"):
        with pytest.raises(TopicsError) as caught:
            parse(f"{bad}\r\n\r\n".encode())
        assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_too_many_headers_are_431() -> None:
    for lines in (b"A: b\r\n" * 101, b"A: " + b"x" * 70_000 + b"\r\n"):
        with pytest.raises(TopicsError) as caught:
            parse(b"GET / HTTP/1.1\r\nHost: h\r\n" + lines + b"\r\n")
        assert caught.value.code is ErrorCode.HEADERS_TOO_LARGE

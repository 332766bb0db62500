"""The head of a response, as bytes over HTTP/1.1 and as fields over HTTP/2."""

from __future__ import annotations

import re

import pytest

from gateway.http import response_head
from gateway.http.messages import Gone, Response, Shared, Write


async def live(write: Write, gone: Gone) -> bool:
    return True


def parsed(response: Response, keep: bool = True, **options: bool) -> tuple[bytes, dict[bytes, bytes]]:
    raw = response_head.head(response, keep, **options)
    assert raw.endswith(b"\r\n\r\n")
    line, *fields = raw[:-4].split(b"\r\n")
    found = dict(field.split(b": ", 1) for field in fields)
    assert len(found) == len(fields), "a header twice"
    assert re.fullmatch(rb"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", found.pop(b"date"))
    assert found.pop(b"x-content-type-options") == b"nosniff"
    return line, found


@pytest.mark.parametrize("content_type", [b"application/json", b"text/plain"])
def test_a_body_has_its_type_and_its_length(content_type: bytes) -> None:
    line, fields = parsed(Response(200, b"12345", content_type))
    assert line == b"HTTP/1.1 200 OK"
    assert fields == {b"content-type": content_type, b"content-length": b"5"}


def test_the_fast_form_has_the_length_of_each_body() -> None:
    for size in (0, 1, 70_000):
        assert parsed(Response(201, b"x" * size))[1][b"content-length"] == b"%d" % size


def test_a_connection_that_ends_says_so() -> None:
    assert parsed(Response(404, b"{}"), keep=False)[1][b"connection"] == b"close"
    assert b"connection" not in parsed(Response(404, b"{}"))[1]
    assert parsed(Response(200, b"{}"), http_1_0=True)[1][b"connection"] == b"keep-alive"


def test_without_content_there_is_no_header_about_one() -> None:
    line, fields = parsed(Response(204))
    assert line == b"HTTP/1.1 204 No Content"
    assert fields == {}


def test_a_stream_is_chunked_where_the_client_knows_that() -> None:
    stream = Response(200, content_type=b"text/event-stream", live=live)
    assert parsed(stream)[1] == {
        b"content-type": b"text/event-stream",
        b"transfer-encoding": b"chunked",
        b"connection": b"keep-alive",
    }
    assert parsed(stream, keep=False, http_1_0=True)[1] == {
        b"content-type": b"text/event-stream",
        b"connection": b"close",
    }


def test_headers_of_a_response_come_too() -> None:
    _, fields = parsed(Response(200, b"{}", headers=((b"vary", b"Accept-Encoding"),)))
    assert fields[b"vary"] == b"Accept-Encoding"


def test_shared_headers_come_with_each_body_and_status_as_they_are() -> None:
    """A URL may hold what a form has for its places."""
    for holder, status, body in ((b"http://a%d%%b", 200, b"12345"), (b"http://c", 200, b""), (b"http://c", 201, b"1")):
        shared = Shared([(b"topics-holder", holder)])
        line, fields = parsed(Response(status, body, headers=shared))
        assert line.split()[1] == b"%d" % status
        assert (fields[b"topics-holder"], fields[b"content-length"]) == (holder, b"%d" % len(body))
    assert b"topics-holder" not in parsed(Response(200, b"12345"))[1]


@pytest.mark.parametrize(
    "response",
    [
        Response(200, b"{}"),
        Response(204),
        Response(200, live=live),
        Response(429, b"", headers=((b"retry-after", b"1"),)),
        Response(200, b"{}", headers=Shared([(b"topics-holder", b"http://a"), (b"vary", b"Accept-Encoding")])),
        Response(204, headers=Shared([(b"topics-holder", b"http://a")])),
    ],
)
def test_both_versions_say_the_same(response: Response) -> None:
    _, first = parsed(response)
    second = dict(response_head.fields(response))
    del second[b"date"], second[b"x-content-type-options"]
    for name in (b"transfer-encoding", b"connection"):  # of HTTP/1.1 only
        first.pop(name, None)
    assert first == second

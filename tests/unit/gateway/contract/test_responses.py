"""JSON responses: the canonical error, and `performance` as the last member."""

from __future__ import annotations

import json
from time import perf_counter

import pytest

from gateway.contract import responses
from proto.model.errors import ErrorCode, TopicsError


@pytest.mark.parametrize("body", [b"{}", b'{"a":1}', b'{"a":{}}'])
def test_performance_is_the_last_member_of_any_object(body: bytes) -> None:
    timed = responses.timed(body, perf_counter(), {"wal_append_ms": 1.25, "records_scanned": 12345678})
    assert timed.endswith(b"}\n")
    content = json.loads(timed)
    assert list(content)[-1] == "performance"
    found = content.pop("performance")
    assert content == json.loads(body)
    assert list(found) == ["server_total_ms", "wal_append_ms", "records_scanned"]
    assert (found["wal_append_ms"], found["records_scanned"]) == (1.25, 12345678)
    assert b'"records_scanned":12345678}' in timed, "what is no duration is written as it is"


def test_percent_signs_in_a_body_are_text() -> None:
    timed = responses.timed(b'{"a":"100%d %s"}', perf_counter(), {"wal_append_ms": 1.0})
    assert json.loads(timed)["a"] == "100%d %s"


@pytest.mark.parametrize(("retry_after_ms", "seconds"), [(0, b"1"), (1, b"1"), (1000, b"1"), (1001, b"2")])
def test_a_pause_is_told_in_whole_seconds_and_never_as_none(retry_after_ms: int, seconds: bytes) -> None:
    error = TopicsError(ErrorCode.THROTTLED, "later", retry_after_ms=retry_after_ms)
    assert dict(responses.failure(error, None).headers) == {b"retry-after": seconds}


def test_headers_of_an_error_say_what_to_do() -> None:
    error = TopicsError(ErrorCode.UNAUTHORIZED, "no key")
    assert dict(responses.failure(error, None).headers) == {b"www-authenticate": b'Bearer realm="topics"'}
    error = TopicsError(ErrorCode.METHOD_NOT_ALLOWED, "not so", {"allow": ["GET", "PUT"]})
    assert dict(responses.failure(error, None).headers) == {b"allow": b"GET, PUT"}


def test_a_probe_is_a_line_of_json() -> None:
    response = responses.plain({"status": "ok"})
    assert (response.status, response.body) == (200, b'{"status":"ok"}\n')

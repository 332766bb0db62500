"""The comparison of two services' answers: what it leaves out, and what it does not."""

from __future__ import annotations

import json

from gateway.http.gzip_coding import SMALLEST_ANSWER
from tests.fuzz.conversations import Answer, answers, without


def answer(data: str, duration: int, *headers: bytes) -> Answer:
    body = json.dumps({"data": data, "performance": {"us": duration}}).encode()
    head = b"\r\n".join([b"HTTP/1.1 200 OK", b"content-length: %d" % len(body), *headers])
    [found], whole = answers(head + b"\r\n\r\n" + body, [b"GET"])
    assert whole
    return found


def test_whether_an_answer_near_the_threshold_may_be_compressed_is_left_out() -> None:
    for size in range(650, 1400):
        plain, varied = answer("x" * size, 1), answer("x" * size, 10**6)
        with_header = answer("x" * size, 1, b"vary: Accept-Encoding")
        assert plain == varied
        assert (answer("x" * size, 10**6, b"vary: Accept-Encoding") == plain) == (with_header == plain)


def test_the_times_of_many_records_do_not_hide_how_long_an_answer_is() -> None:
    records = [{"$ts": 1795415313436, "data": "x" * 15}] * 16
    body = json.dumps({"records": records, "performance": {"us": "1" * 260}}, separators=(",", ":")).encode()
    head = b"HTTP/1.1 200 OK\r\nvary: Accept-Encoding\r\ncontent-length: %d\r\n\r\n" % len(body)
    [found], _ = answers(head + body, [b"GET"])
    assert 0 < len(body) - SMALLEST_ANSWER < 100
    assert found.headers == ()


def test_far_from_the_threshold_it_is_compared() -> None:
    for size in (100, 2000):
        assert answer("x" * size, 1) != answer("x" * size, 1, b"vary: Accept-Encoding")


def test_members_can_be_left_out() -> None:
    assert without({"a": [{"b": 1, "c": 2}], "b": 3}, "b") == {"a": [{"c": 2}]}

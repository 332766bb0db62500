"""Claims about the bar of takeovers: two machines that answer at a time are found, and its bucket does what it says."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

import pytest

from tests.history.takeovers import Reply, answers_out_of_term
from tests.support.bad_bucket import BadBucket
from tests.support.service import until

TERMS = ["one", "two", "one"]


def test_answers_in_the_order_of_terms_are_allowed() -> None:
    replies = [Reply(0, 1, "one"), Reply(2, 3, "two"), Reply(2, 9, "one"), Reply(4, 5, "one"), Reply(6, 7, "one")]
    assert answers_out_of_term(replies, TERMS) == []


def test_an_answer_may_be_as_old_as_its_request() -> None:
    assert answers_out_of_term([Reply(0, 9, "one"), Reply(1, 2, "two"), Reply(3, 4, "two")], ["one", "two"]) == []


def test_two_machines_that_answer_at_a_time_are_found() -> None:
    replies = [Reply(0, 1, "one"), Reply(2, 3, "two"), Reply(4, 5, "one")]
    assert len(answers_out_of_term(replies, ["one", "two"])) == 1
    assert len(answers_out_of_term([*replies, Reply(6, 7, "two")], TERMS)) == 1


class _Store(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    done: list[str]

    def do_PUT(self) -> None:
        self.done.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def bucket(done: list[str]) -> Iterator[BadBucket]:
    """In front of a store that notes in `done` what it was sent."""
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Store", (_Store,), {"done": done})) as store:
        thread = threading.Thread(target=store.serve_forever)
        thread.start()
        proxy = BadBucket("127.0.0.1", store.server_port, Random(7), 0.0, 0.01)
        yield proxy
        proxy.close()
        store.shutdown()
        thread.join()


def put(bucket: BadBucket, body: str, *, create: bool = True) -> int:
    """The status of the answer; 0 if there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", bucket.server_port, timeout=30)
    try:
        connection.request("PUT", "/a", body, {"If-None-Match": "*"} if create else {})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def test_a_good_bucket_passes_everything(bucket: BadBucket, done: list[str]) -> None:
    assert [put(bucket, "1"), put(bucket, "2", create=False)] == [200, 200]
    assert done == ["1", "2"]


def test_an_answer_that_refuses_does_not_tell_whether_a_write_was_done(bucket: BadBucket, done: list[str]) -> None:
    bucket.share = 1.0
    told = {str(n): put(bucket, str(n)) for n in range(200)}
    assert set(told.values()) == {0, 200, 409, 412, 429, 503}
    for status in (409, 503):
        assert {str(n) in done for n in range(200) if told[str(n)] == status} == {True, False}
    assert all(n in done for n, status in told.items() if status in (0, 200, 412))
    assert len(done) == len(set(done))


def test_only_conditional_writes_conflict(bucket: BadBucket) -> None:
    bucket.share = 1.0
    assert {put(bucket, str(n), create=False) for n in range(100)} == {0, 200, 429, 503}


def test_a_machine_whose_requests_do_not_arrive_waits_and_some_are_done_later(
    bucket: BadBucket, done: list[str]
) -> None:
    bucket.cut("deaf")
    found: dict[str, int] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: put(bucket, n)})) for n in map(str, range(20))]
    for each in threads:
        each.start()
    until(lambda: bucket.counts["deaf"] == 20, "all requests to be under way")
    assert (found, done) == ({}, [])
    bucket.mend()
    for each in threads:
        each.join()
    assert 0 < len(done) < 20
    assert {n for n, status in found.items() if status == 200} == set(done)


def test_a_machine_whose_answers_do_not_arrive_has_written(bucket: BadBucket, done: list[str]) -> None:
    bucket.cut("mute")
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(put(bucket, "1")))
    thread.start()
    until(lambda: bucket.counts["mute"], "the answer to be on its way")
    assert (found, done) == ([], ["1"])
    bucket.mend()
    thread.join()
    assert found == [0]

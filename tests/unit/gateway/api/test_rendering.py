"""What was answered as an HTTP response."""

from __future__ import annotations

import gzip
import json
from time import perf_counter

import pytest

from gateway.admission.body_budget import Budget
from gateway.api import rendering
from gateway.http.messages import Request, Response
from proto.ipc.message import Reply
from proto.model.errors import ErrorCode, TopicsError, not_ready


class Asked(Request):
    def __init__(self, **headers: bytes) -> None:
        super().__init__("GET", "/", "", {name.replace("_", "-").encode(): v for name, v in headers.items()}, BUDGET)

    async def has_body(self) -> bool:
        return False

    async def body(self) -> bytes:
        return b""

    async def disconnected(self) -> None:
        raise NotImplementedError


BUDGET = Budget(1 << 20)


@pytest.mark.parametrize(("created", "status"), [(True, 201), (False, 200)])
def test_a_reply_is_201_when_something_was_created(created: bool, status: int) -> None:
    response = rendering.rendered(Reply(1, b'{"seq":1}', created, {"wal_append_ms": 0.25}), perf_counter())
    assert response.status == status
    content = json.loads(response.body)
    assert content.pop("performance")["wal_append_ms"] == 0.25
    assert content == {"seq": 1}
    assert response.figures == {"wal_append_ms": 0.25}


def test_a_reply_with_an_error_is_the_error() -> None:
    error = TopicsError(ErrorCode.TOPIC_NOT_FOUND, "no topic", {"topic": "a"})
    response = rendering.rendered(Reply(1, error=error), perf_counter())
    assert response.status == 404
    assert json.loads(response.body)["error"] == {
        "code": "topic_not_found",
        "message": "no topic",
        "detail": {"topic": "a"},
    }


def test_a_response_stays_as_it_is() -> None:
    response = Response(204)
    assert rendering.rendered(response, 0.0) is response


def test_an_error_before_a_route_was_found_has_no_performance() -> None:
    response = rendering.failed(not_ready("not yet"), None, Asked(), perf_counter())
    assert "performance" not in json.loads(response.body)
    assert dict(response.headers)[b"retry-after"]


@pytest.mark.parametrize("coding", [b"gzip", b"br;q=1, gzip;q=0.5", b"*"])
async def test_a_client_that_reads_gzip_gets_it(coding: bytes) -> None:
    response = Response(200, b"x" * 10_000)
    request = Asked(accept_encoding=coding)
    await rendering.compress(response, request)
    assert gzip.decompress(response.body) == b"x" * 10_000
    assert dict(response.headers) == {b"vary": b"Accept-Encoding", b"content-encoding": b"gzip"}
    request.finish()


@pytest.mark.parametrize("coding", [b"", b"identity", b"gzip;q=0"])
async def test_other_clients_get_the_bytes_and_caches_are_told_what_decided(coding: bytes) -> None:
    response = Response(200, b"x" * 10_000)
    request = Asked(accept_encoding=coding)
    await rendering.compress(response, request)
    assert response.body == b"x" * 10_000
    assert dict(response.headers) == {b"vary": b"Accept-Encoding"}
    request.finish()

"""Claims about the HTTP API of the real service, as a client sees it."""

from __future__ import annotations

import gzip
import http.client
import json
import threading
import time
from typing import Any

import pytest

from proto.model.names import shard_of
from tests.support.service import Service, until


def raw(service: Service, method: str, path: str, body: bytes | None = None, **headers: str) -> Any:
    """Send one request exactly as given; return status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def test_a_topic_through_its_whole_life(shared: Service) -> None:
    status, created = shared.request("PUT", "/v0/topics/life", {"durability": "fsync", "priority": 3})
    assert (status, created["created"]) == (201, True)
    assert created["config"]["durable"] is True
    assert created["performance"]["server_total_ms"] >= 0
    assert shared.request("PUT", "/v0/topics/life", {})[0] == 200
    status, written = shared.request("POST", "/v0/topics/life", {"records": [{"data": 1}, {"data": {"a": [2]}}]})
    assert status == 200
    assert (written["seqs"], written["head_seq"], written["created"], written["deduped"]) == ([1, 2], 2, False, False)
    assert written["performance"]["fsync_ms"] > 0
    status, state = shared.request("GET", "/v0/topics/life")
    assert (status, state["count"], state["next_seq"], state["config"]["priority"]) == (200, 2, 3, 3)
    status, read = shared.request("POST", "/v0/topics/life/diff", {"from_seq": 0})
    assert [r["data"] for r in read["records"]] == [1, {"a": [2]}]
    assert (read["caught_up"], read["lag"], read["tombstone"]) == (True, 0, None)
    assert read["performance"]["records_scanned"] == 2
    status, refused = shared.request("DELETE", "/v0/topics/life?if_empty=true")
    assert (status, refused["error"]["code"]) == (409, "topic_not_empty")
    status, gone = shared.request("DELETE", "/v0/topics/life")
    assert (status, gone["deleted"], gone["routers_removed"]) == (200, True, [])
    assert shared.request("DELETE", "/v0/topics/life")[1]["deleted"] is False
    assert shared.request("GET", "/v0/topics/life")[0] == 404


def test_the_first_write_creates_with_201_and_return_seqs_is_obeyed(shared: Service) -> None:
    status, written = shared.request("POST", "/v0/topics/lazy?return_seqs=false", {"records": [{"data": None}]})
    assert (status, written["created"]) == (201, True)
    assert "seqs" not in written
    assert written["performance"]["fsync_ms"] == 0.0
    status, error = shared.request("POST", "/v0/topics/lazy:not", {"records": [{"data": 1}], "create": False})
    assert (status, error["error"]["code"], error["error"]["detail"]) == (404, "topic_not_found", {"topic": "lazy:not"})


def test_lists_are_sorted_over_all_shards_page_by_page(shared: Service) -> None:
    names = sorted(f"page:{i:02d}" for i in range(25))
    assert {shard_of(name, 2) for name in names} == {0, 1}
    for name in names:
        shared.request("PUT", f"/v0/topics/{name}", {})
    found: list[str] = []
    path = "/v0/topics?prefix=page:&page_size=7"
    pages = 0
    while True:
        status, page = shared.request("GET", path)
        assert status == 200
        found += [entry["topic"] for entry in page["topics"]]
        pages += 1
        if "next_cursor" not in page:
            break
        path = f"/v0/topics?prefix=page:&page_size=7&cursor={page['next_cursor']}"
    assert (found, pages) == (names, 4)
    assert shared.request("GET", "/v0/topics?cursor=%%%")[0] == 400
    assert shared.request("GET", "/v0/topics?cursor=AAAA")[1]["error"]["code"] == "invalid_request"


def test_the_cursors_of_all_topics_are_one_list_over_all_shards(shared: Service) -> None:
    names = sorted(f"read:{i:02d}" for i in range(9))
    assert {shard_of(name, 2) for name in names} == {0, 1}
    for name in names:
        shared.request("POST", f"/v0/topics/{name}", {"records": [{"data": n} for n in range(5)]})
        for cursor in ("one", "two"):
            shared.request("PUT", f"/v0/topics/{name}/cursors/{cursor}", {"seq": len(cursor) - 1})
    found: list[tuple[str, str, int]] = []
    cursor = ""
    while True:
        status, page = shared.request("GET", f"/v0/cursors?prefix=read:&page_size=5&cursor={cursor}")
        assert status == 200
        found += [(each["topic"], each["cursor"], each["lag"]) for each in page["cursors"]]
        cursor = page.get("next_cursor", "")
        if not cursor:
            break
    assert found == [(name, cursor, 3) for name in names for cursor in ("one", "two")]
    assert shared.request("GET", "/v0/cursors?cursor=AAAA")[1]["error"]["code"] == "invalid_request"
    other = shared.request("GET", "/v0/topics?prefix=read:&page_size=1")[1]["next_cursor"]
    assert shared.request("GET", f"/v0/cursors?cursor={other}")[0] == 400, "the place in another list"


def test_a_long_poll_ends_when_a_record_comes(shared: Service) -> None:
    shared.request("PUT", "/v0/topics/poll", {})
    answers: list[Any] = []

    def poll() -> None:
        answers.append(shared.request("POST", "/v0/topics/poll/diff", {"from_seq": 0, "wait_ms": 20_000}))

    reader = threading.Thread(target=poll)
    reader.start()
    _wait_for_parked(shared, 1)
    shared.request("POST", "/v0/topics/poll", {"records": [{"data": "now"}]})
    reader.join(10)
    assert answers[0][0] == 200
    assert [r["data"] for r in answers[0][1]["records"]] == ["now"]


def test_a_long_poll_ends_by_itself(shared: Service) -> None:
    shared.request("PUT", "/v0/topics/quiet", {})
    begun = time.monotonic()
    status, answer = shared.request("POST", "/v0/topics/quiet/diff", {"from_seq": 0, "wait_ms": 200})
    assert (status, answer["records"], answer["caught_up"]) == (200, [], True)
    assert time.monotonic() - begun >= 0.2


def test_a_long_poll_on_a_deleted_topic_is_404(shared: Service) -> None:
    shared.request("PUT", "/v0/topics/doomed", {})
    answers: list[Any] = []

    def poll() -> None:
        answers.append(shared.request("POST", "/v0/topics/doomed/diff", {"from_seq": 0, "wait_ms": 20_000}))

    reader = threading.Thread(target=poll)
    reader.start()
    _wait_for_parked(shared, 1)
    shared.request("DELETE", "/v0/topics/doomed")
    reader.join(10)
    assert (answers[0][0], answers[0][1]["error"]["code"]) == (404, "topic_not_found")


def test_a_client_that_leaves_its_long_poll_frees_it(shared: Service) -> None:
    shared.request("PUT", "/v0/topics/left", {})
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=10)
    body = json.dumps({"from_seq": 0, "wait_ms": 30_000}).encode()
    connection.request("POST", "/v0/topics/left/diff", body, {"Content-Type": "application/json"})
    _wait_for_parked(shared, 1)
    connection.close()
    _wait_for_parked(shared, 0)


def _wait_for_parked(service: Service, count: int) -> None:
    """Wait until that many requests are in flight, not counting the one that asks."""
    service._until(lambda: _in_flight(service) == count + 1, f"{count} parked reads", 10)


def _in_flight(service: Service) -> int:
    _, _, body = raw(service, "GET", "/v0/metrics")
    lines = body.decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("topics_http_requests_in_flight")))


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v0/nothing", 404, "not_found"),
        ("GET", "/nothing/at/all", 404, "not_found"),
        ("GET", "/v1/topics", 404, "not_found"),
        ("PATCH", "/v0/topics/a", 405, "method_not_allowed"),
        ("POST", "/v0/topics", 405, "method_not_allowed"),
        ("GET", "/v0/topics/a/diff", 405, "method_not_allowed"),
        ("POST", "/v0/health", 405, "method_not_allowed"),
        ("GET", "/v0/topics/never", 404, "topic_not_found"),
    ],
)
def test_what_does_not_exist_has_the_canonical_error(
    shared: Service, method: str, path: str, status: int, code: str
) -> None:
    found, headers, body = raw(shared, method, path)
    error = json.loads(body)["error"]
    assert (found, error["code"]) == (status, code)
    assert headers["Content-Type"].startswith("application/json")
    assert isinstance(error["message"], str)
    if status == 405:
        assert headers["Allow"]


def test_a_body_needs_its_content_type(shared: Service) -> None:
    body = b'{"records":[{"data":1}]}'
    for content_type in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
        status, _, answer = raw(shared, "POST", "/v0/topics/typed", body, **content_type)
        assert (status, json.loads(answer)["error"]["code"]) == (415, "unsupported_media_type")
    good = {"Content-Type": "Application/JSON; charset=UTF-8"}
    assert raw(shared, "POST", "/v0/topics/typed", body, **good)[0] == 201


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_liveness(shared: Service, path: str) -> None:
    status, body = shared.request("GET", path)
    assert (status, body["status"], set(body)) == (200, "ok", {"status", "version", "uptime_ms"})


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_readiness(shared: Service, path: str) -> None:
    status, body = shared.request("GET", path)
    assert (status, body["status"], body["wal_replay_complete"]) == (200, "ready", True)
    # Of several gateways, one hears of topics that another one has made with the shard's next packet.
    there = len(shared.request("GET", "/v0/topics?page_size=1000")[1]["topics"])
    until(lambda: shared.request("GET", path)[1]["topics"] == there, "the number of topics")


def test_metrics_in_both_forms(shared: Service) -> None:
    shared.request("POST", "/v0/topics/measured", {"records": [{"data": 1}] * 5, "config": {"durability": "fsync"}})
    status, headers, body = raw(shared, "GET", "/v0/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    text = body.decode()
    assert 'topics_topic_head_seq{topic="measured"} 5' in text
    for name in (
        "topics_ready 1",
        "topics_wal_fsyncs_total",
        "topics_wal_fsync_latency_us_bucket",
        "topics_wal_read_only",
    ):
        assert name in text
    status, headers, body = raw(shared, "GET", "/metrics", Accept="application/json")
    assert headers["Content-Type"].startswith("application/json")
    json.loads(body)


def test_every_json_answer_ends_with_a_newline(shared: Service) -> None:
    json_body = {"Content-Type": "application/json"}
    many = json.dumps({"records": [{"data": "x" * 100}] * 100}).encode()
    asked: list[tuple[str, str, bytes | None]] = [
        ("PUT", "/v0/topics/lines", b"{}"),
        ("POST", "/v0/topics/lines", many),
        ("GET", "/v0/topics/lines", None),
        ("GET", "/v0/topics", None),
        ("POST", "/v0/topics/lines/diff", b'{"from_seq":0}'),
        ("PUT", "/v0/topics/lines/cursors/c", b'{"seq":1}'),
        ("GET", "/v0/topics/lines/cursors", None),
        ("PUT", "/v0/routers/lines", b'{"source":"lines","dest":"lines-too"}'),
        ("GET", "/v0/routers", None),
        ("DELETE", "/v0/routers/lines", None),
        ("POST", "/v0/watch", b'{"topics":{"lines":{}}}'),
        ("DELETE", "/v0/topics/lines", None),
        ("GET", "/v0/health", None),
        ("GET", "/v0/ready", None),
        ("GET", "/v0/openapi.json", None),
        ("GET", "/v0/topics/lines", None),  # 404
        ("GET", "/nowhere", None),  # 404, of no operation
        ("PATCH", "/v0/topics/lines", None),  # 405
        ("POST", "/v0/topics/lines", b"{"),  # 400
    ]
    for method, path, body in asked:
        for more in ({}, {"Accept-Encoding": "gzip"}):
            _, headers, answer = raw(shared, method, path, body, **(json_body if body else {}), **more)
            assert int(headers["Content-Length"]) == len(answer)
            if headers["Content-Encoding"] == "gzip":
                answer = gzip.decompress(answer)
            assert answer.endswith(b"}\n"), (method, path, answer[-20:])
            json.loads(answer)
    _, _, metrics = raw(shared, "GET", "/v0/metrics", Accept="application/json")
    assert metrics.endswith(b"}\n")

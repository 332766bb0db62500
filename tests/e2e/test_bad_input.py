"""Claims about invalid input of every kind: the response is the contract's error, and no state changes."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.service import Service
from tests.support.sse import encoded

GOOD = b'{"records":[{"data":"good"}]}'


@pytest.fixture
def unharmed(shared: Service) -> Iterator[Service]:
    """The service, which must be in the same state afterwards and serve the next request."""
    shared.request("PUT", "/v0/topics/kept", {})
    shared.request("POST", "/v0/topics/kept", {"records": [{"data": 1}]})
    before = _state(shared)
    pids = shared.pids()
    yield shared
    assert _state(shared) == before
    assert shared.pids() == pids, "a process died"
    status, _ = shared.request("POST", "/v0/topics/after", {"records": [{"data": 1}]})
    assert status in (200, 201)
    assert shared.request("DELETE", "/v0/topics/after")[0] == 200


def _state(service: Service) -> Any:
    answer = service.request("GET", "/v0/topics?page_size=1000")[1]
    kept = service.request("GET", "/v0/topics/kept")[1]
    head = max(kept["head_seq"] - 100, 0)
    records = service.request("POST", "/v0/topics/kept/diff", {"from_seq": head, "include_tags": True})[1]["records"]
    topics = [(t["topic"], t["head_seq"], t["earliest_seq"], t["count"], t["bytes"]) for t in answer["topics"]]
    return topics, kept["config"], kept["next_seq"], records


def exchange(service: Service, request: bytes, *, half_close: bool = False) -> tuple[int, Any, bytes]:
    """Send bytes unchanged; return the status, the decoded body and all bytes received until the end."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
        connection.sendall(request)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
            head, _, body = received.partition(b"\r\n\r\n")
            length = next(
                (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), None
            )
            if length is not None and len(body) >= length:
                break
        head, _, body = received.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        return status, json.loads(body[: length or 0]), received


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    if not any(header.lower().startswith(("content-length", "transfer-encoding")) for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize("topic", ["kept", "fresh"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"data":1}',
        b'{"records":',
        b"{",
        b'{"records":[{"data":NaN}]}',
        b'{"records":[{"data":-Infinity}]}',
        b'{"records":[{"data":"\\ud80"}]}',
        b'{"records":[{"data":"\\udfff\\ud80x"}]}',
        b'{"records":[{"data":1,"tag":"\\ud800"}]}',
        b'{"records":[{"data":1,"node":"\\udfffx"}]}',
        b'{"records":[{"data":1}],"idempotency_key":"\\ud800\\ud800"}',
        b'{"records":[{"data":"\xed\xa0\x80"}]}',
        b'{"records":[{"data":"\xff"}]}',
        b'{"records":[{"data":1,"tag":7}]}',
        b'{"records":"x"}',
        b'{"records":[7]}',
        b"[]",
        b"null",
        b'"x"',
        b'{"records":[{"tag":"no data"}]}',
        b'{"records":[{"data":1,"meta":[]}]}',
        b'{"records":[{"data":' + b"[" * 20_000 + b"]" * 20_000 + b"}]}",
    ],
)
def test_a_bad_write_is_400(unharmed: Service, topic: str, body: bytes) -> None:
    status, answer, _ = exchange(unharmed, post(f"/v0/topics/{topic}", body))
    assert (status, answer["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v0/topics/kept/diff", b'{"from_seq":-1}'),
        ("/v0/topics/kept/diff", b'{"from_seq":0.5}'),
        ("/v0/topics/kept/diff", b'{"limit":1e2}'),
        ("/v0/topics/kept/diff", b'{"limit":"-5"}'),
        ("/v0/topics/kept/diff", b'{"wait_ms":"5"}'),
        ("/v0/topics/kept/diff", b'{"node":[1]}'),
        ("/v0/topics/kept/diff", b'{"from_seq":'),
    ],
)
def test_a_bad_read_is_400(unharmed: Service, path: str, body: bytes) -> None:
    status, answer, _ = exchange(unharmed, post(path, body))
    assert (status, answer["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("topic", ["kept", "fresh"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"ttl_ms":-1}',
        b'{"ttl_ms":1.5}',
        b'{"cap_records":1e3}',
        b'{"cap_bytes":"1"}',
        b'{"cap_records":18446744073709551616}',
        b'{"priority":0.5}',
        b'{"durability":"forever"}',
        b'{"durable":1}',
        b'{"discard":null,"type":"stack"}',
        b'{"ttl_ms":5',
        b"[]",
        b"NaN",
    ],
)
def test_a_bad_configuration_is_400(unharmed: Service, topic: str, body: bytes) -> None:
    request = post(f"/v0/topics/{topic}", body).replace(b"POST", b"PUT", 1)
    status, answer, _ = exchange(unharmed, request)
    assert (status, answer["error"]["code"]) == (400, "invalid_request")


def test_a_hundred_levels_are_stored_and_come_back(shared: Service) -> None:
    data = b'{"a":' * 100 + b"1" + b"}" * 100
    assert exchange(shared, post("/v0/topics/deep", b'{"records":[{"data":%s}]}' % data))[0] == 201
    assert data in exchange(shared, post("/v0/topics/deep/diff", b"{}"))[2]


LARGE = (2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -1, -(2**63) - 1)
NUMBERS = [
    ("POST", "/v0/topics/kept/diff", '{"from_seq":%d,"include_tags":true}'),
    ("POST", "/v0/topics/kept/diff", '{"from_seq":0,"limit":%d,"max_batch_bytes":%d}'),
    ("POST", "/v0/topics/kept/delete", '{"before_seq":%d,"match":"none"}'),
    ("PUT", "/v0/topics/kept/cursors/c", '{"seq":%d,"force":true}'),
    ("POST", "/v0/topics/work:q/claim", '{"node":"n","max":%d,"lease_ms":%d,"wait_ms":-1}'),
    ("POST", "/v0/topics/work:q/ack", '{"node":"n","seqs":[1,%d]}'),
    ("POST", "/v0/topics/work:q/nack", '{"node":"n","seqs":[%d],"delay_ms":%d}'),
    ("POST", "/v0/topics/work:q/extend", '{"node":"n","seqs":[%d],"lease_ms":%d}'),
    ("POST", "/v0/topics/work:q/peek", '{"first_seq":%d,"max":%d}'),
    ("POST", "/v0/topics/kept/redrive", '{"queue":"work:q","first_seq":%d,"last_seq":%d,"max":%d}'),
    ("POST", "/v0/topics/work:q", '{"records":[{"data":1,"delay_ms":%d}],"create":false}'),
    ("POST", "/v0/watch", '{"topics":{"kept":{"from_seq":%d}},"limit":%d,"heartbeat_ms":%d,"max_batch_bytes":%d}'),
    ("POST", "/v0/watch", '{"prefix":"kept","cursor":"%s"}'),
    ("GET", "/v0/topics?page_size=%d", None),
    ("GET", "/v0/topics/kept/cursors?page_size=%d", None),
]


@pytest.mark.parametrize("number", LARGE)
@pytest.mark.parametrize(("method", "path", "form"), NUMBERS)
def test_no_number_is_a_mistake_of_the_service(
    unharmed: Service, method: str, path: str, form: str | None, number: int
) -> None:
    unharmed.request("PUT", "/v0/topics/work:q", {"type": "queue"})
    if form is None:
        status, answer = unharmed.request(method, path % number)
    else:
        token = encoded({"kept": number})
        body = form.replace("%s", token).replace("%d", str(number)).encode()
        status, answer, _ = exchange(unharmed, post(path, body).replace(b"POST", method.encode(), 1))
    unharmed.request("DELETE", "/v0/topics/kept/cursors/c")
    unharmed.request("DELETE", "/v0/topics/work:q")
    assert status in (200, 201, 400), answer


def token_of(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode()


@pytest.mark.parametrize(
    "token",
    [
        token_of(b'{"after":1}'),
        token_of(b'{"after":null}'),
        token_of(b'{"after":"kept","after":"kept"}'),
        token_of(b'{"after": "kept"}'),
        token_of(b'{"after":"kept","x":1}'),
        token_of(b'{"x":' + b"[" * 5_000),
        token_of(b'{"after":"' + b"k" * 300 + b'"}'),
        token_of(b'{"after":""}'),
        "eyJhZnRlciI6ImpvYnMifR",
        "x",
    ],
)
def test_a_page_token_that_no_page_had_is_400(unharmed: Service, token: str) -> None:
    for path in ("/v0/topics", "/v0/routers", "/v0/topics/kept/cursors", "/v0/topics/missing/cursors"):
        status, answer = unharmed.request("GET", f"{path}?page_size=1&cursor={token}")
        assert (status, answer["error"]["code"]) == (400, "invalid_request"), path


def test_a_ticket_of_another_form_is_400(unharmed: Service) -> None:
    for ticket in ("x", "ticket_", "ticket_" + "A" * 31, "ticket_" + "A" * 33, "ticket_" + "%2B" * 32):
        status, answer = unharmed.request("GET", f"/v0/watch/wid_AAAAAAAAAAAAAAAAAAAAAA?ticket={ticket}")
        assert (status, answer["error"]["code"]) == (400, "invalid_request")
    status, _ = unharmed.request("GET", "/v0/watch/wid_AAAAAAAAAAAAAAAAAAAAAA?ticket=ticket_" + "A" * 32)
    assert status == 404


def test_the_129th_level_of_any_body_is_400(unharmed: Service) -> None:
    unharmed.request("PUT", "/v0/topics/lists", {})
    for path, form, above in (
        ("/v0/topics/kept", b'{"records":[{"data":%b}]}', 3),
        ("/v0/topics/kept", b'{"records":[{"data":1,"meta":{"m":%b}}]}', 4),
        ("/v0/topics/kept", b'{"records":[{"data":1,"x":%b}]}', 3),
        ("/v0/topics/kept", b'{"records":[{"data":["\\ud800",%b]}]}', 4),
        ("/v0/topics/kept/diff", b'{"x":%b}', 1),
        ("/v0/watch", b'{"topics":{"kept":{"x":%b}}}', 3),
        ("/v0/tickets", b'{"path":"/v0/ws","x":%b}', 1),
    ):
        for levels in (129, 600):
            value = b"[" * (levels - above) + b"]" * (levels - above)
            status, answer, _ = exchange(unharmed, post(path, form % value))
            assert (status, answer["error"]["code"], answer["error"]["detail"]) == (
                400,
                "invalid_request",
                {"max": 128},
            )
        value = b"[" * (128 - above) + b"]" * (128 - above)
        assert exchange(unharmed, post(path.replace("kept", "lists"), form.replace(b"kept", b"lists") % value))[0] < 300
    unharmed.request("DELETE", "/v0/topics/lists")


def test_unknown_fields_and_repeated_keys_are_no_error(shared: Service) -> None:
    body = b'{"colour":1,"records":[{"data":{"k":1,"k":2},"shape":[]}]}'
    status, answer, _ = exchange(shared, post("/v0/topics/odd", body))
    assert (status, answer["ignored"]) == (201, ["colour", "records[0].shape"])
    assert b'"data":{"k":1,"k":2}' in exchange(shared, post("/v0/topics/odd/diff", b"{}"))[2]


def test_too_many_records_are_refused(unharmed: Service) -> None:
    body = b'{"records":[' + b",".join([b'{"data":1}'] * 10_001) + b"]}"
    status, answer, _ = exchange(unharmed, post("/v0/topics/kept", body))
    assert (status, answer["error"]["code"]) == (400, "batch_too_large")


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(unharmed: Service) -> None:
    head = post("/v0/topics/kept", b"", f"Content-Length: {65 << 20}")
    status, answer, _ = exchange(unharmed, head)
    assert (status, answer["error"]["code"]) == (413, "payload_too_large")


def test_a_body_that_is_too_large_is_refused_although_it_is_sent(unharmed: Service) -> None:
    status, answer = unharmed.request("POST", "/v0/topics/kept", b" " * (65 << 20))
    assert (status, answer["error"]["code"]) == (413, "payload_too_large")


def test_a_chunked_body_that_is_too_large_is_refused(unharmed: Service) -> None:
    with socket.create_connection(("127.0.0.1", unharmed.port), timeout=10) as connection:
        connection.sendall(post("/v0/topics/kept", b"", "Transfer-Encoding: chunked"))
        chunk = b"%x\r\n" % (1 << 20) + b" " * (1 << 20) + b"\r\n"
        received = b""
        try:
            for _ in range(70):
                connection.sendall(chunk)
        except OSError:
            pass  # the service refused the request while it was being sent
        received = connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("a%2Fb", 400),
        ("a/b", 404),
        ("..", 400),
        ("%2e%2e", 400),
        ("%00", 400),
        ("a%00b", 400),
        ("x" * 256, 400),
        ("x" * 300, 400),
        (":a", 400),
        ("a%20b", 400),
        ("%C3%A9", 400),
        ("%FF", 400),
        ("%zz", 400),
        ("a%", 400),
    ],
)
def test_names_outside_the_grammar_are_refused(unharmed: Service, name: str, status: int) -> None:
    for request in (
        post(f"/v0/topics/{name}", GOOD),
        f"GET /v0/topics/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
    ):
        found, answer, _ = exchange(unharmed, request)
        assert found == status
        assert answer["error"]["code"] == ("invalid_request" if status == 400 else "not_found")


@pytest.mark.parametrize("raw", [b"a\0b", b"\0", b"\xff", b"\xc3\xa9", b"a\rb", b"a\nb"])
def test_raw_bytes_that_no_target_may_have_are_refused(unharmed: Service, raw: bytes) -> None:
    request = post("/v0/topics/NAME", GOOD).replace(b"NAME", raw, 1)
    status, answer, _ = exchange(unharmed, request)
    assert (status, answer["error"]["code"]) == (400, "invalid_request")


def test_the_longest_name_is_fine(shared: Service) -> None:
    assert exchange(shared, post("/v0/topics/" + "x" * 255, GOOD))[0] == 201


@pytest.mark.parametrize("sent", [0, 5, 20])
def test_a_client_that_disconnects_in_the_body_changes_nothing(unharmed: Service, sent: int) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", unharmed.port), timeout=10) as connection:
            connection.sendall(post("/v0/topics/kept", GOOD)[: -len(GOOD) + sent])


def test_a_body_shorter_than_it_says_is_refused(unharmed: Service) -> None:
    request = post("/v0/topics/kept", GOOD, f"Content-Length: {len(GOOD) + 10}")
    status, answer, _ = exchange(unharmed, request, half_close=True)
    assert (status, answer["error"]["code"]) == (400, "invalid_request")


def test_what_follows_a_body_is_another_request(unharmed: Service) -> None:
    """Bytes beyond Content-Length are not part of the body; the service refuses them as a request."""
    request = post("/v0/topics/kept/diff", b"{}") + b"garbage\r\n\r\n"
    with socket.create_connection(("127.0.0.1", unharmed.port), timeout=10) as connection:
        connection.sendall(request)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    assert received.startswith(b"HTTP/1.1 200")
    assert received.count(b"HTTP/1.1 400") == 1


def test_chunked_bodies_are_read_however_they_are_cut(shared: Service) -> None:
    for size in (1, 7, len(GOOD)):
        chunks = b"".join(
            b"%x\r\n%s\r\n" % (len(GOOD[i : i + size]), GOOD[i : i + size]) for i in range(0, len(GOOD), size)
        )
        request = post("/v0/topics/chunked", chunks + b"0\r\n\r\n", "Transfer-Encoding: chunked")
        assert exchange(shared, request)[0] in (200, 201)
    assert shared.request("GET", "/v0/topics/chunked")[1]["count"] == 3


@pytest.mark.parametrize(
    "chunks", [b"zz\r\nab\r\n0\r\n\r\n", b"-1\r\n\r\n", b"5\r\nab\r\n0\r\n\r\n", b"2\nab\n0\n\n", b"1" * 40 + b"\r\n"]
)
def test_bad_chunks_are_refused(unharmed: Service, chunks: bytes) -> None:
    request = post("/v0/topics/kept", chunks, "Transfer-Encoding: chunked")
    status, answer, _ = exchange(unharmed, request, half_close=True)
    assert (status, answer["error"]["code"]) == (400, "invalid_request")

"""Claims about HTTP/1.1 connections as a client sees them, on real sockets, with scripted shards."""

import gc
import gzip
import json
import socket
import struct
from contextlib import AsyncExitStack
from functools import partial
from time import monotonic

import pytest
import trio
from structlog.testing import capture_logs

from gateway.server.connection import Connection, Http1Request
from gateway.server.reactor import Drive
from proto.ipc.message import Message, Parked, Reply, Request
from proto.ipc.operations import CursorGet, CursorPut
from proto.model.errors import ErrorCode, TopicsError, topic_not_found
from proto.model.limits import MAX_HEADER_BYTES
from tests.support.asked import said
from tests.support.gateway_stage import Answer, Stage, stage, until

JSON_POST = b"Host: localhost\r\nContent-Type: application/json\r\n"


async def raw(there: Stage, data: bytes, *, half_close: bool = False) -> Answer:
    """Send bytes on a new connection, return the first answer."""
    async with there.client() as client:
        await client.send(data)
        if half_close:
            await client.stream.send_eof()
        return await client.receive()


async def test_a_body_reaches_the_shard_untouched_and_its_answer_the_client() -> None:
    async with stage() as there, there.client() as client:
        body = b'{ "records" : [ {"data":1.0} ] }'
        answer = await client.ask("POST", "/v0/topics/jobs?return_seqs=false", body)
        assert answer.status == 200
        performance = answer.json.pop("performance")
        assert performance["server_total_ms"] >= 0
        assert there.shards[0].requests[0].body == body
        assert there.shards[0].requests[0].options.return_seqs is False
        assert answer.raw.startswith(b'{"op": "append", "topic": "jobs", "body": ')
        assert answer.raw.endswith(b"}}\n")


async def test_a_created_topic_is_201_and_figures_of_the_shard_are_in_performance() -> None:
    def script(request: Request) -> list[Message]:
        return [Reply(request.id, b"{}", created=True, performance={"fsync_ms": 0.12345, "records_scanned": 7})]

    async with stage(script) as there, there.client() as client:
        answer = await client.ask("PUT", "/v0/topics/jobs")
        assert answer.status == 201
        performance = answer.json["performance"]
        assert performance["fsync_ms"] == 0.123
        assert performance["records_scanned"] == 7


async def test_an_error_of_the_shard_is_the_canonical_body_with_performance() -> None:
    def script(request: Request) -> list[Message]:
        if request.op == "append":
            return [Reply(request.id, error=TopicsError(ErrorCode.THROTTLED, "later", {"a": 1}, retry_after_ms=1500))]
        return [Reply(request.id, error=topic_not_found(request.topic))]

    async with stage(script) as there, there.client() as client:
        answer = await client.ask("GET", "/v0/topics/jobs?touch=false")
        assert (answer.status, answer.code) == (404, "topic_not_found")
        assert answer.json["error"]["detail"] == {"topic": "jobs"}
        assert "performance" in answer.json
        answer = await client.ask("POST", "/v0/topics/jobs", b"{}")
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "throttled", "2")


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/v0/topics/a/b", 404, "not_found"),
        ("PATCH", "/v0/topics/a", 405, "method_not_allowed"),
        ("DELETE", "/v0/ready", 405, "method_not_allowed"),
        ("OPTIONS", "/v0/topics", 405, "method_not_allowed"),
        ("GET", "/v0/topics/a%2Fb", 400, "invalid_request"),
        ("GET", "/v0/topics/a%00b", 400, "invalid_request"),
        ("GET", "/v0/topics/..", 400, "invalid_request"),
        ("GET", "/v0/topics/%2e%2e", 400, "invalid_request"),
        ("GET", "/v0/topics/" + "x" * 300, 400, "invalid_request"),
        ("GET", "/v0/topics/", 400, "invalid_request"),
        ("GET", "/v0/topics/%C3%A4", 400, "invalid_request"),
        ("GET", "/v0/topics/%ff", 400, "invalid_request"),
        ("GET", "/v0/topics/%x", 400, "invalid_request"),
        ("GET", "/v0/topics/a?touch=maybe", 400, "invalid_request"),
        ("GET", "/v0/topics?cursor=rubbish", 400, "invalid_request"),
        ("GET", "/v0/topics?page_size=many", 400, "invalid_request"),
        ("POST", "/v0/topics/a", 400, "invalid_request"),
    ],
)
async def test_refusals_are_canonical_and_keep_the_connection(method: str, target: str, status: int, code: str) -> None:
    async with stage() as there, there.client() as client:
        answer = await client.ask(method, target)
        assert (answer.status, answer.code) == (status, code)
        assert there.shards[0].requests == []
        if status == 405:
            assert "get" in answer.headers["allow"]
        assert (await client.ask("GET", "/v0/health")).status == 200


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=UTF-8", 200),
        ('application/json;charset="utf-8"', 200),
        ("application/json; charset=latin-1", 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/jsonx", 415),
        ("", 415),
    ],
)
async def test_a_body_must_say_that_it_is_json(content_type: str, status: int) -> None:
    async with stage() as there, there.client() as client:
        headers = {"Content-Type": content_type} if content_type else {}
        answer = await client.ask("POST", "/v0/topics/a", None, {**headers, "Content-Length": "0"})
        assert answer.status == 400
        await client.send(
            b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
            + (f"Content-Type: {content_type}\r\n".encode() if content_type else b"")
            + b"\r\n{}"
        )
        answer = await client.receive()
        assert answer.status == status
        if status == 415:
            assert answer.code == "unsupported_media_type"


async def test_a_body_in_an_unknown_coding_is_refused_not_misread() -> None:
    async with stage() as there, there.client() as client:
        answer = await client.ask("POST", "/v0/topics/a", b"{}", {"Content-Encoding": "br"})
        assert (answer.status, answer.code) == (415, "unsupported_media_type")


async def test_an_empty_put_needs_no_content_type() -> None:
    async with stage() as there, there.client() as client:
        assert (await client.ask("PUT", "/v0/topics/a")).status == 200
        assert there.shards[0].requests[0].body == b""


async def test_the_idempotency_key_header_travels_as_an_option() -> None:
    async with stage() as there, there.client() as client:
        await client.ask("POST", "/v0/topics/a", b"{}", {"Idempotency-Key": "k1"})
        assert there.shards[0].requests[0].options.idempotency_key == "k1"


async def test_pipelined_requests_are_answered_in_order() -> None:
    held: list[Request] = []

    def script(request: Request) -> list[Message]:
        held.append(request)
        return []

    async with stage(script) as there, there.client() as client:
        one = b"GET /v0/topics/one HTTP/1.1\r\nHost: localhost\r\n\r\n"
        await client.send(one + b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n" + one.replace(b"one", b"two"))
        await until(lambda: len(held) == 1)
        there.shards[0].send(Reply(held[0].id, b'{"n":1}'))
        assert (await client.receive()).json["n"] == 1
        assert (await client.receive()).json["status"] == "ok"
        await until(lambda: len(held) == 2)
        there.shards[0].send(Reply(held[1].id, b'{"n":2}'))
        assert (await client.receive()).json["n"] == 2


async def test_a_large_body_and_a_large_answer_pass() -> None:
    def script(request: Request) -> list[Message]:
        return [Reply(request.id, b'{"records":"' + b"y" * (3 << 20) + b'"}')]

    async with stage(script) as there, there.client() as client:
        body = b'"' + b"x" * (5 << 20) + b'"'
        answer = await client.ask("POST", "/v0/topics/a", body)
        assert len(answer.json["records"]) == 3 << 20
        assert there.shards[0].requests[0].body == body
        assert there.gateway.budget.used == 0


@pytest.mark.parametrize("framing", [b"Content-Length: 2", b"Transfer-Encoding: chunked"])
async def test_a_client_that_is_gone_before_it_is_asked_for_its_body_is_no_failure(framing: bytes) -> None:
    head = b"POST /v0/topics/a HTTP/1.1\r\n" + JSON_POST + b"Expect: 100-continue\r\n" + framing + b"\r\n\r\n"
    async with stage() as there:
        with capture_logs() as logs:
            for _ in range(3):
                stream = await trio.open_tcp_stream(*there.address)
                await stream.send_all(head)
                # The connection is reset before the client has read the response.
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                stream.socket.close()
            async with there.client() as client:
                assert (await client.ask("GET", "/v0/health")).status == 200  # so all earlier connections are accepted
                await until(lambda: len(there.gateway.server.connections) == 1)
        assert logs == []
        assert there.gateway.api.outcomes.served == {("health", 200): 1}
        assert there.gateway.budget.used == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\n",
        b"GET /v0/health HTTP/1.1\r\n\r\n",
        b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /v0/topics/a HTTP/1.1\r\n" + JSON_POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\nA: b\r\n folded\r\n\r\n",
    ],
)
async def test_what_is_no_request_gets_a_canonical_400_and_the_connection_ends(data: bytes) -> None:
    async with stage() as there, there.client() as client:
        await client.send(data)
        answer = await client.receive()
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert answer.headers["connection"] == "close"
        assert await client.ended()
        assert there.shards[0].requests == []


async def test_empty_lines_before_a_request_are_skipped_at_once_and_not_kept() -> None:
    async with stage() as there, there.client() as client:
        request = b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        await client.send(request + b"\r\n")
        assert (await client.receive()).status == 200
        (connection,) = there.gateway.server.connections
        await until(lambda: connection.waiting)
        assert connection.buffer == b""
        await client.send(b"\r\n" * (MAX_HEADER_BYTES // 2 - 2))
        await client.send(b"\r")
        await until(lambda: connection.buffer == b"\r")
        await client.send(b"\n" + request)
        assert (await client.receive()).status == 200


async def test_empty_lines_do_not_keep_a_connection() -> None:
    """A client may send one after its request's body."""
    async with stage() as there, there.client() as client:
        await client.send(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n")
        assert (await client.receive()).status == 200
        (connection,) = there.gateway.server.connections
        await until(lambda: connection.waiting)
        there.gateway.server.end_idle(0)
        there.gateway.server.sweep(monotonic())
        with trio.fail_after(10):
            assert await client.ended()


async def test_empty_lines_without_end_are_refused() -> None:
    async with stage() as there:
        with trio.fail_after(10):
            answer = await raw(there, b"\r\n" * (MAX_HEADER_BYTES // 2 + 1))
        assert (answer.status, answer.code) == (400, "invalid_request")


async def test_too_large_heads_are_431() -> None:
    async with stage() as there:
        answer = await raw(there, b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 66_000)
        assert (answer.status, answer.code) == (431, "headers_too_large")
        answer = await raw(there, b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 101 + b"\r\n")
        assert (answer.status, answer.code) == (431, "headers_too_large")


async def test_a_slow_head_is_408_and_a_slow_body_too() -> None:
    async with stage(header_timeout_ms=60, body_timeout_ms=60) as there:
        answer = await raw(there, b"GET /v0/hea")
        assert (answer.status, answer.code) == (408, "request_timeout")
        answer = await raw(
            there,
            b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
        )
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert there.gateway.flight.count == 0


async def test_an_idle_connection_is_closed_without_a_word() -> None:
    async with stage(idle_timeout_ms=60) as there, there.client() as client:
        assert (await client.ask("GET", "/v0/health")).status == 200
        assert await client.ended()


async def test_http_1_0_clients_are_served() -> None:
    async with stage() as there:
        async with there.client() as client:
            await client.send(b"GET /healthz HTTP/1.0\r\n\r\n")
            answer = await client.receive()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await client.ended()
        async with there.client() as client:
            for _ in range(2):
                await client.send(b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
                assert (await client.receive()).headers["connection"] == "keep-alive"


async def test_head_has_the_headers_of_get_and_no_body() -> None:
    async with stage() as there, there.client() as client:
        answer = await client.ask("HEAD", "/v0/topics/a")
        assert answer.status == 200
        assert int(answer.headers["content-length"]) > 0
        assert (await client.ask("GET", "/v0/health")).status == 200


async def test_a_long_poll_that_waits_is_answered_when_records_come() -> None:
    async with stage(lambda request: [Parked(request.id)]) as there, there.client() as client:
        await client.send(
            b"POST /v0/topics/a/diff HTTP/1.1\r\n" + JSON_POST + b"Content-Length: 2\r\n\r\n{}"
            b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        await until(lambda: any(p.parked for link in there.gateway.shards.links.open() for p in link.waiting.values()))
        there.shards[0].send(Reply(there.shards[0].requests[0].id, b'{"records":[]}'))
        assert (await client.receive()).json["records"] == []
        assert (await client.receive()).json["status"] == "ok"
        assert there.shards[0].cancelled == []


async def test_a_client_that_leaves_a_long_poll_frees_everything() -> None:
    async with stage(lambda request: [Parked(request.id)]) as there:
        async with there.client() as client:
            await client.send(
                b"POST /v0/topics/a/diff HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 2\r\n\r\n{}"
            )
            await until(lambda: bool(there.shards[0].requests))
        await until(lambda: there.shards[0].cancelled == [there.shards[0].requests[0].id])
        await until(lambda: not there.gateway.flight.count and not there.gateway.server.connections)
        assert not any(link.waiting for link in there.gateway.shards.links.open())


async def test_a_shard_that_vanishes_fails_its_waiters_with_503_and_others_go_on() -> None:
    async with stage(lambda request: []) as there, there.client() as client:
        await client.send(b"GET /v0/topics/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: bool(there.shards[0].requests))
        there.lose_shard(0)
        answer = await client.receive()
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "not_ready", "1")
        answer = await client.ask("GET", "/v0/topics/a")
        assert (answer.status, answer.code) == (503, "not_ready")
        assert (await client.ask("GET", "/v0/ready")).code == "not_ready"
        assert (await client.ask("GET", "/v0/metrics")).status == 200
        await there.start_shard(0, lambda request: [Reply(request.id, b'{"back":true}')], incarnation=2)
        assert (await client.ask("GET", "/v0/topics/a")).json["back"] is True


async def test_what_a_failed_request_and_an_ended_connection_held_is_free_at_once() -> None:
    """Without the garbage collector, which runs rarely: a body may be large."""
    gc.collect()
    gc.disable()
    try:
        async with stage(lambda request: []) as there:
            async with there.client() as client:
                await client.send(b"POST /v0/topics/a HTTP/1.1\r\n" + JSON_POST + b"Content-Length: 2\r\n\r\n{}")
                await until(lambda: bool(there.shards[0].requests))
                there.lose_shard(0)
                assert (await client.receive()).status == 503
                await client.send(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert (await client.receive()).status == 200
                assert await client.ended()
            await until(lambda: not there.gateway.server.connections)
            left = [each for each in gc.get_objects() if isinstance(each, Http1Request | Connection | Drive)]
            assert left == []
    finally:
        gc.enable()


async def test_a_silent_shard_is_503_and_told_to_forget() -> None:
    async with stage(lambda request: [], request_timeout_ms=1000) as there, there.client() as client:
        there.gateway.shards.links.timeout_s = 0.01
        answer = await client.ask("GET", "/v0/topics/a")
        assert (answer.status, answer.code) == (503, "not_ready")
        await until(lambda: there.shards[0].cancelled == [there.shards[0].requests[0].id])


async def test_a_list_merges_the_shards_and_pages_through_them() -> None:
    names = [["a", "d", "e"], ["b", "c"]]

    async with stage(shards=2) as there, there.client() as client:
        for index in (0, 1):
            there.shards[index].script = partial(page_of, names[index])
        found: list[str] = []
        target = "/v0/topics?page_size=2"
        while True:
            answer = await client.ask("GET", target)
            found += [entry["topic"] for entry in answer.json["topics"]]
            if "next_cursor" not in answer.json:
                break
            target = f"/v0/topics?page_size=2&cursor={answer.json['next_cursor']}"
        assert found == ["a", "b", "c", "d", "e"]
        there.lose_shard(1)
        assert (await client.ask("GET", "/v0/topics")).code == "not_ready"


def page_of(names: list[str], request: Request) -> list[Message]:
    after, size = request.options.after, request.options.page_size
    left = [n for n in names if n > after]
    body = json.dumps([{"topic": n} for n in left[:size]]).encode()
    return [Reply(request.id, body, extra={"names": left[:size], "more": len(left) > size})]


async def test_a_bug_is_a_canonical_500_and_the_connection_lives() -> None:
    def script(request: Request) -> list[Message]:
        return [Reply(request.id, b"not an array", extra={"names": [], "more": False})]

    async with stage(script) as there, there.client() as client:
        answer = await client.ask("GET", "/v0/topics")
        assert (answer.status, answer.code) == (500, "internal")
        assert (await client.ask("GET", "/v0/health")).status == 200


async def test_draining_finishes_what_is_in_flight_and_refuses_the_rest() -> None:
    held: list[Request] = []

    def script(request: Request) -> list[Message]:
        held.append(request)
        return [Parked(request.id)] if request.op == "diff" else []

    async with stage(script) as there, there.client() as slow, there.client() as poll, there.client() as other:
        await slow.send(b"GET /v0/topics/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await poll.send(b"POST /v0/topics/a/diff HTTP/1.1\r\n" + JSON_POST + b"Content-Length: 2\r\n\r\n{}")
        assert (await other.ask("GET", "/v0/health")).status == 200
        await until(lambda: len(held) == 2)
        done = trio.Event()

        async def drain() -> None:
            await there.gateway.drain()
            done.set()

        there.nursery.start_soon(drain)
        answer = await poll.receive()
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "shutting_down", "1")
        async with there.client() as late:
            answer = await late.ask("GET", "/v0/ready")
            assert (answer.status, answer.code, answer.headers["connection"]) == (503, "shutting_down", "close")
        answer = await other.ask("POST", "/v0/topics/a", b"{}")
        assert (answer.status, answer.code) == (503, "shutting_down")
        assert not done.is_set()
        there.shards[0].send(Reply(next(r.id for r in held if r.op == "state"), b'{"finished":true}'))
        answer = await slow.receive()
        assert answer.json["finished"] is True
        await done.wait()
        await until(lambda: not there.gateway.server.connections)
        with pytest.raises(OSError, match="connect"):
            async with there.client():
                pass


async def test_draining_gives_up_at_its_deadline() -> None:
    async with stage(lambda request: [], drain_timeout_ms=20) as there, there.client() as client:
        await client.send(b"GET /v0/topics/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: bool(there.shards[0].requests))
        await there.gateway.drain()
        assert await client.ended()


async def test_a_compressed_long_poll_does_not_keep_other_compressed_bodies_waiting() -> None:
    body = gzip.compress(b'{"wait_ms":20000}')
    head = JSON_POST + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with stage(lambda request: [Parked(request.id)]) as there, AsyncExitStack() as stack:
        for _ in range(10):
            client = await stack.enter_async_context(there.client())
            await client.send(b"POST /v0/topics/a/diff HTTP/1.1\r\n" + head + body)
            # A body that does not arrive keeps no place either.
            client = await stack.enter_async_context(there.client())
            await client.send(b"POST /v0/topics/a HTTP/1.1\r\n" + head)
        await until(lambda: len(there.shards[0].requests) == 10)


async def test_a_cursor_is_named_by_one_segment_of_the_path() -> None:
    async with stage() as there, there.client() as client:
        for method, body, op in (("PUT", b'{"seq":1}', CursorPut), ("GET", None, CursorGet)):
            answer = await client.ask(method, "/v0/topics/jobs/cursors/team%2Fa%20b%E2%82%AC", body)
            assert answer.status == 200
            request = there.shards[0].requests[-1]
            assert (request.topic, request.options) == ("jobs", op("team/a b€"))
        assert (await client.ask("DELETE", "/v0/topics/jobs/cursors/diff")).status == 200
        assert there.shards[0].requests[-1].op == "cursor_delete"
        assert (await client.ask("GET", "/v0/topics/jobs/cursors/a/b")).code == "not_found"
        assert (await client.ask("GET", "/v0/topics/jobs/cursors/%ff")).code == "invalid_request"
        assert (await client.ask("PUT", "/v0/topics/jobs/cursors/c")).code == "invalid_request"
        assert len(there.shards[0].requests) == 3


async def test_cursors_are_listed_by_the_shard_of_their_topic() -> None:
    def script(request: Request) -> list[Message]:
        more = request.options.after == ""
        name = "é/1" if more else "ü"
        body = json.dumps([{"cursor": name}]).encode()
        return [Reply(request.id, body, extra={"names": [name], "more": more})]

    async with stage(script, shards=2) as there, there.client() as client:
        answer = (await client.ask("GET", "/v0/topics/jobs/cursors?page_size=1")).json
        assert answer["cursors"] == [{"cursor": "é/1"}]
        assert "performance" in answer
        answer = (await client.ask("GET", f"/v0/topics/jobs/cursors?page_size=1&cursor={answer['next_cursor']}")).json
        assert answer["cursors"] == [{"cursor": "ü"}]
        assert "next_cursor" not in answer
        requests = [request for shard in there.shards for request in shard.requests]
        assert [said(r.options) for r in requests] == [{"after": "", "page_size": 1}, {"after": "é/1", "page_size": 1}]
        assert {(r.op, r.topic) for r in requests} == {("cursor_list", "jobs")}
        assert (await client.ask("GET", "/v0/topics/jobs/cursors?cursor=broken")).code == "invalid_request"


async def test_records_are_deleted_by_the_shard_of_their_topic() -> None:
    async with stage() as there, there.client() as client:
        body = b'{"before_seq":3,"match":["tag","Glob","a*"]}'
        assert (await client.ask("POST", "/v0/topics/jobs/delete", body)).status == 200
        request = there.shards[0].requests[0]
        assert (request.op, request.topic, request.body) == ("delete_records", "jobs", body)
        assert (await client.ask("POST", "/v0/topics/jobs/delete")).code == "invalid_request"


async def test_an_idempotency_key_may_come_in_a_header() -> None:
    async with stage() as there, there.client() as client:
        await client.ask("POST", "/v0/topics/jobs", b"{}", {"Idempotency-Key": "k-1"})
        assert there.shards[0].requests[0].options.idempotency_key == "k-1"

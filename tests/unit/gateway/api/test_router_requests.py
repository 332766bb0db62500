"""Claims about requests on routers: shard 0 gets them with the key's restrictions, and only they need it."""

from __future__ import annotations

import pytest

from proto.ipc.message import Message, Reply, Request
from proto.ipc.operations import RegistrarDelete, RegistrarDeleteTopic, RegistrarGet, RegistrarPut, RegistrarRequest
from proto.model.errors import ErrorCode, TopicsError
from proto.model.keys import ALL_SCOPES
from proto.model.names import shard_of
from tests.support.gateway_stage import key, stage

THERE = next(name for n in range(40) if shard_of(name := f"a:{n}", 2) == 1)
INSIDE = key("inside", ALL_SCOPES, "a:", "b:")
REQUESTS: list[tuple[str, str, bytes | None, RegistrarRequest]] = [
    ("PUT", "/v0/routers/a:r", b'{"source":"a:1"}', RegistrarPut(INSIDE.id, ("a:", "b:"), "a:r")),
    ("GET", "/v0/routers/a:r", None, RegistrarGet(INSIDE.id, ("a:", "b:"), "a:r")),
    ("DELETE", "/v0/routers/a:r", None, RegistrarDelete(INSIDE.id, ("a:", "b:"), "a:r")),
    ("DELETE", f"/v0/topics/{THERE}", None, RegistrarDeleteTopic(INSIDE.id, ("a:", "b:"))),
    ("DELETE", f"/v0/topics/{THERE}?if_empty=true", None, RegistrarDeleteTopic(INSIDE.id, ("a:", "b:"), True)),
]


@pytest.mark.parametrize(("method", "target", "body", "asked"), REQUESTS)
async def test_shard_0_gets_the_request_with_the_restrictions_of_its_key(
    method: str, target: str, body: bytes | None, asked: RegistrarRequest
) -> None:
    def answering(request: Request) -> list[Message]:
        return [Reply(request.id, b'{"is":"there"}', created=method == "PUT", performance={"fsync_ms": 1.5})]

    async with stage(answering, shards=2, keys=[INSIDE]) as there, there.client() as client:
        answer = await client.ask(method, target, body, {"Authorization": "Bearer inside"})
        assert answer.status == (201 if method == "PUT" else 200)
        assert answer.json["is"] == "there"
        assert answer.json["performance"]["fsync_ms"] == 1.5
        (got,) = [request for request in there.shards[0].requests if request.op.startswith("registrar")]
        assert (got.options, got.body) == (asked, body or b"")
        assert got.topic == (THERE if "topics" in target else "")
        assert got.deadline_ns > 0
        assert [request.op for request in there.shards[1].requests if request.op.startswith("registrar")] == []


async def test_an_error_of_the_registrar_is_the_answer() -> None:
    def answering(request: Request) -> list[Message]:
        return [Reply(request.id, error=TopicsError(ErrorCode.ROUTER_CYCLE, "a cycle", {"cycle": ["a"]}))]

    async with stage(answering) as there, there.client() as client:
        answer = await client.ask("PUT", "/v0/routers/r", b'{"source":"a","dest":"b"}')
        assert (answer.status, answer.code) == (409, "router_cycle")
        assert answer.json["error"]["detail"] == {"cycle": ["a"]}


async def test_without_shard_0_only_routers_and_deletions_of_topics_are_refused() -> None:
    async with stage(shards=2) as there, there.client() as client:
        there.lose_shard(0)
        for method, target, body, _ in REQUESTS:
            answer = await client.ask(method, target, body)
            assert (answer.status, answer.code) == (503, "not_ready")
            error = answer.json["error"]
            assert error["message"].startswith("routers, and deletions of topics, need shard 0: shard 0 is not serving")
            assert error["detail"]["outcome"] == "not_done"
            assert answer.headers["retry-after"] == "1"
        record = b'{"records":[{"data":1}]}'
        for method, target, body in (
            ("POST", f"/v0/topics/{THERE}", record),
            ("GET", f"/v0/topics/{THERE}", None),
            ("POST", f"/v0/topics/{THERE}/diff", b"{}"),
            ("POST", f"/v0/topics/{THERE}/delete", b'{"before_seq":1}'),
        ):
            assert (await client.ask(method, target, body)).status == 200, (method, target)


async def test_a_list_of_routers_asks_no_registrar() -> None:
    def answering(request: Request) -> list[Message]:
        assert request.op == "router_list"
        return [Reply(request.id, b"[]", extra={"names": [], "more": False})]

    async with stage(answering, shards=2) as there, there.client() as client:
        assert (await client.ask("GET", "/v0/routers")).json["routers"] == []


async def test_a_request_on_routers_waits_for_shard_0_to_return() -> None:
    """As other requests do: about a second."""

    def answering(request: Request) -> list[Message]:
        return [Reply(request.id, b'{"router":"r","deleted":true}')]

    async with stage(answering, shards=2) as there, there.client() as client:
        there.lose_shard(0)
        there.nursery.start_soon(there.start_shard, 0, answering, 2)
        assert (await client.ask("DELETE", "/v0/routers/r")).status == 200

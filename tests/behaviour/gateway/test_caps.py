"""Claims about caps: at a cap requests get `429`, and every end of a request frees its slot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from proto.ipc.message import Parked, Reply
from proto.model.keys import Scope
from tests.support.gateway_stage import Answer, Client, Stage, key, stage, until

KEYS = [key("one"), key("two", Scope.READ | Scope.WRITE)]
ONE, TWO = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
DIFF = (
    b"POST /v0/topics/a/diff HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer one\r\n"
    b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n"
)
SLOW_BODY = DIFF.replace(b"/diff", b"").replace(b"Content-Length: 2", b"Content-Length: 9") + b"{"


def refused(answer: Answer, limit: str, most: int) -> None:
    assert (answer.status, answer.code) == (429, "throttled")
    assert {name: answer.json["error"]["detail"][name] for name in ("limit", "max")} == {"limit": limit, "max": most}
    assert int(answer.headers["retry-after"]) >= 1


# -- requests in flight

End = Callable[[Stage, Client], Awaitable[None]]


async def _answered(there: Stage, client: Client) -> None:
    there.shards[0].send(Reply(there.shards[0].requests[-1].id, b"{}"))
    assert (await client.receive()).status == 200


async def _disconnected(there: Stage, client: Client) -> None:
    await client.stream.aclose()


async def _server_error(there: Stage, client: Client) -> None:
    # No JSON object: adding `performance` to it fails in the gateway.
    there.gateway.api.outcomes.served = None  # type: ignore[assignment]
    there.shards[0].send(Reply(there.shards[0].requests[-1].id, b"{}"))
    assert await client.ended()


async def _timed_out(there: Stage, client: Client) -> None:
    for link in there.gateway.shards.links.open():
        assert link is not None
        for pending in link.waiting.values():
            pending.deadline = 0
    assert (await client.receive()).code == "not_ready"


async def _shard_died(there: Stage, client: Client) -> None:
    there.lose_shard(0)
    assert (await client.receive()).code == "not_ready"


@pytest.mark.parametrize("end", [_answered, _disconnected, _server_error, _timed_out, _shard_died])
async def test_a_request_holds_its_keys_slot_until_it_ends_in_whatever_way(end: End) -> None:
    async with stage(
        lambda request: [Parked(request.id)], keys=KEYS, max_inflight_per_key=1, request_timeout_ms=1000
    ) as there:
        served = there.gateway.api.outcomes.served
        there.gateway.shards.links.timeout_s = 0.04  # how often deadlines are looked at
        async with there.client() as holder, there.client() as other:
            await holder.send(DIFF + b"{}")
            await until(
                lambda: any(p.parked for link in there.gateway.shards.links.open() for p in link.waiting.values())
            )
            refused(await other.ask("GET", "/v0/topics/a", headers=ONE), "max_inflight_per_key", 1)
            refused(await other.ask("GET", "/v0/metrics", headers=ONE), "max_inflight_per_key", 1)
            assert (await other.ask("GET", "/v0/health", headers=ONE)).status == 200
            await end(there, holder)
            there.gateway.api.outcomes.served = served
            await until(lambda: not there.gateway.api.entry.requests.open)
            there.shards[0].script = lambda request: [Reply(request.id, b"{}")]
            answer = await other.ask("GET", "/v0/topics/a", headers=ONE)
            assert answer.status == (503 if end is _shard_died else 200)
            assert there.gateway.api.entry.requests.open == there.gateway.flight.count == 0


@pytest.mark.parametrize("closes", [True, False], ids=["the client leaves", "the client is too slow"])
async def test_a_body_that_never_comes_frees_its_slot(closes: bool) -> None:
    patience_ms = 10_000 if closes else 60
    async with stage(keys=KEYS, max_inflight_per_key=1, body_timeout_ms=patience_ms) as there, there.client() as holder:
        await holder.send(SLOW_BODY)
        await until(lambda: bool(there.gateway.api.entry.requests.open))
        if closes:
            await holder.stream.aclose()
        else:
            assert (await holder.receive()).code == "request_timeout"
        await until(lambda: not there.gateway.api.entry.requests.open)


async def test_one_key_does_not_use_up_anothers_slots() -> None:
    parks = stage(lambda request: [Parked(request.id)], keys=KEYS, max_inflight_per_key=1)
    async with parks as there, there.client() as holder, there.client() as other:
        await holder.send(DIFF + b"{}")
        await until(lambda: bool(there.shards[0].requests))
        there.shards[0].script = lambda request: [Reply(request.id, b"{}")]
        assert (await other.ask("GET", "/v0/topics/a", headers=TWO)).status == 200


async def test_without_keys_only_the_instance_has_caps() -> None:
    parks = stage(lambda request: [Parked(request.id)], max_inflight_per_key=1)
    async with parks as there, there.client() as holder, there.client() as other:
        await holder.send(DIFF + b"{}")
        await until(lambda: bool(there.shards[0].requests))
        there.shards[0].script = lambda request: [Reply(request.id, b"{}")]
        assert (await other.ask("GET", "/v0/topics/a")).status == 200


async def test_a_refusal_before_the_slot_and_one_after_it_leave_nothing_behind() -> None:
    async with stage(keys=KEYS, max_inflight_per_key=1) as there, there.client() as client:
        for method, target, headers in (
            ("GET", "/v0/topics/a", {}),
            ("GET", "/v0/topics/a", {"Authorization": "Bearer no"}),
            ("DELETE", "/v0/topics/a", TWO),
            ("GET", "/v0/topics/..", ONE),
            ("GET", "/v0/topics?page_size=x", ONE),
            ("POST", "/v0/topics/a", ONE),
        ):
            assert (await client.ask(method, target, headers=headers)).status in (400, 401, 403)
            await until(lambda: not there.gateway.api.entry.requests.open)


# -- topics and bytes over all shards, on real shards behind scripted sockets


# -- connections


async def test_a_trickling_body_is_ended_however_short_its_pauses() -> None:
    async with stage(body_timeout_ms=150, min_upload_rate=1_000_000) as there, there.client() as client:
        await client.send(SLOW_BODY.replace(b"Content-Length: 9", b"Content-Length: 70000"))
        await until(lambda: there.gateway.budget.used > 0)
        answers: list[Answer] = []

        async def receive() -> None:
            answers.append(await client.receive())

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                while not answers:
                    try:
                        await client.send(b"x")
                    except trio.BrokenResourceError:
                        break
                    await trio.sleep(0.01)
        assert answers[0].code == "request_timeout"
        await until(lambda: not there.gateway.budget.used)

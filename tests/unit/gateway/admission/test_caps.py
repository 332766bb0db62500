"""Claims about caps: at a cap requests get `429`, and every end of a request frees its slot."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from proto.ipc.message import Message, Parked, Reply, Request
from proto.model.keys import Scope
from tests.support.gateway_stage import Answer, Client, Stage, key, stage, until
from tests.support.harness import Harness

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


class Backed:
    """Real shards behind scripts. Replies that `held` holds back are sent by `let_go`."""

    def __init__(self, shards: int, **limits: Any) -> None:
        self.shards = [Harness(**limits) for _ in range(shards)]
        self.held: list[tuple[int, Reply]] = []
        self.hold: set[int] = set()

    def script(self, index: int) -> Callable[[Request], list[Message]]:
        def answer(request: Request) -> list[Message]:
            reply = self.shards[index].reply(request.options, request.topic, request.body)
            reply.id = request.id
            if index in self.hold:
                self.held.append((index, reply))
                return []
            return [reply]

        return answer

    def let_go(self, there: Stage) -> None:
        self.hold.clear()
        for index, reply in self.held:
            there.shards[index].send(reply)

    def totals(self) -> tuple[int, int]:
        topics, _, size = (sum(c) for c in zip(*(s.shard.directory.counters() for s in self.shards), strict=True))
        return topics, size


async def backed(there: Stage, shards: int, **limits: Any) -> Backed:
    made = Backed(shards, **limits)
    for index in range(shards):
        await there.start_shard(index, made.script(index), incarnation=2)
        # The stage's own stats replies have invented counters; from here on the real shards reply.
        there.shards[index].own_stats = False
        there.shards[index].status = made.shards[index].shard.status
        there.gateway.shards.ledger.known[index] = (0, 0)
    return made


RECORD = b'{"records":[{"data":1}]}'
RECORD_SIZE = 17


async def many(there: Stage, requests: list[tuple[str, str, bytes]]) -> list[Answer]:
    answers: list[Answer] = []

    async def worker(mine: list[tuple[str, str, bytes]]) -> None:
        async with there.client() as client:
            for method, target, body in mine:
                answers.append(await client.ask(method, target, body))

    async with trio.open_nursery() as nursery:
        for start in range(16):
            nursery.start_soon(worker, requests[start::16])
    return answers


@pytest.mark.parametrize("seed", range(3))
async def test_many_writers_on_all_shards_fill_the_total_exactly(seed: int) -> None:
    limits = {"max_total_bytes": 50 * RECORD_SIZE + 5}
    rng = random.Random(seed)
    async with stage(shards=3, **limits) as there:
        behind = await backed(there, 3, **limits)
        answers = await many(there, [("POST", f"/v0/topics/t{rng.randrange(9)}", RECORD) for _ in range(120)])
        assert behind.totals()[1] == 50 * RECORD_SIZE
        assert sorted({a.status for a in answers}) == [200, 201, 429]
        assert sum(a.status < 300 for a in answers) == 50
        for answer in answers:
            if answer.status == 429:
                refused(answer, "max_total_bytes", limits["max_total_bytes"])
        async with there.client() as client:
            await client.ask("DELETE", "/v0/topics/t0")
            freed = 50 * RECORD_SIZE - behind.totals()[1]
            answers = await many(there, [("POST", "/v0/topics/t1", RECORD)] * 50)
            assert sum(a.status == 200 for a in answers) == freed // RECORD_SIZE


async def test_many_creations_on_all_shards_fill_the_topics_exactly_and_updates_always_pass() -> None:
    async with stage(shards=3, max_topics=10) as there:
        behind = await backed(there, 3, max_topics=10)
        wanted = [("PUT", f"/v0/topics/p{n}", b"{}") for n in range(20)]
        wanted += [("POST", f"/v0/topics/w{n}", RECORD) for n in range(20)]
        answers = await many(there, wanted)
        assert behind.totals()[0] == 10
        assert sum(a.status == 201 for a in answers) == 10
        for answer in answers:
            if answer.status != 201:
                refused(answer, "max_topics", 10)
        there_are = [name for shard in behind.shards for name in shard.shard.directory.visible]
        updates = [("PUT", f"/v0/topics/{name}", b'{"priority":1}') for name in there_are]
        updates += [("POST", f"/v0/topics/{name}", RECORD) for name in there_are]
        assert {a.status for a in await many(there, updates)} == {200}
        async with there.client() as client:
            assert (await client.ask("DELETE", f"/v0/topics/{there_are[0]}")).json["deleted"]
            assert (await client.ask("PUT", "/v0/topics/again", b"{}")).status == 201
            refused(await client.ask("PUT", "/v0/topics/once-more", b"{}"), "max_topics", 10)


@pytest.mark.parametrize("cap", [1, 2])
async def test_a_refused_router_leaves_no_topic_behind(cap: int) -> None:
    async with stage(shards=2, max_topics=cap, max_routers=1) as there:
        behind = await backed(there, 2, max_topics=cap)
        async with there.client() as client:
            if cap == 2:
                assert (await client.ask("PUT", "/v0/topics/mine", b"{}")).status == 201
            answer = await client.ask("PUT", "/v0/routers/r", b'{"source":"a","dest":"b"}')
            refused(answer, "max_topics", cap)
            left = sorted(name for shard in behind.shards for name in shard.shard.directory.visible)
            assert left == (["mine"] if cap == 2 else [])
            # A topic that existed before stays, whether or not the router is made.
            assert (await client.ask("PUT", "/v0/topics/a", b"{}")).status == 201
            refused(await client.ask("PUT", "/v0/routers/r", b'{"source":"a","dest":"b"}'), "max_topics", cap)
            assert "a" in {name for shard in behind.shards for name in shard.shard.directory.visible}


async def test_room_that_is_only_booked_is_waited_for_not_refused() -> None:
    async with stage(shards=2, max_topics=2) as there:
        behind = await backed(there, 2, max_topics=2)
        names = [next(f"n{n}" for n in range(99) if there.gateway.shards.index_of(f"n{n}") == i) for i in (0, 1)]
        async with there.client() as client:
            assert (await client.ask("PUT", f"/v0/topics/{names[0]}", b"{}")).status == 201
            behind.hold = {0}
            done: list[int] = []

            async def ask(name: str) -> None:
                async with there.client() as own:
                    done.append((await own.ask("PUT", f"/v0/topics/{name}", b"{}")).status)

            # An update, booked like a creation, is on its way to one shard ...
            there.nursery.start_soon(ask, names[0])
            await until(lambda: bool(behind.held))
            # ... while the other shard is asked to create the last topic that the cap allows.
            there.nursery.start_soon(ask, names[1])
            await until(lambda: bool(there.shards[1].requests))
            await trio.testing.wait_all_tasks_blocked()
            behind.let_go(there)
            await until(lambda: len(done) == 2)
            assert done == [200, 201]


async def test_what_a_dead_shard_may_have_taken_counts_until_its_successor_speaks() -> None:
    limits = {"max_total_bytes": 3 * RECORD_SIZE}
    async with stage(shards=2, **limits) as there:
        behind = await backed(there, 2, **limits)
        names = [next(f"n{n}" for n in range(99) if there.gateway.shards.index_of(f"n{n}") == i) for i in (0, 1)]
        async with there.client() as client:
            behind.hold = {0}
            body = b'{"records":[{"data":1},{"data":1},{"data":1}]}'
            await client.send(
                f"POST /v0/topics/{names[0]} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            await until(lambda: bool(behind.held))
            there.lose_shard(0)
            assert (await client.receive()).code == "not_ready"
            answer = await client.ask("POST", f"/v0/topics/{names[1]}", RECORD)
            refused(answer, "max_total_bytes", limits["max_total_bytes"])
            assert behind.totals()[1] == 3 * RECORD_SIZE


async def test_nothing_new_is_made_before_every_shard_has_spoken_once() -> None:
    async with stage(shards=2, max_topics=5) as there:
        behind = await backed(there, 2, max_topics=5)
        there.gateway.shards.ledger.known[1] = None
        name = next(f"n{n}" for n in range(99) if there.gateway.shards.index_of(f"n{n}") == 0)
        async with there.client() as client:
            answer = await client.ask("PUT", f"/v0/topics/{name}", b"{}")
            assert (answer.status, answer.code) == (503, "not_ready")
            assert behind.totals()[0] == 0


# -- connections


async def test_when_connections_run_out_those_that_only_wait_make_room() -> None:
    async with stage(max_connections=8) as there:
        async with trio.open_nursery() as nursery:
            idle = [await trio.open_tcp_stream(*there.address) for _ in range(30)]
            for stream in idle:
                nursery.start_soon(stream.send_all, b"GET /v0/health HTTP/1.1\r\nHo")
        async with there.client() as client:
            assert (await client.ask("GET", "/v0/health")).status == 200
            assert len(there.gateway.server.connections) <= 8
        for stream in idle:
            await stream.aclose()


async def test_requests_at_work_are_never_ended_for_newcomers() -> None:
    parks = stage(lambda request: [Parked(request.id)], max_connections=2)
    async with parks as there, there.client() as one, there.client() as two:
        for client in (one, two):
            await client.send(DIFF + b"{}")
        await until(lambda: len(there.shards[0].requests) == 2)
        async with there.client() as late:
            await late.send(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for request in there.shards[0].requests:
                there.shards[0].send(Reply(request.id, b"{}"))
            for client in (one, two, late):
                assert (await client.receive()).status == 200


async def test_a_trickling_body_is_ended_however_short_its_pauses() -> None:
    async with stage(body_timeout_ms=150, min_upload_rate=1_000_000) as there, there.client() as client:
        await client.send(SLOW_BODY.replace(b"Content-Length: 9", b"Content-Length: 70000"))
        await until(lambda: there.gateway.server._front.budget.used > 0)
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
        await until(lambda: not there.gateway.server._front.budget.used)

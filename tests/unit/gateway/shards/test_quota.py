"""The quota: caps over all shards are filled exactly, and what a dead shard may have taken counts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from proto.ipc.message import Message, Reply, Request
from proto.ipc.operations import REGISTRAR, Allowance, RegistrarRequest
from tests.support.gateway_stage import Answer, Stage, stage, until
from tests.support.harness import Harness
from tests.support.registrar import Others


def refused(answer: Answer, limit: str, most: int) -> None:
    assert (answer.status, answer.code) == (429, "throttled")
    assert {name: answer.json["error"]["detail"][name] for name in ("limit", "max")} == {"limit": limit, "max": most}
    assert int(answer.headers["retry-after"]) >= 1


class Backed:
    """Real shards behind scripts. Replies that `held` holds back are sent by `let_go`."""

    def __init__(self, shards: int, **limits: Any) -> None:
        self.shards = [Harness(**limits) for _ in range(shards)]
        self.held: list[tuple[int, Reply]] = []
        self.hold: set[int] = set()

    def script(self, there: Stage, index: int) -> Callable[[Request], list[Message]]:
        def answer(request: Request) -> list[Message]:
            if isinstance(request.options, RegistrarRequest | Allowance):  # answered later
                self.shards[index].shard.handle(request, "gateway", there.shards[index].send)
                self.shards[index].shard.flush()
                self.shards[index].shard.commits.sync_now()
                return []
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
    await there.nursery.start(made.shards[REGISTRAR].shard.registrar.run, Others(lambda: made.shards))
    for index in range(shards):
        await there.start_shard(index, made.script(there, index), incarnation=2)
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
        for each in behind.shards:
            each.shard.allowance.bind()
        there.nursery.start_soon(there.gateway.api.quota.allowances.run)
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

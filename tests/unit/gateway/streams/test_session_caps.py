"""Watch sessions: how many of them there may be, in all and of one of several keys."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio

from gateway.streams import session_caps
from gateway.streams.session_caps import share_of
from proto.ipc.control import ShardState
from proto.ipc.gateway_page import Page
from proto.ipc.message import Message, Reply, Request
from proto.model.errors import cap_reached
from tests.behaviour.gateway.test_stream_caps import ONE, THREE, TWO, refused
from tests.support.gateway_stage import Answer, Client, Script, key, stage, until
from tests.support.harness import Harness
from tests.support.real_shard import start_real


async def test_one_key_cannot_take_all_watch_sessions() -> None:
    caps = {"max_watch_sessions": 5, "max_watch_sessions_per_key": 2}
    async with stage(keys=[key("one"), key("two"), key("three")], **caps) as there, there.client() as client:
        harness = Harness(**caps, watch_session_ttl_ms=1000)
        harness.append("a", 1)
        await start_real(there, harness)

        async def make(headers: dict[str, str]) -> Answer:
            return await client.ask("POST", "/v0/watch", b'{"topics":{"a":{}}}', headers)

        for each in (ONE, ONE):
            assert (await make(each)).status == 200
        refused(await make(ONE), "max_watch_sessions_per_key", 2)
        for each in (TWO, TWO, THREE):
            assert (await make(each)).status == 200
        refused(await make(TWO), "max_watch_sessions_per_key", 2)
        refused(await make(THREE), "max_watch_sessions", 5)
        await start_real(there, harness.restarted(), incarnation=3)
        refused(await make(ONE), "max_watch_sessions_per_key", 2)
        harness = there.shards[0].harness  # type: ignore[attr-defined]
        harness.clock.advance(2000)
        assert (await make(ONE)).status == 200, "the others have ended"


async def test_sessions_of_a_key_are_counted_over_all_shards() -> None:
    owned = [0, 0]

    def script(index: int) -> Script:
        def answer(request: Request) -> list[Message]:
            if request.op == "watch_resolve":
                topics = dict.fromkeys(request.options.names, (1, 0, 1))
                return [Reply(request.id, extra={"topics": topics})]
            if request.op == "session_make":
                if owned[index] + 1 > request.options.most_owned:
                    error = cap_reached("max_watch_sessions_per_key", 3, "wait")
                    return [Reply(request.id, error=error)]
                owned[index] += 1
            return [Reply(request.id, extra={"owned": owned[index]})]

        return answer

    async with stage(shards=2, keys=[key("one")], max_watch_sessions_per_key=3) as there, there.client() as client:
        for index, shard in enumerate(there.shards):
            shard.script = script(index)
        answers = [await client.ask("POST", "/v0/watch", b'{"topics":{"a":{}}}', ONE) for _ in range(20)]
        assert [answer.status for answer in answers].count(200) == sum(owned) == 3
        refused(answers[-1], "max_watch_sessions_per_key", 3)


async def test_a_key_makes_no_more_sessions_through_several_gateways() -> None:
    limits = {"max_watch_sessions_per_key": 3}
    harnesses = [Harness(**limits) for _ in range(2)]
    for harness in harnesses:
        harness.append("a", 1)  # a topic is in one of them
    page = Page(3)
    try:
        async with AsyncExitStack() as stack:
            clients = []
            for number in range(2):
                made = stage(shards=2, keys=[key("one")], page=page, index=number, **limits)
                there = await stack.enter_async_context(made)
                for index, harness in enumerate(harnesses):
                    await start_real(there, harness, index=index)
                clients.append(await stack.enter_async_context(there.client()))
            answers = [
                await clients[number % 2].ask("POST", "/v0/watch", b'{"topics":{"a":{}}}', ONE) for number in range(20)
            ]
    finally:
        page.close()
    assert [answer.status for answer in answers] == [200] * 3 + [429] * 17
    refused(answers[-1], "max_watch_sessions_per_key", 3)


async def test_a_shard_that_does_not_tell_its_count_delays_several_gateways_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_caps, "COUNT_S", 0.05)

    def answer(request: Request) -> list[Message]:
        if request.op == "watch_resolve":
            return [Reply(request.id, extra={"topics": dict.fromkeys(request.options.names, (1, 0, 1))})]
        return [] if request.op == "session_count" else [Reply(request.id, extra={"owned": 1})]

    page = Page(3)
    try:
        async with stage(answer, keys=[key("one")], page=page) as there, there.client() as client:
            for _ in range(2):
                assert (await client.ask("POST", "/v0/watch", b'{"topics":{"a":{}}}', ONE)).status == 200
    finally:
        page.close()


async def test_a_shard_that_does_not_answer_one_key_delays_no_other() -> None:
    asked: list[int] = []

    def answer(request: Request) -> list[Message]:
        if request.op == "watch_resolve":
            return [Reply(request.id, extra={"topics": dict.fromkeys(request.options.names, (1, 0, 1))})]
        if request.op == "session_make":
            asked.append(request.id)
            if len(asked) == 1:
                return []
        return [Reply(request.id, extra={"owned": 1})]

    async with stage(answer, keys=[key("one"), key("two")]) as there, there.client() as first, there.client() as second:
        answers: list[Answer] = []

        async def make(client: Client, headers: dict[str, str]) -> None:
            answers.append(await client.ask("POST", "/v0/watch", b'{"topics":{"a":{}}}', headers))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make, first, ONE)
            await until(lambda: len(asked) == 1)
            with trio.fail_after(20):
                await make(second, TWO)
            assert [answer.status for answer in answers] == [200]
            there.shards[0].send(Reply(asked[0], extra={"owned": 1}))
        assert [answer.status for answer in answers] == [200, 200]
        assert not there.gateway.api.live.session_caps._making


async def test_one_gateway_makes_one_session_of_a_key_at_a_time() -> None:
    asked: list[int] = []

    def answer(request: Request) -> list[Message]:
        if request.op == "watch_resolve":
            return [Reply(request.id, extra={"topics": dict.fromkeys(request.options.names, (1, 0, 1))})]
        if request.op == "session_make":
            asked.append(request.id)
            return []
        return [Reply(request.id, extra={"owned": 0})]

    async with stage(answer, keys=[key("one")]) as there, there.client() as first, there.client() as second:
        statuses: list[int] = []

        async def make(client: Client) -> None:
            statuses.append((await client.ask("POST", "/v0/watch", b'{"topics":{"a":{}}}', ONE)).status)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make, first)
            await until(lambda: len(asked) == 1)
            nursery.start_soon(make, second)
            lock = next(iter(there.gateway.api.live.session_caps._making.values()))
            await until(lambda: lock.statistics().tasks_waiting == 1)
            assert len(asked) == 1
            for number in range(2):
                await until(lambda: len(asked) > number)  # noqa: B023 - awaited at once
                there.shards[0].send(Reply(asked[number], extra={"owned": number + 1}))
        assert statuses == [200, 200]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_the_shares_of_a_cap_are_even_and_add_up_to_it(count: int) -> None:
    for most in (1, 2, 3, 63, 64, 65, 10_000, 1 << 40):
        shares = [share_of(most, index, count) for index in range(count)]
        assert sum(shares) == most
        assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("gateways", [1, 2])
@pytest.mark.parametrize("most", [1, 3])
async def test_any_number_of_gateways_make_as_many_sessions_as_there_may_be(gateways: int, most: int) -> None:
    limits = {"max_watch_sessions": most, "watch_session_ttl_ms": 1000}
    harnesses = [Harness(**limits) for _ in range(2)]
    for harness in harnesses:
        harness.append("a", 1)  # a topic is in one of them
    async with AsyncExitStack() as stack:
        stages = [await stack.enter_async_context(stage(shards=2, **limits)) for _ in range(gateways)]
        for there in stages:
            for index, harness in enumerate(harnesses):
                await start_real(there, harness, index=index)
        answers: list[Answer] = []

        async def make(number: int) -> None:
            async with stages[number % gateways].client() as client:
                answers.append(await client.ask("POST", "/v0/watch", b'{"topics":{"a":{}}}'))

        for _ in range(2):
            answers.clear()
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(make, number)
            assert [answer.status for answer in answers].count(200) == most
            for answer in answers:
                if answer.status != 200:
                    refused(answer, "max_watch_sessions", most)
            for harness in harnesses:
                harness.clock.advance(2000)  # all sessions have ended


async def test_while_a_shard_is_away_sessions_are_made_in_the_others() -> None:
    limits = {"max_watch_sessions": 5}
    async with stage(shards=2, **limits) as there, there.client() as client:
        here = next(index for index in range(2) if there.gateway.shards.index_of("a") == index)
        harness = Harness(**limits)
        harness.append("a", 1)
        await start_real(there, harness, index=here)
        there.gateway.shards.update(
            [state if state.index == here else ShardState(state.index, "failed") for state in there.states]
        )
        answers = [await client.ask("POST", "/v0/watch", b'{"topics":{"a":{}}}') for _ in range(5)]
        most = share_of(5, here, 2)
        assert [answer.status for answer in answers] == [200] * most + [503] * (5 - most)
        assert len(harness.shard.directory.sessions) == most

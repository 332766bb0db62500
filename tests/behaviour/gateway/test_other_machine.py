"""A gateway whose shard is held by another machine: requests take the link to that one, and fail with it alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from gateway.shards import client
from proto.ipc import links
from proto.ipc.message import Parked, Reply, Request
from proto.ipc.operations import Ping, Stats
from tests.support.gateway_stage import Client, Stage, echo, stage, until
from tests.support.holder import CLUSTER, Holder, holder


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "AGAIN_S", 0.01)


@asynccontextmanager
async def forwarding() -> AsyncIterator[tuple[Stage, Holder, Client]]:
    """A gateway, the holder of its only shard, which echoes, and a client of the gateway."""
    async with holder() as there, stage(cluster=CLUSTER) as here:

        def answer(request: Request) -> Reply[Any]:
            return Reply(request.id) if isinstance(request.options, Ping | Stats) else echo(request)[0]  # type: ignore[return-value]

        there.answer = answer  # type: ignore[method-assign]
        here.states[0] = there.state()
        here.gateway.shards.update(here.states)
        await until(lambda: here.gateway.shards.serving(0))
        async with here.client() as connection:
            yield here, there, connection


async def test_a_request_is_answered_by_the_holder() -> None:
    async with forwarding() as (here, _, connection):
        answer = await connection.ask("POST", "/v0/topics/t/diff", b'{"from_seq":0}')
        assert (answer.status, answer.json["op"], answer.json["topic"]) == (200, "diff", "t")
        assert (await connection.ask("GET", "/v0/ready")).status == 200
        assert here.gateway.shards.complete.is_set()


async def test_while_the_holder_is_not_reached_it_is_named() -> None:
    async with forwarding() as (here, there, connection):
        there.cable.whole = False
        there.cable.end_all()
        await until(lambda: not here.gateway.shards.serving(0))
        answer = await connection.ask("POST", "/v0/topics/t/diff", b'{"from_seq":0}')
        assert (answer.status, answer.json["error"]["detail"]["outcome"]) == (503, "not_done")
        assert "http://b holds shard 0" in answer.json["error"]["message"]
        answer = await connection.ask("GET", "/v0/ready")
        assert (answer.status, answer.json["error"]["detail"]["standby"]) == (503, True)


async def test_a_request_that_was_not_sent_waits_for_the_next_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE_S", 60)
    async with forwarding() as (here, there, connection), trio.open_nursery() as nursery:
        there.cable.whole = False
        there.cable.end_all()
        await until(lambda: not here.gateway.shards.serving(0))
        answers: list[int] = []

        async def ask() -> None:
            answers.append((await connection.ask("POST", "/v0/topics/t/diff", b'{"from_seq":0}')).status)

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert not answers
        there.cable.whole = True
        await until(lambda: bool(answers))
        assert answers == [200]


async def test_a_parked_request_ends_with_the_link_and_others_go_on() -> None:
    async with forwarding() as (here, there, connection), trio.open_nursery() as nursery:
        plain = there.answer
        parked: list[int] = []

        def answer(request: Request) -> Any:
            if request.topic != "parked":
                return plain(request)
            parked.append(request.id)
            return Parked(request.id)

        there.answer = answer  # type: ignore[method-assign]
        answers: list[Any] = []

        async def poll() -> None:
            body = b'{"from_seq":0,"wait_ms":20000}'
            answers.append(await connection.ask("POST", "/v0/topics/parked/diff", body))

        nursery.start_soon(poll)
        await until(lambda: bool(parked))
        there.cable.end_all()
        await until(lambda: bool(answers))
        assert (answers[0].status, answers[0].json["error"]["detail"]["outcome"]) == (503, "unknown")
        await until(lambda: here.gateway.shards.serving(0))
        assert (await connection.ask("POST", "/v0/topics/t/diff", b'{"from_seq":0}')).status == 200


async def test_a_holder_that_may_not_answer_makes_this_machine_unready() -> None:
    async with forwarding() as (here, there, connection):
        there.silent = True
        await until(lambda: here.gateway.shards.silent[0] or bool(here.gateway.shards.ask(0, Stats())))
        await until(lambda: here.gateway.shards.silent[0])
        assert (await connection.ask("GET", "/v0/ready")).status == 503

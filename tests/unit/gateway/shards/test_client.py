"""Requests to a shard that is being started again: they were not sent, so they wait for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gateway.shards import moves
from gateway.shards.client import Shards
from proto.ipc.control import ShardState, Suspected
from proto.ipc.operations import Stats
from proto.ipc.suspects import DEATHS, print_of
from tests.support.gateway_stage import Answer, Stage, echo, stage, until

WRITE = b'{"records":[{"data":1}]}'


async def write(there: Stage, answers: list[Answer]) -> None:
    async with there.client() as asking:
        answers.append(await asking.ask("POST", "/v0/topics/a", WRITE))


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch, _short_patience: None) -> None:
    monkeypatch.setattr(moves, "PATIENCE_S", 60.0)


async def test_a_request_waits_for_a_shard_that_returns() -> None:
    async with stage() as there, trio.open_nursery() as nursery:
        answers: list[Answer] = []
        await write(there, answers)
        there.lose_shard(0)
        nursery.start_soon(write, there, answers)
        await until(lambda: there.gateway.flight.count == 1)
        there.gateway.shards.update([ShardState(0, phase="replay")])
        await there.start_shard(0, echo, incarnation=2)
    assert [answer.status for answer in answers] == [200, 200]


async def test_it_waits_no_longer_than_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "PATIENCE_S", 0.01)
    async with stage() as there:
        answers: list[Answer] = []
        await write(there, answers)
        there.lose_shard(0)
        await write(there, answers)
    assert (answers[1].status, answers[1].code) == (503, "not_ready")
    assert answers[1].json["error"]["detail"]["outcome"] == "not_done"


@pytest.mark.parametrize("phase", ["failed", "standby", "stopping"])
async def test_it_does_not_wait_for_a_shard_that_does_not_return(monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    monkeypatch.setattr(moves, "PATIENCE_S", float("inf"))
    async with stage() as there, trio.open_nursery() as nursery:
        answers: list[Answer] = []
        await write(there, answers)
        there.lose_shard(0)
        nursery.start_soon(write, there, answers)
        await until(lambda: there.gateway.flight.count == 1)
        there.gateway.shards.update([ShardState(0, phase=phase)])
    assert answers[1].status == 503


async def test_a_list_of_all_shards_waits_too() -> None:
    async with stage(shards=2) as there, there.client() as asking, trio.open_nursery() as nursery:
        await asking.ask("GET", "/v0/topics")
        there.lose_shard(1)
        answers: list[Answer] = []

        async def listed() -> None:
            answers.append(await asking.ask("GET", "/v0/topics"))

        nursery.start_soon(listed)
        await until(lambda: there.gateway.flight.count == 1)
        await there.start_shard(1, echo, incarnation=2)
    assert answers[0].status == 200


async def test_a_link_whose_first_question_is_refused_ends_no_other(short_path: Path) -> None:
    shards = Shards(2, 60_000)
    for number in range(DEATHS):
        shards.links.suspects.heard(Suspected(0, number, [print_of(Stats(), "", b"")]))
    async with trio.open_nursery() as nursery:
        await nursery.start(shards.run)
        shards.update([ShardState(index, "ready", f"ipc://{short_path}/{index}") for index in range(2)])
        await trio.testing.wait_all_tasks_blocked()
        assert [shards.links.to(index).scope.cancel_called for index in range(2)] == [False, False]
        nursery.cancel_scope.cancel()

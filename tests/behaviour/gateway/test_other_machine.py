"""A gateway whose shard is held by another machine: requests take the link to that one, and fail with it alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from gateway.shards import moves
from proto.ipc import links
from proto.ipc.control import ShardState
from proto.ipc.message import Parked, Reply, Request
from proto.ipc.operations import ListTopics, Page, Ping, Stats
from proto.ipc.remote import KeyPair, RemoteRouter
from proto.ipc.transport import MessageSocket
from proto.model.errors import moving
from proto.model.limits import Limits
from shardd.clock import SystemClock
from shardd.process.server import Server
from shardd.shard import opened_shard
from shardd.storage.disk import RealDisk
from tests.support.gateway_stage import Answer, Client, Stage, echo, stage, until
from tests.support.holder import CLUSTER, Holder, holder

WRITE = b'{"records":[{"data":1}]}'


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
    monkeypatch.setattr(moves, "PATIENCE_S", 60)
    async with forwarding() as (here, there, connection), trio.open_nursery() as nursery:
        there.cable.whole = False
        there.cable.end_all()
        await until(lambda: not here.gateway.shards.serving(0))
        answers: list[int] = []

        async def ask() -> None:
            answers.append((await connection.ask("POST", "/v0/topics/t/diff", b'{"from_seq":0}')).status)

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked(0.002)  # less than the pause between two tries of the link
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


@asynccontextmanager
async def both(path: Path) -> AsyncIterator[tuple[Client, Client, trio.CancelScope]]:
    """A client of the machine that holds a real shard, one of another machine, and the scope of the shard."""
    keys, endpoint = KeyPair.new(), f"ipc://{path}/shard.sock"
    (path / "shard").mkdir()
    shard = opened_shard(RealDisk(), SystemClock(), path / "shard", Limits())
    shard.allowance.bind(alone=True)
    local, remote = MessageSocket.router(endpoint), RemoteRouter("127.0.0.1:0", keys, 1 << 20)
    remote.allow({CLUSTER.public: CLUSTER.machine})
    at = f"tcp://127.0.0.1:{remote.port}"
    serving = trio.CancelScope()

    async def serve(task_status: trio.TaskStatus[None]) -> None:
        try:
            with serving:
                await Server(shard, local, Limits(), remote=remote).run(task_status)
        finally:
            remote.close()

    async with stage() as here, stage(cluster=CLUSTER) as there, trio.open_nursery() as nursery:
        await nursery.start(serve)
        for each, state in (
            (here, ShardState(0, "ready", endpoint, 1)),
            (there, ShardState(0, "standby", "", 1, holder="http://a", holder_at=at, holder_key=keys.public)),
        ):
            each.states[0] = state
            each.gateway.shards.update(each.states)
            await until(lambda each=each: each.gateway.shards.serving(0))
        async with here.client() as ours, there.client() as theirs:
            yield ours, theirs, serving
        nursery.cancel_scope.cancel()
    local.close()


async def test_clients_of_two_machines_see_one_shard(tmp_path: Path) -> None:
    async with both(tmp_path) as (ours, theirs, _):
        large = "x" * 300_000
        for number, client in enumerate((theirs, ours, theirs)):
            body = json.dumps({"records": [{"data": [number, large]}], "create": True}).encode()
            answer = await client.ask("POST", "/v0/topics/t", body)
            assert answer.json["seqs"] == [number + 1]
        found = [(await client.ask("POST", "/v0/topics/t/diff", b'{"from_seq":0}')).json for client in (ours, theirs)]
        assert [record["data"] for record in found[1]["records"]] == [[number, large] for number in range(3)]
        assert found[0]["records"] == found[1]["records"]
        assert (await theirs.ask("POST", "/v0/topics/none/diff", b'{"from_seq":0}')).code == "topic_not_found"
        assert (await theirs.ask("POST", "/v0/topics/t", b"{")).status == 400


async def test_a_long_poll_of_one_machine_gets_what_comes_by_the_other(tmp_path: Path) -> None:
    async with both(tmp_path) as (ours, theirs, _), trio.open_nursery() as nursery:
        assert (await ours.ask("PUT", "/v0/topics/t", b"{}")).status == 201
        answers: list[Any] = []

        async def poll() -> None:
            answers.append((await theirs.ask("POST", "/v0/topics/t/diff", b'{"from_seq":0,"wait_ms":30000}')).json)

        nursery.start_soon(poll)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await ours.ask("POST", "/v0/topics/t", b'{"records":[{"data":"late"}]}')
        await until(lambda: bool(answers))
        assert [record["data"] for record in answers[0]["records"]] == ["late"]


async def test_when_the_holder_ends_its_clients_elsewhere_know_at_once(tmp_path: Path) -> None:
    async with both(tmp_path) as (ours, theirs, serving), trio.open_nursery() as nursery:
        assert (await ours.ask("PUT", "/v0/topics/t", b"{}")).status == 201
        answers: list[Any] = []

        async def poll() -> None:
            answers.append(await theirs.ask("POST", "/v0/topics/t/diff", b'{"from_seq":0,"wait_ms":30000}'))

        nursery.start_soon(poll)
        await trio.testing.wait_all_tasks_blocked(0.01)
        serving.cancel()
        with trio.fail_after(10):
            await until(lambda: bool(answers))
        assert (answers[0].status, answers[0].json["error"]["detail"]["outcome"]) == (503, "unknown")
        answer = await theirs.ask("POST", "/v0/topics/t", b'{"records":[{"data":1}]}')
        assert (answer.status, answer.json["error"]["detail"]["outcome"]) == (503, "not_done")


def unheld() -> ShardState:
    """As a standby reports a shard that no machine holds."""
    return ShardState(0, "standby", "ipc://own", 1)


def refuse(there: Holder) -> list[Request]:
    """Have a holder refuse requests as one does that hands its shard over. Returns those that it will get."""
    refused: list[Request] = []

    def answer(request: Request) -> Reply[Any]:
        if isinstance(request.options, Ping):
            return Reply(request.id)
        if not isinstance(request.options, Stats):
            refused.append(request)
        return Reply(request.id, error=moving(0))

    there.answer = answer  # type: ignore[method-assign]
    return refused


@asynccontextmanager
async def moved() -> AsyncIterator[tuple[Stage, Holder, Holder, Client]]:
    """As `forwarding`, and the next holder, which echoes."""
    async with forwarding() as (here, there, connection), holder() as heir:
        heir.answer = there.answer  # type: ignore[method-assign]
        yield here, there, heir, connection


async def test_requests_that_a_moving_shard_refuses_go_to_its_next_holder() -> None:
    async with moved() as (here, there, heir, _), trio.open_nursery() as nursery:
        refused = refuse(there)
        answers: list[Answer] = []

        async def ask(number: int) -> None:
            async with here.client() as asking:
                body = b'{"records":[{"data":%d}]}' % number
                answers.append(await asking.ask("POST", "/v0/topics/t", body))

        for number in range(5):
            nursery.start_soon(ask, number)
        await until(lambda: here.gateway.flight.count == 5 and here.gateway.shards.returns(0))
        await until(lambda: not any(link.waiting for link in here.gateway.shards.links.open()))
        assert len(refused) == 5, "those that wait are not sent to find out"
        here.gateway.shards.update([unheld()])
        for number in range(5, 8):  # these are not sent
            nursery.start_soon(ask, number)
        await until(lambda: here.gateway.flight.count == 8)
        assert not answers
        here.gateway.shards.update([heir.state()])
        await until(lambda: len(answers) == 8)
        assert {answer.status for answer in answers} == {200}
        assert sorted(json.loads(answer.json["body"])["records"][0]["data"] for answer in answers) == list(range(8))


async def test_requests_wait_for_the_next_holder_when_the_shard_says_that_it_is_given_away() -> None:
    async with moved() as (here, there, heir, connection), trio.open_nursery() as nursery:
        answers: list[Answer] = []

        async def ask() -> None:
            answers.append(await connection.ask("POST", "/v0/topics/t", WRITE))

        there.give()
        await until(lambda: there.no_more)
        nursery.start_soon(ask)
        await until(lambda: here.gateway.flight.count == 1)
        there.cable.end_all()
        await until(lambda: not here.gateway.shards.serving(0))
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not answers
        here.gateway.shards.update([heir.state()])
        await until(lambda: bool(answers))
        assert answers[0].status == 200
        assert json.loads(answers[0].json["body"]) == json.loads(WRITE)


async def test_a_move_that_is_given_up_is_latency() -> None:
    async with moved() as (_, there, _, connection), trio.open_nursery() as nursery:
        plain = there.answer
        refused = refuse(there)
        answers: list[Answer] = []

        async def ask() -> None:
            answers.append(await connection.ask("POST", "/v0/topics/t", WRITE))

        nursery.start_soon(ask)
        await until(lambda: bool(refused))
        await trio.sleep(0.2)  # longer than the pause between two questions
        assert not answers
        there.answer = plain  # type: ignore[method-assign]
        await until(lambda: bool(answers))
        assert answers[0].status == 200


async def test_a_move_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "MOVING_S", 0.1)
    async with moved() as (here, there, _, connection):
        refuse(there)
        answer = await connection.ask("POST", "/v0/topics/t", WRITE)
        assert (answer.status, answer.json["error"]["detail"]["reason"]) == (503, "moving")
        assert answer.json["error"]["detail"]["outcome"] == "not_done"
        here.gateway.shards.update([unheld()])
        there.cable.end_all()
        await until(lambda: not here.gateway.shards.serving(0))
        answer = await connection.ask("POST", "/v0/topics/t", WRITE)
        assert (answer.status, answer.json["error"]["detail"]["outcome"]) == (503, "not_done")
        assert "no machine holds shard 0" in answer.json["error"]["message"]


async def test_a_request_of_unknown_outcome_is_not_sent_again() -> None:
    async with moved() as (here, there, heir, connection), trio.open_nursery() as nursery:
        plain, taken = there.answer, []

        def answer(request: Request) -> Any:
            if isinstance(request.options, Ping | Stats):
                return plain(request)
            taken.append(request)
            return None

        there.answer = answer  # type: ignore[method-assign]
        answers: list[Answer] = []

        async def ask() -> None:
            answers.append(await connection.ask("POST", "/v0/topics/t", WRITE))

        nursery.start_soon(ask)
        await until(lambda: bool(taken))
        here.gateway.shards.update([heir.state()])
        await until(lambda: bool(answers))
        assert (answers[0].status, answers[0].json["error"]["detail"]["outcome"]) == (503, "unknown")
        await until(lambda: here.gateway.shards.serving(0))
        assert not [request for _, request in heir.requests if request.topic]


async def test_a_long_poll_goes_on_at_the_next_holder() -> None:
    async with moved() as (here, there, heir, connection), trio.open_nursery() as nursery:
        plain, parked = there.answer, []

        def answer(request: Request) -> Any:
            if request.topic != "parked":
                return plain(request)
            parked.append(request.id)
            return Parked(request.id)

        there.answer = answer  # type: ignore[method-assign]
        answers: list[Answer] = []

        async def poll() -> None:
            body = b'{"from_seq":0,"wait_ms":20000}'
            answers.append(await connection.ask("POST", "/v0/topics/parked/diff", body))

        nursery.start_soon(poll)
        await until(lambda: bool(parked))
        refuse(there)
        there.router.send(Reply(parked[0], error=moving(0)), there.names[-1])
        await until(lambda: here.gateway.shards.returns(0))
        here.gateway.shards.update([unheld()])
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not answers
        here.gateway.shards.update([heir.state()])
        await until(lambda: bool(answers))
        assert (answers[0].status, answers[0].json.get("op")) == (200, "diff"), answers[0].json


async def test_a_list_of_all_shards_waits_for_one_that_moves() -> None:
    async with moved() as (here, there, heir, connection), trio.open_nursery() as nursery:
        refused = refuse(there)
        answers: list[Answer] = []

        async def ask() -> None:
            answers.append(await connection.ask("GET", "/v0/topics"))

        nursery.start_soon(ask)
        await until(lambda: here.gateway.shards.returns(0))
        assert refused

        def answer(request: Request) -> Reply[Any]:
            extra = Page((), False) if isinstance(request.options, ListTopics) else None
            return Reply(request.id, b"[]" if extra else b"", extra=extra)

        heir.answer = answer  # type: ignore[method-assign]
        here.gateway.shards.update([heir.state()])
        await until(lambda: bool(answers))
        assert answers[0].status == 200


async def test_what_another_machine_holds_does_not_count_here() -> None:
    async with forwarding() as (here, there, connection):
        there.counted = (3, 5, 8)
        here.gateway.shards.ask(0, Stats())
        await until(lambda: here.gateway.shards.counters[0] == (3, 5, 8))
        lines = (await connection.ask("GET", "/v0/metrics")).raw.decode().splitlines()
        assert "topics_topics 0.0" in lines
        assert 'topics_shard_phase{phase="standby",shard="0"} 1.0' in lines
        assert 'topics_shard_up{shard="0"} 1.0' in lines
        assert (await connection.ask("GET", "/v0/ready")).json["topics"] == 3, "of the whole service"


async def test_an_answer_names_the_machine_that_holds_its_topic() -> None:
    async with forwarding() as (here, _, connection):
        here.gateway.api.forwarding.several = True
        answer = await connection.ask("POST", "/v0/topics/t/diff", b'{"from_seq":0}')
        assert answer.headers["topics-holder"] == "http://b"
        assert "topics-holder" not in (await connection.ask("GET", "/v0/ready")).headers
        for strange in ("b", "http://b\r\nx: y", "http://é"):
            here.states[0] = msgspec.structs.replace(here.states[0], holder=strange)
            here.gateway.shards.update(here.states)
            answer = await connection.ask("POST", "/v0/topics/t/diff", b'{"from_seq":0}')
            assert (answer.status, answer.headers.get("topics-holder")) == (200, None)

"""Shards move between machines while clients use them through a gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.protocols.walrus import Walrus
from gateway.shards import moves
from proto.ipc import links
from proto.model.errors import moving
from proto.model.limits import Limits
from proto.wire.walrus import Get, Put, Register
from tests.support.gateway_events import Events
from tests.support.gateway_stage import Client, Stage, until
from tests.support.holders import Holders, holders


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "AGAIN_S", 0.01)


@asynccontextmanager
async def service(path: Path) -> AsyncIterator[tuple[Holders, Stage, Client]]:
    """Two shards on two machines, a gateway on a third one, and a client of it."""
    async with holders(path, 0, 1) as there, there.gateway(2) as stage, stage.client() as client:
        for index in (0, 1):
            assert (await client.ask("PUT", f"/v0/topics/{there.name(index)}", b"{}")).status == 201
        yield there, stage, client


@asynccontextmanager
async def events(stage: Stage, path: str) -> AsyncIterator[Events]:
    async with stage.client() as client:
        await client.send(
            b"GET " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        )
        yield Events(client)


async def append(client: Client, topic: str, *data: Any) -> None:
    body = json.dumps({"records": [{"data": each} for each in data], "create": True}).encode()
    answer = await client.ask("POST", f"/v0/topics/{topic}", body)
    assert answer.status in (200, 201), answer.raw


async def watch(client: Client, **what: Any) -> str:
    return str((await client.ask("POST", "/v0/watch", json.dumps(what).encode())).json["stream_url"])


async def test_requests_meet_latency_and_no_error(tmp_path: Path) -> None:
    async with service(tmp_path) as (there, stage, client):
        topic, given, written = there.name(1), trio.Event(), []

        async def write(worker: int) -> None:
            async with stage.client() as writer:
                number = 0
                while not given.is_set():
                    await append(writer, topic, [worker, number])
                    written.append([worker, number])
                    number += 1

        async with trio.open_nursery() as writers:
            for worker in range(8):
                writers.start_soon(write, worker)
            for machine in (0, 2, 1):
                count = len(written)
                await there.give(1, machine)
                while len(written) < count + 20:  # noqa: ASYNC110 - what it looks at has no event
                    await trio.sleep(0.001)
            given.set()
        body = b'{"from_seq":0,"limit":100000}'
        found = (await client.ask("POST", f"/v0/topics/{topic}/diff", body)).json["records"]
        assert sorted(record["data"] for record in found) == sorted(written), "each once"


async def test_a_shard_without_a_holder_takes_no_machine_out_of_use(tmp_path: Path) -> None:
    async with service(tmp_path) as (there, stage, client):
        shards = stage.gateway.shards
        await there.lose(1)
        await until(lambda: not shards.serving(1))
        assert (await client.ask("GET", "/v0/ready")).status == 200
        await append(client, there.name(0), "other shards are served")
        await there.lose(0)
        await until(lambda: not shards.serving(0))
        assert (await client.ask("GET", "/v0/ready")).status == 503


async def test_a_watch_goes_on(tmp_path: Path) -> None:
    async with service(tmp_path) as (there, stage, client):
        names = there.name(0), there.name(1)
        url = await watch(client, topics={name: {"from_seq": 0} for name in names})
        async with events(stage, url) as stream:
            for number, machine in enumerate((0, 2, 1)):
                for name in names:
                    await append(client, name, [name, number])
                found = sorted(await stream.record() + await stream.record())
                assert found == sorted([name, number] for name in names), "each record once"
                await there.give(1, machine)
            await there.move(1, 0)
            await append(client, names[1], "last")
            assert await stream.record() == ["last"]


async def test_the_shard_of_a_watch_session_may_move(tmp_path: Path) -> None:
    async with service(tmp_path) as (there, stage, client):
        url = await watch(client, topics={there.name(0): {"from_seq": 0}})
        async with events(stage, url) as stream:
            await append(client, there.name(0), 1)
            assert await stream.record() == [1]
            for index in (0, 1):
                await there.give(index, 2)
            await append(client, there.name(0), 2)
            assert await stream.record() == [2]
        async with events(stage, url) as stream:
            await append(client, there.name(0), 3)
            while 3 not in await stream.record():
                pass


async def test_a_watch_of_a_prefix_goes_on(tmp_path: Path) -> None:
    async with service(tmp_path) as (there, stage, client):
        url = await watch(client, prefix="t")
        async with events(stage, url) as stream:
            await append(client, there.name(1), 1)
            assert await stream.record() == [1]
            await there.give(1, 2)
            await append(client, there.name(1), 2)
            assert await stream.record() == [2]
            await append(client, there.name(1, 5), "new")
            assert await stream.record() == ["new"]


async def test_a_job_stream_ends_and_its_jobs_come_again(tmp_path: Path) -> None:
    async with service(tmp_path) as (there, stage, client):
        queue = there.name(1, 3)
        assert (await client.ask("PUT", f"/v0/topics/{queue}", b'{"type":"queue"}')).status == 201
        await append(client, queue, "job")
        path = f"/v0/topics/{queue}/work?node=w&lease_ms=1000"
        async with events(stage, path) as stream:
            assert (await stream.next())[0] == "job"
            await there.give(1, 2)
            event, data = await stream.next()
            assert (event, data["code"]) == ("error", 503)
        async with events(stage, path) as stream:
            event, data = await stream.next()
            assert (event, data["data"]) == ("job", "job")


async def test_a_long_poll_and_a_claim_go_on(tmp_path: Path) -> None:
    async with service(tmp_path) as (there, stage, client), trio.open_nursery() as nursery:
        queue, log = there.name(1, 3), there.name(1)
        assert (await client.ask("PUT", f"/v0/topics/{queue}", b'{"type":"queue"}')).status == 201
        answers: dict[str, Any] = {}

        async def ask(path: str, body: bytes) -> None:
            async with stage.client() as asking:
                answers[path] = await asking.ask("POST", f"/v0/topics/{path}", body)

        nursery.start_soon(ask, f"{log}/diff", b'{"from_seq":0,"wait_ms":20000}')
        nursery.start_soon(ask, f"{queue}/claim", b'{"node":"w","wait_ms":20000}')
        parked = there.process(1).shard
        while not (len(parked.reads) and parked.claims._by_key):  # noqa: ASYNC110 - what it looks at has no event
            await trio.sleep(0.001)
        await there.give(1, 2)
        await append(client, log, "late")
        await append(client, queue, "job")
        while len(answers) < 2:  # noqa: ASYNC110 - what it looks at has no event
            await trio.sleep(0.001)
        assert [record["data"] for record in answers[f"{log}/diff"].json["records"]] == ["late"]
        assert [record["data"] for record in answers[f"{queue}/claim"].json["claimed"]] == ["job"]


async def test_routers_lists_and_watches_wait_for_their_shard(tmp_path: Path) -> None:
    async with service(tmp_path) as (there, stage, _), trio.open_nursery() as nursery:
        shard = there.process(0).shard
        body = json.dumps({"source": there.name(0), "dest": there.name(1)}).encode()
        watch = json.dumps({"topics": {there.name(0): {"from_seq": 0}}}).encode()
        asked = [("PUT", "/v0/routers/r", body), ("GET", "/v0/topics", None), ("POST", "/v0/watch", watch)]
        answers: list[int] = []

        async def ask(method: str, path: str, body: bytes | None) -> None:
            async with stage.client() as asking:
                answers.append((await asking.ask(method, path, body)).status)

        refusing = trio.Event()
        move = shard.move

        def moves(*refusal: Any) -> None:
            move(*refusal)
            refusing.set()

        shard.move = moves  # type: ignore[method-assign]
        nursery.start_soon(there.give, 0, 2)
        await refusing.wait()
        for each in asked:
            nursery.start_soon(ask, *each)
        while len(answers) < len(asked):  # noqa: ASYNC110 - what it looks at has no event
            await trio.sleep(0.001)
        assert set(answers) <= {200, 201}


async def test_a_walrus_client_hears_of_no_move_unless_it_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service(tmp_path) as (there, stage, _), trio.open_nursery() as nursery:
        topic = there.name(1, 2)
        node = Walrus(stage.gateway.shards, Limits()).session()
        assert b"OK" in await node.answer(Register(topic))
        answers: list[bytes] = []

        async def put() -> None:
            answers.append(await node.answer(Put(topic, "during the move")))

        there.process(1).shard.move(moving(1))
        nursery.start_soon(put)
        await until(lambda: stage.gateway.shards.returns(1))
        await there.give(1, 2)
        await until(lambda: bool(answers))
        assert b"OK" in answers[0]
        assert b"during the move" in await node.answer(Get(topic))
        monkeypatch.setattr(moves, "MOVING_S", 0.05)
        await there.lose(1)
        assert b"ERR NotLeaderForPartition" in await node.answer(Put(topic, "late"))

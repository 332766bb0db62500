"""Claims about removed keys: their streams and waiting requests end, with the reason."""

from __future__ import annotations

import json

import pytest

from gateway.contract.auth import Keyring
from proto.ipc.message import Message, Parked, Reply, Request
from proto.model.keys import Key, Scope
from tests.behaviour.gateway.test_stream_caps import asked
from tests.support.gateway_stage import key, stage, until
from tests.support.harness import Harness
from tests.support.real_shard import start_real
from tests.unit.gateway.streams.test_job_stream import ASKED, Queue, opened, seen

KEYS = [key("one"), key("two")]
ONE = {"Authorization": "Bearer one"}
REPLACED: dict[str, list[Key]] = {"gone": KEYS[1:], "changed": [KEYS[1], key("one", Scope.READ | Scope.WRITE)]}


@pytest.mark.slow
@pytest.mark.parametrize("how", REPLACED)
async def test_a_stream_of_jobs_ends_and_gives_them_back(how: str) -> None:
    queue = Queue({"$seq": 1, "data": 0})
    async with stage(queue, keys=KEYS) as there, opened(there, **ONE) as client:
        await seen(client, b"event: job")
        async with opened(there, Authorization="Bearer two") as other:
            await until(lambda: len(queue.waiting) == 2)
            there.gateway.keyring.replace(REPLACED[how])
            await seen(client, b"event: error\n")
            assert b'"code":401' in await seen(client, b"\n\n")
            await seen(client, b"0\r\n\r\n")
            assert len(queue.closed) == 1
            queue.jobs.append({"$seq": 2, "data": 0})
            there.shards[0].send(Reply(queue.waiting[-1], b'[{"$seq":2}]', extra={"seqs": [2]}))
            await seen(other, b"id: 2")


async def test_a_stream_whose_key_goes_while_it_is_opened_ends_at_once() -> None:
    held: list[Request] = []
    queue = Queue({"$seq": 1, "data": 0})

    def script(request: Request) -> list[Message]:
        if request.op == "work_open":
            held.append(request)
            return []
        return queue(request)

    async with stage(script, keys=KEYS) as there, opened(there, ASKED, **ONE) as client:
        await until(lambda: len(held) == 1)
        there.gateway.keyring.replace(KEYS[1:])
        there.shards[0].send(Reply(held[0].id, b"{}"))
        await seen(client, b'"code":401')
        await until(lambda: len(queue.closed) == 1)
        assert len(queue.jobs) == 1


@pytest.mark.parametrize("kind", ["event stream", "websocket"])
async def test_watchers_end(kind: str) -> None:
    async with stage(keys=KEYS) as there:
        shard = Harness()
        shard.append("a", 1)
        await start_real(there, shard)
        async with there.client() as client:
            assert (await asked(client, kind, ONE)).status in (200, 101)
            await until(lambda: len(there.gateway.api.live.streams) == 1)
            there.gateway.keyring.replace(KEYS[1:])
            await seen(client, b"401" if kind == "event stream" else b"unauthorized")
            await until(lambda: not there.gateway.api.live.streams)


async def test_a_long_poll_is_answered_401() -> None:
    asked: list[Request] = []

    def script(request: Request) -> list[Message]:
        asked.append(request)
        return [Parked(request.id)]

    async with stage(script, keys=KEYS) as there, there.client() as client, there.client() as other:
        body = json.dumps({"from_seq": 0, "wait_ms": 30_000}).encode()
        head = f"POST /v0/topics/a/diff HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Type: application/json\r\nAuthorization: Bearer "
        await client.send(f"{head}one\r\n\r\n".encode() + body)
        await until(lambda: len(asked) == 1)
        await other.send(f"{head}two\r\n\r\n".encode() + body)
        await until(lambda: len(asked) == 2)
        there.gateway.keyring.replace(KEYS[1:])
        answer = await client.receive()
        assert (answer.status, answer.code) == (401, "unauthorized")
        await until(lambda: there.shards[0].cancelled == [asked[0].id])
        there.shards[0].send(Reply(asked[1].id, b"{}"))
        assert (await other.receive()).status == 200


def test_nothing_is_remembered_of_what_is_over() -> None:
    keyring = Keyring(KEYS)
    ended: list[str] = []
    with keyring.while_known(KEYS[0], lambda: ended.append("in time")):
        assert keyring.knows(KEYS[0])
    keyring.replace(KEYS[1:])
    assert ended == []
    with keyring.while_known(KEYS[0], lambda: ended.append("late")):
        assert ended == ["late"]
    assert not keyring._lasting

"""Claims about `GET …/work` as a client sees it, with a scripted shard behind: its heartbeats, its ends, its bounds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from gateway_stage import Client, Stage, stage, until

from gateway import work
from proto.errors import TopicsError, topic_not_found
from proto.message import Message, Parked, Reply, Request

ASKED = "/v0/topics/q/work?node=w&max=2"


class Queue:
    """A shard that has `jobs` to give, and then none."""

    def __init__(self, *jobs: dict[str, object]) -> None:
        self.jobs = list(jobs)
        self.closed: list[str] = []
        self.waiting: list[int] = []
        self.error: TopicsError | None = None

    def __call__(self, request: Request) -> list[Message]:
        if request.op == "work_close":
            self.closed.append(request.options["stream"])
        if request.op != "work_take":
            return [Reply(request.id, b"{}")]
        if self.error is not None:
            return [Reply(request.id, error=self.error)]
        if not self.jobs:
            self.waiting.append(request.id)
            return [Parked(request.id)]
        job = self.jobs.pop(0)
        return [Reply(request.id, json.dumps([job]).encode(), extra={"seqs": [job["$seq"]]})]


@asynccontextmanager
async def opened(there: Stage, target: str = ASKED, **headers: str) -> AsyncIterator[Client]:
    async with there.client() as client:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        await client.send(f"GET {target} HTTP/1.1\r\nHost: h\r\n{lines}\r\n".encode())
        yield client


async def seen(client: Client, text: bytes) -> bytes:
    """What came, up to `text` and with it."""
    with trio.fail_after(5):
        while text not in client.buffer:
            await client._more()
    found, _, client.buffer = client.buffer.partition(text)
    return found + text


async def test_a_stream_begins_with_a_retry_and_a_heartbeat_and_beats_while_there_are_no_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work, "HEARTBEAT_S", 0.02)
    async with stage(Queue()) as there, opened(there) as client:
        begun = await seen(client, b": hb ")
        assert b"HTTP/1.1 200 OK" in begun
        assert b"content-type: text/event-stream" in begun.lower()
        assert b"retry: 2000\n\n" in begun
        for _ in range(3):
            assert b"event:" not in await seen(client, b": hb ")


async def test_jobs_are_events_with_their_topic_and_their_seq_as_id() -> None:
    job = {"$seq": 7, "lease_id": "lease_0", "deadline": 1, "$ts": 1, "deliveries": 1, "data": {"a": "x\ny"}}
    async with stage(Queue(job)) as there, opened(there) as client:
        await seen(client, b"id: 7\nevent: job\ndata: ")
        line = await seen(client, b"\n\n")
        assert json.loads(line) == {"topic": "q", **job}


@pytest.mark.parametrize(
    ("target", "accept", "status", "code"),
    [
        ("/v0/topics/q/work", "*/*", 400, "invalid_request"),
        ("/v0/topics/q/work?node=", "*/*", 400, "invalid_request"),
        (f"{ASKED}x", "*/*", 400, "invalid_request"),
        (ASKED, "application/json", 406, "not_acceptable"),
    ],
)
async def test_what_cannot_be_a_stream_is_refused_before_it_begins(
    target: str, accept: str, status: int, code: str
) -> None:
    queue = Queue()
    async with stage(queue) as there, opened(there, target, Accept=accept) as client:
        answer = await client.receive()
        assert (answer.status, answer.code) == (status, code)
        assert queue.waiting == []


@pytest.mark.parametrize("accept", ["text/event-stream", "text/*", "*/*"])
async def test_an_accept_that_allows_streams_is_fine(accept: str) -> None:
    async with stage(Queue()) as there, opened(there, Accept=accept) as client:
        assert b" 200 " in await seen(client, b": hb ")


async def test_what_a_client_holds_is_given_back_when_it_goes() -> None:
    queue = Queue({"$seq": 1, "data": 0})
    async with stage(queue) as there:
        async with opened(there) as client:
            await seen(client, b"event: job")
            assert queue.closed == []
        await until(lambda: len(queue.closed) == 1)
        assert queue.closed == [there.shards[0].requests[0].options["stream"]]
        assert there.shards[0].cancelled[-1:] == queue.waiting[-1:]


async def test_a_client_that_does_not_read_is_let_go_and_its_jobs_given_back() -> None:
    queue = Queue(*({"$seq": n, "data": "x" * (1 << 20)} for n in range(1, 65)))
    async with stage(queue, slow_consumer_timeout_ms=100) as there, opened(there):
        await until(lambda: len(queue.closed) == 1)
        assert queue.jobs  # not all of it went into nowhere
        await until(lambda: not there.gateway.server.connections)


async def test_a_queue_that_is_gone_ends_the_stream_with_a_last_frame() -> None:
    queue = Queue({"$seq": 1, "data": 0})
    async with stage(queue) as there, opened(there) as client:
        await seen(client, b"event: job")
        await until(lambda: len(queue.waiting) == 1)
        there.shards[0].send(Reply(queue.waiting[0], error=topic_not_found("q")))
        await seen(client, b"event: error\n")
        assert b'"code":404' in await seen(client, b"\n\n")
        await seen(client, b"0\r\n\r\n")
        assert len(queue.closed) == 1


async def test_a_shard_that_vanishes_ends_the_stream_with_503() -> None:
    queue = Queue()
    async with stage(queue) as there, opened(there) as client:
        await until(lambda: len(queue.waiting) == 1)
        there.lose_shard(0)
        await seen(client, b"event: error\n")
        assert b'"code":503' in await seen(client, b"\n\n")

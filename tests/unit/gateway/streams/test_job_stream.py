"""Claims about `GET …/work` as a client sees it, with a scripted shard: its heartbeats, its ends, its limits."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress

import h2.events
import pytest
import trio

from gateway.admission.body_budget import Kind
from gateway.api import forwarding
from gateway.http.messages import ClientGone
from gateway.streams import job_stream
from proto.ipc.link import Link
from proto.ipc.message import Message, Parked, Reply, Request, Status
from proto.ipc.operations import Claim
from proto.model.errors import TopicsError, topic_not_found
from tests.support.gateway_stage import Client, Stage, key, stage, until
from tests.support.harness import Harness
from tests.support.real_shard import start_real
from tests.unit.gateway.server.test_http2_server import Client as Http2Client


@pytest.fixture(autouse=True)
def _short_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards here do not answer when a stream closes."""
    monkeypatch.setattr(job_stream, "GOODBYE_S", 0.05)


ASKED = "/v0/topics/q/work?node=w&max=2"


class Queue:
    """The script of a shard that has `jobs`, and then none."""

    def __init__(self, *jobs: dict[str, object]) -> None:
        self.jobs = list(jobs)
        self.closed: list[str] = []
        self.waiting: list[int] = []
        self.error: TopicsError | None = None

    def __call__(self, request: Request) -> list[Message]:
        if request.op == "work_close":
            self.closed.append(request.options.stream)
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
        await client.send(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
        yield client


async def seen(client: Client, text: bytes) -> bytes:
    """Read up to and including `text`; return all bytes read."""
    with trio.fail_after(60):
        while text not in client.buffer:
            await client._more()
    found, _, client.buffer = client.buffer.partition(text)
    return found + text


async def test_a_stream_begins_with_a_retry_and_a_heartbeat_and_beats_while_there_are_no_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_stream, "HEARTBEAT_S", 0.02)
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


async def test_what_is_asked_for_is_looked_at_before_accept_and_nothing_is_leased() -> None:
    """An unknown topic is 404 whatever the client accepts. A client that gets 406 holds no job and no stream."""
    harness = Harness()
    harness.call("configure", "q", {"type": "queue"})
    harness.append("q", 1, 2)
    harness.append("log", 1)
    async with stage() as there:
        await start_real(there, harness)
        for topic, accept, status in [
            ("unknown", "application/json", 404),
            ("unknown", "text/event-stream", 404),
            ("log", "application/json", 409),
            ("q", "application/json", 406),
        ]:
            async with opened(there, f"/v0/topics/{topic}/work?node=w", Accept=accept) as client:
                assert (await client.receive()).status == status, (topic, accept)
    queue = harness.shard.directory.find("q").queue
    assert queue is not None
    assert not queue.streams
    state = harness.call("state", "q")["queue"]
    assert (state["ready"], state["in_flight"]) == (2, 0)


@pytest.mark.slow
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
        assert queue.closed == [there.shards[0].requests[0].options.stream]
        assert there.shards[0].cancelled[-1:] == queue.waiting[-1:]


async def test_a_client_that_does_not_read_is_let_go_and_its_jobs_given_back() -> None:
    queue = Queue(*({"$seq": n, "data": "x" * (1 << 20)} for n in range(1, 65)))
    async with stage(queue, slow_consumer_timeout_ms=100) as there, opened(there):
        await until(lambda: len(queue.closed) == 1)
        assert queue.jobs  # some jobs were never sent
        await until(lambda: not there.gateway.server.connections)


async def test_jobs_that_wait_for_a_client_count_in_the_budget_until_they_are_sent() -> None:
    queue = Queue(*({"$seq": n, "data": "x" * (4 << 20)} for n in range(1, 9)))
    async with stage(queue) as there:

        def held() -> int:
            return sum(size for (kind, _), size in there.gateway.budget._held.items() if kind is Kind.STREAM)

        async with opened(there) as client:
            await until(lambda: held() > 4 << 20)  # no longer a reservation, and the client does not read
            for _ in range(8):
                await seen(client, b"event: job")
            await until(lambda: len(queue.waiting) == 1 and not held())
            queue.jobs.append({"$seq": 9, "data": "x" * (16 << 20)})
            there.shards[0].send(Reply(queue.waiting[0], b"[]", extra={"seqs": []}))
            await until(lambda: held() > 16 << 20)
        await until(lambda: not held())


async def test_a_stream_without_room_for_jobs_asks_for_none_and_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_stream, "HEARTBEAT_S", 0.02)
    queue = Queue({"$seq": 1, "data": 0})
    async with stage(queue) as there:
        others = there.gateway.budget.hold(Kind.STREAM)
        others.set(there.gateway.budget.total)
        assert not there.gateway.budget.hold(Kind.STREAM).take(1 << 20)
        async with opened(there) as client:
            for _ in range(3):
                await seen(client, b": hb ")
            assert [request.op for request in there.shards[0].requests] == ["work_open"]
            others.release()
            await seen(client, b"event: job")


async def test_many_jobs_of_one_reply_come_in_parts_and_none_is_left_out() -> None:
    jobs = [{"$seq": n, "data": "x" * (n << 10)} for n in range(1, 41)]
    queue = Queue()
    async with stage(queue) as there, opened(there) as client:
        await until(lambda: len(queue.waiting) == 1)
        there.shards[0].send(Reply(queue.waiting[0], json.dumps(jobs).encode(), extra={"seqs": list(range(1, 41))}))
        for job in jobs:
            await seen(client, b"id: %d\nevent: job\ndata: " % job["$seq"])
            assert json.loads(await seen(client, b"\n\n")) == {"topic": "q", **job}


HUGE = {"$seq": 1, "data": "x" * (16 << 20)}
"""A job that is larger than what a connection takes before its client reads."""


def pieces(wire: bytes) -> tuple[list[bytes], bool]:
    """The chunks of an answer, of which the last may be cut, and whether the answer has its end."""
    rest = wire.partition(b"\r\n\r\n")[2]
    found: list[bytes] = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            assert rest == b"\r\n"
            return found, True
        assert rest[length : length + 2] in (b"\r\n", b"\r", b""), "something is between the bytes of a chunk"
        found.append(rest[:length])
        rest = rest[length + 2 :]
    return found, False


async def all_of(client: Client) -> bytes:
    """All bytes since the connection began, up to its end or to that of the answer."""
    wire = bytearray(client.buffer)
    with trio.fail_after(60), suppress(trio.BrokenResourceError):
        while not wire.endswith(b"\r\n0\r\n\r\n") and (data := await client.stream.receive_some(1 << 20)):
            wire += data
    return bytes(wire)


@asynccontextmanager
async def sending(queue: Queue) -> AsyncIterator[tuple[Stage, Client]]:
    """A stream that has begun to send `HUGE`."""
    async with (
        stage(queue, keys=[key("one")]) as there,
        opened(there, Authorization="Bearer one") as client,
    ):
        while b"event: job" not in client.buffer:
            await client._more()
        yield there, client


@pytest.mark.parametrize("how", ["drain", "revoke"])
async def test_a_job_that_is_being_sent_comes_whole_before_the_last_frame(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(job_stream, "GOODBYE_S", 60)
    queue = Queue(HUGE)
    async with sending(queue) as (there, client):
        if how == "drain":
            there.nursery.start_soon(there.gateway.api.work.drain)
            await until(lambda: there.gateway.api.work._draining)
        else:
            there.gateway.keyring.replace([key("two")])
        found, whole = pieces(await all_of(client))
        job, error = b"".join(found).split(b"\n\n")[-3:-1]
        assert json.loads(job.partition(b"data: ")[2]) == {"topic": "q", **HUGE}
        assert error.startswith(b"event: error\ndata: ")
        assert json.loads(error.partition(b"data: ")[2])["code"] == (503 if how == "drain" else 401)
        assert whole
        assert queue.waiting == [], "an ending stream asks for no more jobs"


async def test_a_job_that_cannot_be_sent_whole_is_followed_by_nothing() -> None:
    queue = Queue(HUGE)
    async with sending(queue) as (there, client):
        await there.gateway.api.work.drain()
        assert len(queue.closed) == 1
        found, whole = pieces(await all_of(client))
        assert b"event: job" in b"".join(found)
        assert b"event: error" not in b"".join(found)
        assert not whole


async def test_over_http_2_a_cut_job_is_followed_by_a_reset() -> None:
    queue = Queue(HUGE)
    async with stage(queue) as there, there.client() as connected:
        client = Http2Client(connected.stream)
        await client.begin("GET", ASKED, end=True)
        found = b""
        with trio.fail_after(60):
            async with aclosing(client.events()) as events:
                async for event in events:
                    if isinstance(event, h2.events.DataReceived):
                        found += event.data
                        if len(found) == 65535:  # all that the client makes room for
                            await there.gateway.api.work.drain()
                    if isinstance(event, (h2.events.StreamReset, h2.events.StreamEnded)):
                        break
        assert isinstance(event, h2.events.StreamReset)
        assert b"event: job" in found
        assert b"event: error" not in found


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


@pytest.mark.parametrize(("asked", "lease_ms"), [("", None), ("&lease_ms=0", 0), ("&lease_ms=-7", -7)])
async def test_a_lease_of_zero_is_not_taken_for_none_at_all(asked: str, lease_ms: int | None) -> None:
    async with stage(Queue()) as there, opened(there, ASKED + asked) as client:
        await seen(client, b": hb ")
        assert there.shards[0].requests[0].options.lease_ms == lease_ms


class Claims:
    """The script of a shard that answers claims only when the test says so."""

    def __init__(self, *dead_letters: str) -> None:
        self.dead_letters = list(dead_letters)
        self.made: list[tuple[str, object]] = []
        self.known = True

    def __call__(self, request: Request) -> list[Message]:
        if request.op == "claim":
            return [Parked(request.id)]
        if request.op == "configure":
            self.made.append((request.topic, request.options.if_absent))
        if not self.known:
            return []
        return [Reply(request.id, b"{}")]


CLAIM = b'{"node":"w","wait_ms":30000}'


async def asked(there: Stage, client: Client) -> int:
    """Wait until a claim has arrived at the shard; return its id."""
    lines = ("Host: localhost", "Content-Type: application/json", f"Content-Length: {len(CLAIM)}")
    head = "\r\n".join(("POST /v0/topics/q/claim HTTP/1.1", *lines))
    await client.send(f"{head}\r\n\r\n".encode() + CLAIM)
    await until(lambda: bool(there.shards[0].requests))
    return there.shards[0].requests[0].id


async def test_a_client_that_leaves_its_claim_is_taken_out() -> None:
    async with stage(Claims()) as there:
        async with there.client() as client:
            ident = await asked(there, client)
        await until(lambda: there.shards[0].cancelled == [ident])


async def test_jobs_for_a_client_that_leaves_at_the_same_moment_are_not_taken() -> None:
    async with stage(Claims()) as there:
        shards = there.gateway.shards
        parked, answered = trio.Event(), trio.Event()
        heard = shards.links._heard

        def listen(link: Link, status: Status, replies: list[Reply]) -> None:
            heard(link, status, replies)
            if parked.is_set() and replies:
                answered.set()

        shards.links._heard = listen
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(ClientGone):
                    await shards.call(Claim(), "q", CLAIM, answered.wait, parked=parked.set)

            nursery.start_soon(ask)
            await until(lambda: bool(there.shards[0].requests))
            ident = there.shards[0].requests[0].id
            await parked.wait()
            there.shards[0].send(Reply(ident, b"{}"))
        await until(lambda: there.shards[0].cancelled == [ident])


async def test_the_topic_of_dead_letters_is_there_when_the_claim_has_its_answer() -> None:
    claims = Claims()
    async with stage(claims) as there, there.client() as client:
        ident = await asked(there, client)
        there.shards[0].send(Reply(ident, b'{"claimed":[]}', extra={"dead_letters": ["dead"]}))
        assert (await client.receive()).json["claimed"] == []
        assert claims.made == [("dead", True)]


async def test_a_claim_is_answered_also_if_the_topic_of_its_dead_letters_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarding, "MAKING_S", 0.01)
    claims = Claims()
    claims.known = False
    async with stage(claims) as there, there.client() as client:
        ident = await asked(there, client)
        there.shards[0].send(Reply(ident, b'{"claimed":[]}', extra={"dead_letters": ["dead"]}))
        assert (await client.receive()).status == 200

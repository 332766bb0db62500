"""Claims about event streams that write to their connection without a turn of their task, about their heartbeats, and
about the id of a tombstone."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import pytest
import trio

from gateway.http.messages import DirectWrite
from gateway.streams.event_ids import decode
from gateway.streams.sse import EventStream
from gateway.streams.subscription import Item
from proto.model.limits import MAX_WAIT_MS
from tests.support.gateway_stage import Client, Stage, stage, until
from tests.support.harness import Harness
from tests.support.real_shard import start_real
from tests.support.routed import Net

SIZE = 200_000


@asynccontextmanager
async def watching(
    topics: int = 1, node: str | None = None, **limits: int
) -> AsyncIterator[tuple[Stage, Harness, Client]]:
    """A stream of empty topics, which is live. It leaves out the records of `node`."""
    async with stage(**limits) as there:
        shard = Harness()
        names = [f"t{number}" for number in range(topics)]
        for name in names:
            shard.call("configure", name)
        await start_real(there, shard)
        async with there.client() as client:
            asked = json.dumps({"topics": {name: {} for name in names}, "node": node}).encode()
            made = await client.ask("POST", "/v0/watch", asked)
            assert (await client.ask("GET", made.json["stream_url"])).status == 200
            while client.buffer.count(b"event: caught-up") < topics:
                await client._more()
            await until(lambda: len(shard.shard.reads) == topics)
            yield there, shard, client


async def write(there: Stage, topic: str, data: bytes) -> None:
    async with there.client() as writer:
        body = b'{"records":[{"data":"%b"}]}' % data
        assert (await writer.ask("POST", f"/v0/topics/{topic}", body)).status == 200


def unchunked(data: bytes) -> bytes:
    """The content of whole chunks; fails if their sizes do not fit."""
    content = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        assert data[length : length + 2] == b"\r\n"
        content += data[:length]
        data = data[length + 2 :]
    return content


async def test_a_batch_is_written_without_a_turn_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching() as (there, _, client):

        async def never(stream: EventStream) -> None:
            raise AssertionError

        monkeypatch.setattr(EventStream, "send", never)
        for number in range(3):
            await write(there, "t0", b"record %d" % number)
            while b"record %d" % number not in client.buffer:
                await client._more()


async def test_a_client_that_reads_slowly_gets_every_record_once_and_in_order() -> None:
    async with watching(buffer_grace_ms=60_000, slow_consumer_timeout_ms=60_000) as (there, shard, client):
        stream = next(iter(there.gateway.api.live.streams))
        number = 0
        while not stream.sending:  # the connection takes no more
            number += 1
            await write(there, "t0", b"x" * SIZE + b" %d." % number)
            await until(lambda: len(shard.shard.reads) == 1)
        for _ in range(20):
            number += 1
            await write(there, "t0", b"y" * SIZE + b" %d." % number)
        while b" %d." % number not in client.buffer[-SIZE:] or not client.buffer.endswith(b"\n\n\r\n"):
            await client._more()
        seen = re.findall(rb"[xy]{%d} (\d+)\." % SIZE, unchunked(client.buffer))
        assert [int(each) for each in seen] == [*range(1, number + 1)]


async def test_a_stream_of_several_topics_gathers_what_they_bring() -> None:
    async with watching(2) as (there, shard, client):
        written: list[bytes] = []
        connection_write = next(iter(there.gateway.api.live.streams))._write

        async def noted(piece: bytes) -> None:
            written.append(piece)
            await connection_write(piece)

        next(iter(there.gateway.api.live.streams))._write = noted
        for name in ("t0", "t1"):
            shard.send("append", name, {"records": [{"data": "gathered"}]})
        there.shards[0].settle()
        while client.buffer.count(b"gathered") < 2:
            await client._more()
        assert len(written) == 1


class Stuck(DirectWrite):
    """A connection that takes one byte and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    async def __call__(self, piece: bytes) -> None:
        self.pieces.append(piece)
        await trio.sleep_forever()

    def offer(self, piece: bytes) -> bool:
        self.unsent = piece[1:]
        return True


async def test_what_a_connection_left_is_sent_before_more_is_taken_from_the_queue() -> None:
    async with watching() as (there, _, _):
        stream = next(iter(there.gateway.api.live.streams))
        assert isinstance(stream, EventStream)
        await until(lambda: stream._sender is not None)
        stream._direct = stream._write = stuck = Stuck()
        for letter in (b"x", b"y"):
            stream.put(Item("raw", None, letter * SIZE, None, SIZE))
        await until(lambda: stuck.pieces)
        assert stuck.pieces == [b""], "only what was left of the first item"
        assert [item.what[:1] for item in stream.queue] == [b"y"]


@pytest.mark.parametrize("topics", [1, 2])
@pytest.mark.parametrize("written", [0, 1])
async def test_a_read_that_ends_without_records_takes_the_place_of_no_heartbeat(
    topics: int, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick = EventStream.tick
    monkeypatch.setattr(EventStream, "tick", lambda *_: None)  # only the test looks whether a heartbeat is due
    async with watching(topics, node="me") as (there, shard, client):
        stream = next(iter(there.gateway.api.live.streams))
        assert isinstance(stream, EventStream)
        feeds = [subscription.feed for subscription in stream.subscriptions.values()]
        await until(lambda: stream._progress.told and not stream.sending)
        for name in stream.subscriptions:
            for _ in range(written):
                shard.send("append", name, {"records": [{"data": "mine"}], "node": "me"})
        there.shards[0].settle()
        stream.sent_at = since = monotonic() - stream._heartbeat_s - 1
        parked = set(shard.shard.reads._parked)
        shard.clock.advance(MAX_WAIT_MS)
        there.shards[0].settle()
        await until(lambda: len(parked | set(shard.shard.reads._parked)) == 2 * topics)  # the feeds ask again
        await until(lambda: not stream.sending)
        assert stream.sent_at == since
        assert [feed.seq for feed in feeds if feed is not None] == [written] * topics
        assert written or not stream._progress.untold
        tick(stream, monotonic())
        while b": hb " not in client.buffer:
            await client._more()


async def upto_caught_up(client: Client, url: str, headers: dict[str, str] | None = None) -> bytes:
    """Open a stream; return its bytes up to its first `caught-up`."""
    assert (await client.ask("GET", url, headers=headers)).status == 200
    while b"event: caught-up" not in client.buffer:
        await client._more()
    return client.buffer


async def test_a_client_that_returns_after_a_gap_in_the_middle_gets_what_follows_it() -> None:
    net = Net(1)
    shard = net.shards[0]
    shard.call("configure", "dest", {"cap_records": 2, "discard": "reject"})
    net.router("r", "source", "dest")
    shard.append("source", *range(6))
    net.settle()
    shard.call("configure", "source", {"cap_records": 1})
    shard.call("configure", "dest", {"cap_records": 9})
    net.settle()
    async with stage() as there:
        await start_real(there, shard)
        async with there.client() as client:
            made = await client.ask("POST", "/v0/watch", b'{"topics":{"dest":{"from_seq":2}}}')
            url = made.json["stream_url"]
            got = await upto_caught_up(client, url)
        told = re.search(rb'id: (\S+)\nevent: tombstone\ndata: .*"gap_from":3,"gap_to":5,', got)
        assert told is not None
        assert decode(told[1].decode(), ["dest"]).seqs == {"dest": 5}
        async with there.client() as client:
            got = await upto_caught_up(client, url, {"Last-Event-ID": told[1].decode()})
        assert b"event: tombstone" not in got
        assert re.findall(rb'"\$seq":(\d+)', got) == [b"6"]

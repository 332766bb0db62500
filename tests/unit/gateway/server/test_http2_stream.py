"""Streams of HTTP/2: bodies that wait, are refused or asked for, and clients that reset."""

from __future__ import annotations

import math
from contextlib import aclosing

import h2.events
import pytest
import trio
import trio.testing

from gateway.admission.body_budget import Budget, Hold, Kind
from gateway.server.connection import FIRST_GROWTH_BYTES
from gateway.server.http2_connection import Carried
from gateway.server.http2_stream import Http2Stream
from proto.model.limits import Limits
from tests.support.gateway_stage import until
from tests.unit.gateway.server.test_http2_server import client, large, used


async def test_a_body_that_waits_for_memory_holds_no_other_stream() -> None:
    async with client(max_body_bytes=1 << 20, memory_bytes=1 << 20) as (there, http2):
        json = ("content-type", "application/json")
        held = there.gateway.budget.hold(Kind.STREAM)
        held.set(1 << 20)
        number = await http2.begin("POST", "/v0/topics/a", json)
        http2.connection.send_data(number, b"x" * 16384)
        await http2.flush()
        await until(lambda: there.gateway.budget.waiting == 1)
        for _ in range(20):
            assert (await http2.ask("GET", "/v0/health"))[0] == 200
        held.release()


async def test_a_small_body_that_comes_after_its_head_does_not_wait_for_memory() -> None:
    async with client() as (there, http2):
        budget = there.gateway.budget
        holds = [budget.hold(Kind.STREAM), budget.hold(Kind.STREAM)]
        for hold in holds:
            hold.set(budget.total)
        number = await http2.begin(
            "POST", "/v0/topics/a", ("content-type", "application/json"), ("content-length", "4096")
        )
        await trio.testing.wait_all_tasks_blocked(0.01)
        http2.connection.send_data(number, b"{}".ljust(4096), end_stream=True)
        await http2.flush()
        with trio.fail_after(5):
            answered = await http2.first(h2.events.ResponseReceived, number)
        assert isinstance(answered, h2.events.ResponseReceived)
        assert dict(answered.headers or [])[":status"] == "200"
        for hold in holds:
            hold.release()
        await until(lambda: used(there) == 0)


class AloneLink:
    """A connection that sends nothing."""

    def __init__(self) -> None:
        self.waiting = False
        self.starved_since = self.deadline = math.inf
        self.expired = False
        self.carried = Carried(self, 1000)
        self.limits = Limits()

    def send_head(self, stream: Http2Stream, fields: list[tuple[bytes, bytes]], *, end: bool = False) -> None: ...
    def send_left(self, stream: Http2Stream) -> None: ...
    def widen(self, stream: Http2Stream, size: int) -> None: ...
    def acknowledge(self, stream: Http2Stream, size: int) -> None: ...
    def peer(self) -> str:
        return ""


async def full(budget: Budget) -> list[Hold]:
    """Take all bytes, and for one body the right to grow beyond them. Returns what holds them."""
    streams, beyond = [budget.hold(Kind.STREAM), budget.hold(Kind.STREAM)], budget.hold(Kind.BODY)
    for hold in streams:
        hold.set(budget.total)
    beyond.set(1)
    await beyond.grow(2)
    assert budget.used > budget.total
    return [*streams, beyond]


@pytest.mark.parametrize("size", [0, 100, 100_000])
async def test_a_body_that_has_arrived_does_not_wait_for_memory_until_its_end_comes(size: int) -> None:
    budget = Budget(1 << 20)
    head = [(b":method", b"POST"), (b":path", b"/"), (b"content-length", b"%d" % size)]
    stream = Http2Stream(AloneLink(), 1, head, budget, whole=False)
    found: list[bytes] = []

    async def read() -> None:
        found.append(await stream.body())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        _holds = await full(budget)
        for _ in range(size // 100):
            stream.receives(b"x" * 100, 100)
            await trio.testing.wait_all_tasks_blocked()
        assert budget.waiting == 0
        stream.received_all()
        await trio.testing.wait_all_tasks_blocked()
        assert found == [b"x" * size]


async def test_a_body_of_unknown_length_waits_for_memory_before_it_is_longer_than_what_it_holds() -> None:
    budget = Budget(1 << 20)
    stream = Http2Stream(AloneLink(), 1, [(b":method", b"POST"), (b":path", b"/")], budget, whole=False)
    found: list[bytes] = []

    async def read() -> None:
        found.append(await stream.body())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        holds = await full(budget)
        stream.receives(b"x" * FIRST_GROWTH_BYTES, FIRST_GROWTH_BYTES)
        await trio.testing.wait_all_tasks_blocked()
        assert budget.waiting == 0
        stream.receives(b"x", 1)
        await trio.testing.wait_all_tasks_blocked()
        assert budget.waiting == 1
        for hold in holds:
            hold.release()
        await trio.testing.wait_all_tasks_blocked()
        stream.received_all()
    assert found == [b"x" * (FIRST_GROWTH_BYTES + 1)]


async def test_a_refused_body_is_answered_and_then_reset() -> None:
    async with client(max_body_bytes=1000) as (there, http2):
        fields = [("content-type", "application/json"), ("content-length", "5000")]
        number = await http2.begin("POST", "/v0/topics/a", *fields)
        answered = reset = None
        async with aclosing(http2.events()) as events:  # both may come at once
            async for event in events:
                if isinstance(event, h2.events.ResponseReceived) and event.stream_id == number:
                    answered = event
                if isinstance(event, h2.events.StreamReset) and event.stream_id == number:
                    reset = event
                    break
        assert answered is not None
        assert dict(answered.headers or [])[":status"] == "413"
        assert reset is not None
        assert reset.error_code == 0
        await until(lambda: used(there) == 0)


async def test_a_client_that_resets_its_stream_gets_no_more_of_it() -> None:
    async with client(large) as (there, http2):
        number = await http2.begin("GET", "/v0/topics/a", end=True)
        await http2.first(h2.events.DataReceived, number)
        http2.connection.reset_stream(number)
        await http2.flush()
        await until(lambda: used(there) == 0 and there.gateway.flight.count == 0)
        assert (await http2.ask("GET", "/v0/health"))[0] == 200


async def test_a_client_may_ask_before_it_sends_a_body() -> None:
    async with client() as (there, http2):
        number = await http2.begin(
            "POST", "/v0/topics/a", ("content-type", "application/json"), ("expect", "100-continue")
        )
        await http2.first(h2.events.InformationalResponseReceived, number)
        assert (await http2.answer(number, b"{}"))[0] == 200
        assert there.shards[0].requests[0].body == b"{}"

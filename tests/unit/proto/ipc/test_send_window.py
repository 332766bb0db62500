"""Claims about the bytes in flight between two processes: requests to a shard, and its replies."""

from __future__ import annotations

import gc

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from proto.ipc.message import Message, Parked, Reply, Request
from proto.ipc.operations import Append, StateGet
from proto.ipc.send_window import SMALL_BYTES, Window
from proto.model.memory_shares import SMALLEST_WINDOW
from tests.support.gateway_stage import Stage, stage, until

MIB = 1 << 20
EVENTS = st.lists(st.tuples(st.sampled_from(["ask", "answer", "give up"]), st.integers(0, 200_000)), max_size=60)


@given(EVENTS)
def test_a_window_counts_exactly_what_a_shard_may_still_have(events: list[tuple[str, int]]) -> None:
    window = Window(300_000)
    sent: dict[int, int] = {}
    given_up: set[int] = set()
    ident = 0
    for what, number in events:
        if what == "ask":
            if window.fits(number):
                assert sum(sent.values()) + number <= 300_000 or not sum(sent.values()) or number <= SMALL_BYTES
                ident += 1
                window.sent(ident, number)
                if number > SMALL_BYTES:
                    sent[ident] = number
        elif sent and what == "answer":
            one = sorted(sent)[number % len(sent)]
            window.answered(one)
            sent = {each: size for each, size in sent.items() if each != one and not (each < one and each in given_up)}
        elif sent:
            one = sorted(sent)[number % len(sent)]
            window.given_up(one)
            given_up.add(one)
        assert window.bytes == sum(sent.values())


async def write(there: Stage, number: int, size: int = 100_000) -> trio.CancelScope:
    """Send one write and wait for its reply, until the scope is cancelled."""
    scope = trio.CancelScope()
    (link,) = there.gateway.shards.links.open()
    before = len(link.waiting)

    async def ask() -> None:
        with scope:
            await there.gateway.shards.call(Append(), f"t{number}", body=b"x" * size)

    there.nursery.start_soon(ask)
    await until(lambda: len(link.waiting) > before)
    return scope


async def test_a_shard_that_hangs_is_handed_a_window_and_no_more() -> None:
    async with stage(lambda request: [], memory_bytes=4 * MIB) as there:
        (link,) = there.gateway.shards.links.open()
        assert link._window.most == MIB // 2
        scopes = [await write(there, number) for number in range(20)]
        await until(lambda: len(there.shards[0].requests) == 5)
        assert len(link._queue) == 15
        # Requests that were never sent leave nothing behind when they are abandoned.
        for scope in scopes[5:]:
            scope.cancel()
        await until(lambda: len(link.waiting) == 5)
        assert (len(link._queue), link._window.bytes) == (0, 500_000)
        # Requests that were sent count until the shard is known to have taken them.
        for scope in scopes[:5]:
            scope.cancel()
        await until(lambda: not link.waiting)
        assert link._window.bytes == 500_000
        there.shards[0].script = lambda request: [Reply(request.id)]
        await there.gateway.shards.call(StateGet(), "t")
        assert link._window.bytes == 0
        assert len(there.shards[0].requests) == 6
        gc.collect()


async def test_what_waits_is_handed_over_in_order_as_answers_come() -> None:
    held: list[Request] = []

    def script(request: Request) -> list[Message]:
        held.append(request)
        return []

    async with stage(script, memory_bytes=4 * MIB) as there:
        for number in range(12):
            await write(there, number)
        await write(there, 12, 10)

        async def handed(number: int) -> None:
            await until(lambda: len(held) > number)

        for number in range(13):
            await handed(number)
            assert len(held) - number <= 6
            there.shards[0].send(Reply(held[number].id) if number % 2 else Parked(held[number].id))
        assert [request.topic for request in held] == [f"t{number}" for number in range(13)]


@pytest.mark.slow
async def test_a_write_that_never_left_says_that_it_was_not_done() -> None:
    limits = {"memory_bytes": 4 * MIB, "request_timeout_ms": 1000, "max_body_bytes": MIB}
    async with stage(lambda request: [], **limits) as there:
        body = b'{"records":[{"data":"%b"}]}' % (b"x" * 200_000)
        outcomes: list[str] = []

        async def ask() -> None:
            async with there.client() as client:
                answer = await client.ask("POST", "/v0/topics/a", body)
                assert answer.status == 503
                outcomes.append(answer.json["error"]["detail"]["outcome"])

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(ask)
        # The first two were sent; others too, if the shard was seen to take those before their deadline.
        assert {*outcomes} == {"not_done", "unknown"}
        assert outcomes.count("unknown") == len(there.shards[0].requests)
        await until(lambda: there.gateway.budget.used == 0)


async def test_a_link_uses_the_size_that_its_shard_states() -> None:
    async with stage(lambda request: [], memory_bytes=4 * MIB) as there:
        (link,), (shard,) = there.gateway.shards.links.open(), there.shards
        for number in range(3):
            await write(there, number)
        shard.restate(200_000)
        await until(lambda: link._window.most == 200_000)
        await write(there, 3)
        assert (len(link._queue), link._window.bytes) == (1, 300_000)
        shard.restate(MIB)
        await until(lambda: len(shard.requests) == 4)
        shard.restate(0)
        shard.send(Reply(shard.requests[0].id))
        await until(lambda: len(link.waiting) == 3)
        assert link._window.most == MIB, "0 states nothing"


async def test_a_link_reports_at_once_what_a_smaller_window_must_know() -> None:
    async with stage(lambda request: [Reply(request.id, b"x" * 60_000)], memory_bytes=4 * MIB) as there:
        (shard,) = there.shards
        await there.gateway.shards.call(StateGet(), "t")
        assert shard.taken == 0, "less than an eighth"
        shard.restate(2 * 60_000)
        await until(lambda: shard.taken == 60_000)


def test_before_its_first_packet_a_shard_gets_the_smallest_window() -> None:
    assert Window().most == SMALLEST_WINDOW

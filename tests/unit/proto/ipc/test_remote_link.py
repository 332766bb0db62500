"""A link to another machine takes requests once it is up, has deadlines in the shard's clock, and fails at once."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from proto.ipc import links as links_module
from proto.ipc import remote, remote_link
from proto.ipc.link import SILENT_S, Link, Pending
from proto.ipc.links import Links
from proto.ipc.message import Reply
from proto.ipc.operations import StateGet
from proto.model.errors import TopicsError
from tests.support.holder import CLUSTER, asker, holder, reaches, until

LARGE = bytes(8 << 20)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "AGAIN_S", 0.01)


def ask(link: Link, body: bytes = b"") -> Pending[Any]:
    return link.ask(StateGet(), "t", body)


@asynccontextmanager
async def asker_of_nobody() -> AsyncIterator[Links]:
    links = Links(1, 60.0, name="g0.1", cluster=CLUSTER)
    async with trio.open_nursery() as nursery:
        await nursery.start(links.run)
        yield links
        nursery.cancel_scope.cancel()


async def outcome(pending: Pending[Any]) -> Any:
    """The `outcome` of a request that fails."""
    with trio.fail_after(60), pytest.raises(TopicsError) as raised:
        await pending.wait()
    return raised.value.detail["outcome"]


async def test_a_request_is_carried_out_by_the_holder() -> None:
    async with holder() as there, asker(there) as links:
        await until(lambda: reaches(links))
        pending = ask(links.to(0), b"x" * 100_000)
        await until(lambda: there.requests)
        peer, request = there.requests[0]
        assert (request.topic, request.body, request.options) == ("t", b"x" * 100_000, StateGet())
        there.router.send(Reply(request.id, b"y" * 100_000), peer)
        with trio.fail_after(60):
            reply = await pending.reply()
        assert reply.body == b"y" * 100_000


@pytest.mark.parametrize("ahead_s", [1e6, -time.monotonic() / 2, 0.0], ids=["ahead", "behind", "same"])
async def test_a_deadline_is_never_late_in_the_clock_of_the_shard(ahead_s: float) -> None:
    async with holder(ahead_s) as there, asker(there) as links:
        await until(lambda: reaches(links))
        latest = there.now_ns() + 60e9 - 5e9
        pending = ask(links.to(0))
        given = links.to(0).ask(StateGet(), "t", b"", time.monotonic_ns() + 10**9)
        until_ns = there.now_ns() + 10**9
        await until(lambda: len(there.requests) == 2)
        deadlines = [request.deadline_ns for _, request in there.requests]
        assert latest - 50e9 < deadlines[0] <= there.now_ns() + 55e9
        assert until_ns - 50e9 < deadlines[1] <= until_ns
        pending.abandon()
        given.abandon()


async def test_a_transit_makes_a_deadline_earlier_by_as_much() -> None:
    async with holder() as there, asker(there) as links:
        await until(lambda: reaches(links))
        link = links.to(0)
        before = ask(link).request.deadline_ns
        there.ahead_s = -5.0  # as if a packet had been under way for so long
        ask(link)
        await until(lambda: there.requests)
        peer, request = there.requests[0]
        there.router.send(Reply(request.id), peer)
        await until(lambda: request.id not in link.waiting)
        assert -6e9 < ask(link).request.deadline_ns - before < -4e9


async def test_a_packet_that_comes_late_from_a_shard_that_has_just_booted_gives_a_deadline_that_is_over() -> None:
    async with holder(10 - time.monotonic()) as there, asker(there) as links:
        await until(lambda: reaches(links))
        link = links.to(0)
        link._ahead_ns -= 3600 * 10**9
        pending = ask(link)
        assert pending.request.deadline_ns == 1
        await until(lambda: there.requests)


async def test_when_the_cable_is_cut_what_was_sent_is_unknown_at_once_and_the_rest_not_done() -> None:
    async with holder() as there, asker(there) as links:
        await until(lambda: reaches(links))
        sent = [ask(links.to(0), LARGE), ask(links.to(0))]
        unsent = ask(links.to(0), LARGE)
        there.cable.whole = False
        there.cable.end_all()
        assert [await outcome(each) for each in (*sent, unsent)] == ["unknown", "unknown", "not_done"]
        with pytest.raises(TopicsError, match="http://b holds shard 0"):
            links.to(0)


async def test_the_next_link_has_a_higher_number_and_gets_nothing_of_the_earlier_one() -> None:
    async with holder() as there, asker(there) as links:
        await until(lambda: reaches(links))
        lost = ask(links.to(0))
        await until(lambda: there.requests)
        there.cable.end_all()
        assert await outcome(lost) == "unknown"
        await until(lambda: reaches(links))
        fresh = ask(links.to(0))
        await until(lambda: len(there.requests) == 2)
        first, second = (int(name.rpartition(b".")[2]) for name in there.names)
        assert [peer for peer, _ in there.requests] == there.names
        assert second > first
        there.router.send(Reply(there.requests[0][1].id), there.names[0])
        there.router.send(Reply(fresh.id, b"fresh"), there.names[1])
        with trio.fail_after(60):
            assert (await fresh.reply()).body == b"fresh"


async def test_a_request_that_was_in_hand_at_two_deaths_of_the_shard_is_not_sent_again() -> None:
    bodies = [b"innocent", b"deadly"]
    async with asker_of_nobody() as links:
        for death in range(2):
            async with holder() as there:
                links.update([there.state()])
                await until(lambda: reaches(links))
                pending = [ask(links.to(0), body) for body in bodies]
                await until(lambda there=there: len(there.requests) == 2)
                marks = [(request.id, request.deadline_ns) for _, request in there.requests]
                there.cable.whole = False
                there.cable.end_all()
                assert [await outcome(each) for each in pending] == ["unknown"] * 2
            async with holder() as there:
                there.died_over = (marks[1],)
                links.update([there.state()])
                await until(lambda: reaches(links))
                ask(links.to(0), bodies[0])
                if death:
                    with pytest.raises(TopicsError, match="died 2 times over this request"):
                        ask(links.to(0), bodies[1])
                else:
                    ask(links.to(0), bodies[1])


async def test_a_cable_that_loses_everything_fails_the_link_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "LOST_S", 0.5)
    monkeypatch.setattr(remote_link, "SILENT_S", 1e9)
    async with holder() as there, asker(there) as links:
        await until(lambda: reaches(links))
        pending = ask(links.to(0))
        there.cable.mute = True
        assert await outcome(pending) == "unknown"
        there.cable.mute = False
        there.cable.end_all()
        await until(lambda: reaches(links))


async def test_a_link_that_the_shard_has_forgotten_is_replaced() -> None:
    async with holder() as there, asker(there) as links:
        await until(lambda: reaches(links))
        pending = ask(links.to(0))
        await until(lambda: there.requests)
        there.router.tell_over(there.names[0])
        assert await outcome(pending) == "unknown"
        await until(lambda: reaches(links))
        assert len(there.names) == 2


async def test_a_shard_that_is_silent_for_long_loses_the_link() -> None:
    async with holder() as there, asker(there) as links:
        await until(lambda: reaches(links))
        pending, link = ask(links.to(0)), links.to(0)
        link.look(1)
        link.look(SILENT_S - 1)
        assert link.silent_s < SILENT_S
        link.look(1)
        assert await outcome(pending) == "unknown"


async def test_each_tick_sends_a_ping_so_that_the_shard_hears_of_the_asker() -> None:
    async with holder() as there, asker(there) as links:
        await until(lambda: reaches(links))
        there.answer = lambda request: None  # type: ignore[method-assign]
        for _ in range(3):
            links.to(0).look(0.1)
        await until(lambda: len(there.requests) == 3)

"""Requests wait for a shard that moves for a bounded time, and one of them tries it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import trio
import trio.testing

from gateway.shards import moves
from gateway.shards.moves import AGAIN_S, MOVING_S, Moves
from proto.ipc.control import ShardState
from proto.ipc.links import Links
from proto.ipc.message import Reply
from proto.model.errors import moving


class Asked:
    """A question. The outcome comes at once."""

    def __init__(self, outcome: Reply) -> None:
        self._outcome = outcome

    def then(self, callback: Callable[[Reply], object]) -> None:
        callback(self._outcome)


class Way:
    """The link to a shard, which refuses questions until it `takes` them."""

    def __init__(self) -> None:
        self.takes = self.ended = False
        self.asked: list[float] = []

    def ask(self, *_: Any) -> Asked:
        self.asked.append(trio.current_time())
        return Asked(Reply(1, error=None if self.takes else moving(0)))


class Shard:
    """Two shards, of which 0 is looked at, as links see them."""

    def __init__(self) -> None:
        self.states = [ShardState(0, "standby"), ShardState(1, "standby")]
        self.link: Way | None = Way()
        self.away = False
        self.held = True

    def current(self, index: int) -> Way | None:
        return self.link

    def returns(self, index: int) -> bool:
        return index == 0 and self.away

    def reaches(self, index: int) -> bool:
        return False

    def unheld(self, index: int) -> bool:
        return index == 0 and not self.held


def made(*, served: bool = True) -> tuple[Shard, Moves]:
    shard = Shard()
    found = Moves(cast(Links, shard))
    if served:
        found.heard(0)
    return shard, found


async def waited(found: Moves) -> float:
    since = trio.current_time()
    await found.over(0, since)
    return round(trio.current_time() - since, 3)


async def test_a_shard_that_serves_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    _, found = made()
    assert not found.away(0)
    assert await waited(found) == 0


async def test_a_shard_that_never_served_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    shard, found = made(served=False)
    shard.away, shard.held = True, False
    found.look()
    assert await waited(found) == 0


async def test_a_restart_is_waited_for_as_long_as_for_one(autojump_clock: trio.testing.MockClock) -> None:
    shard, found = made()
    shard.away = True
    assert await waited(found) == moves.PATIENCE_S
    assert await waited(found) == moves.PATIENCE_S


async def test_requests_wait_from_the_moment_at_which_a_shard_has_no_holder(
    autojump_clock: trio.testing.MockClock,
) -> None:
    shard, found = made()
    shard.away, shard.held = True, False
    found.look()
    await trio.sleep(MOVING_S - 1)
    found.look()
    assert await waited(found) == 1
    assert await waited(found) == 0, "later requests do not wait at all"
    shard.away, shard.held = False, True
    found.heard(0)
    shard.away, shard.held = True, False
    found.look()
    assert await waited(found) == MOVING_S, "the next move is another one"


async def test_those_that_wait_go_on_when_the_next_holder_is_there(autojump_clock: trio.testing.MockClock) -> None:
    shard, found = made()
    shard.away, shard.held = True, False
    found.look()
    async with trio.open_nursery() as nursery:
        times: list[float] = []

        async def wait() -> None:
            times.append(await waited(found))

        for _ in range(3):
            nursery.start_soon(wait)
        await trio.sleep(2)
        shard.away, shard.held = False, True
        found.heard(0)
    assert times == [2, 2, 2]


async def test_a_shard_that_refuses_is_asked_now_and_then_for_all(autojump_clock: trio.testing.MockClock) -> None:
    shard, found = made()
    assert shard.link is not None
    found.refused(0)
    async with trio.open_nursery() as nursery:
        times: list[float] = []

        async def wait() -> None:
            times.append(await waited(found))

        for _ in range(20):
            nursery.start_soon(wait)
        await trio.sleep(1.05)
        assert not times
        assert len(shard.link.asked) == 10
        shard.link.takes = True
    assert times == [times[0]] * 20
    assert 1.05 < times[0] <= 1.1
    assert not found.away(0)


async def test_a_shard_that_refuses_for_ever_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    shard, found = made()
    found.refused(0)
    assert await waited(found) == MOVING_S
    found.refused(0)
    assert await waited(found) == 0
    await trio.sleep(2 * MOVING_S)
    found.refused(0)
    assert await waited(found) == MOVING_S, "a later move is another one"
    assert shard.link is not None
    assert len(shard.link.asked) <= 2 * MOVING_S / AGAIN_S


async def test_a_request_waits_no_longer_though_others_are_taken(autojump_clock: trio.testing.MockClock) -> None:
    shard, found = made()
    assert shard.link is not None
    shard.link.takes = True
    since = trio.current_time()
    while found.patient(0, since):
        found.refused(0)
        await found.over(0, since)
    assert round(trio.current_time() - since, 3) <= MOVING_S


async def test_the_answer_of_an_earlier_refusal_means_nothing(autojump_clock: trio.testing.MockClock) -> None:
    shard, found = made()
    assert shard.link is not None
    found.refused(0)
    earlier = found._refusals[0]
    found.refused(0)
    found._answered(0, earlier, Reply(1))
    assert found.away(0)
    found._answered(0, found._refusals[0], moving(0))
    assert found.away(0)


async def test_a_new_process_is_not_the_one_that_refused(autojump_clock: trio.testing.MockClock) -> None:
    shard, found = made()
    found.refused(0)
    assert found.away(0)
    shard.link = Way()
    assert not found.away(0)
    shard.link = None
    assert not found.away(0), "whether that is waited for is another question"

"""The registrar's change is interrupted by a death before or after one of its steps: of its own shard, or of another.

Whatever the step, one of the rows of `shardd.routers.registrar` is true afterwards. The same request then succeeds, and
ends as it does undisturbed. No record that was copied is lost, and none is copied twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing

from proto.ipc.message import Reply
from proto.model.errors import ErrorCode, TopicsError, not_ready
from proto.model.names import shard_of
from proto.model.router import RouterConfig, as_map
from shardd.routers.holds import LONGEST_HOLD_S
from tests.support.registrar import Registry, Step, When, registry
from tests.support.routed import Net

SHARDS = 2
Routers = dict[str, tuple[str, str]]


def name_in(shard: int, stem: str) -> str:
    return next(name for n in range(200) if shard_of(name := f"{stem}{n}", SHARDS) == shard)


class Ends(NamedTuple):
    source: str
    dest: str
    other: str
    """Another topic, in the shard that does not have the destination."""

    @classmethod
    def at(cls, source: int, dest: int) -> Ends:
        return cls(name_in(source, "s"), name_in(dest, "d"), name_in(1 - dest, "o"))


async def _prepare_nothing(at: Registry, ends: Ends) -> None:
    pass


async def _prepare_router(at: Registry, ends: Ends) -> None:
    await at.put("r", source=ends.source, dest=ends.dest)
    at.net.of(ends.source).append(ends.source, 1, 2, 3)
    at.net.settle()
    at.net.clock.advance(1)  # of two routers with one name, the newer stays


class Row(NamedTuple):
    prepare: Callable[[Registry, Ends], Awaitable[None]]
    change: Callable[[Registry, Ends], Awaitable[Any]]
    before: Callable[[Ends], Routers]
    after: Callable[[Ends], Routers]


ROWS = {
    "put, new": Row(
        _prepare_nothing,
        lambda at, ends: at.put("r", source=ends.source, dest=ends.dest),
        lambda ends: {},
        lambda ends: {"r": (ends.source, ends.dest)},
    ),
    "put, with another source": Row(
        _prepare_router,
        lambda at, ends: at.put("r", source=ends.other),
        lambda ends: {"r": (ends.source, ends.dest)},
        lambda ends: {"r": (ends.other, ends.dest)},
    ),
    "put, with another dest": Row(
        _prepare_router,
        lambda at, ends: at.put("r", dest=ends.other),
        lambda ends: {"r": (ends.source, ends.dest)},
        lambda ends: {"r": (ends.source, ends.other)},
    ),
    "delete": Row(
        _prepare_router,
        lambda at, ends: at.delete("r"),
        lambda ends: {"r": (ends.source, ends.dest)},
        lambda ends: {},
    ),
    "delete of a source": Row(
        _prepare_router,
        lambda at, ends: at.delete_topic(ends.source),
        lambda ends: {"r": (ends.source, ends.dest)},
        lambda ends: {},
    ),
    "delete of a destination": Row(
        _prepare_router,
        lambda at, ends: at.delete_topic(ends.dest),
        lambda ends: {"r": (ends.source, ends.dest)},
        lambda ends: {},
    ),
}


class Death:
    """Kills a shard before or after a step of a change. The registrar's own death stops the change there; after that of
    another shard, it gets an error if the step was that shard's."""

    def __init__(self, at: Registry, victim: int, number: int, when: When) -> None:
        self.met = trio.Event()
        self._at = at
        self._victim = victim
        self._left = number
        self._when = when
        at.others.meet = self._meet

    async def _meet(self, step: Step, when: When) -> None:
        if when != self._when:
            return
        self._left -= 1
        if self._left != -1:
            return
        self.met.set()
        if self._victim == 0:
            await trio.sleep_forever()
        self._at.net.crash([self._victim], "drop")
        if step.shard == self._victim:
            raise not_ready("the shard went away", outcome="unknown")


async def interrupted(at: Registry, ends: Ends, row: Row, victim: int, number: int, when: When) -> bool:
    """Make the change until the death comes. Returns False if it ended before."""
    death = Death(at, victim, number, when)
    ended = trio.Event()

    async def change() -> None:
        try:
            await row.change(at, ends)
        except TopicsError as error:
            if error.code is not ErrorCode.NOT_READY or error.detail != {"outcome": "unknown"}:
                raise
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        async with trio.open_nursery() as either:

            async def until(event: trio.Event) -> None:
                await event.wait()
                either.cancel_scope.cancel()

            either.start_soon(until, ended)
            if victim == 0:
                either.start_soon(until, death.met)
        nursery.cancel_scope.cancel()
    at.others.meet = None
    if not death.met.is_set():
        return False
    if victim == 0:
        await at.dies()
    return True


def sweep(net: Net) -> None:
    """What shards do by themselves: holds end after a while, and routers whose source is gone are removed."""
    net.clock.advance(int(LONGEST_HOLD_S * 1000) + 1)
    for harness in net.shards:
        harness.shard.routing.expire()
        for topic in harness.shard.routing.destinations():
            assert topic.lane is not None
            try:
                net.pull(topic.lane)
            except TopicsError as error:
                if error.code is not ErrorCode.TOPIC_NOT_FOUND:
                    raise
                harness.shard.routing.drop(topic)
        harness.shard.flush()
        harness.shard.commits.sync_now()


def check_copies(net: Net, ends: Ends, prepared: bool) -> None:
    """What was copied before the change is still there, once."""
    for dest in (ends.dest, ends.other):
        if dest in net.of(dest).shard.directory.visible:
            data = net.data(dest)
            assert data in ([1, 2, 3], []), data
            if dest == ends.dest and prepared:
                assert data == [1, 2, 3]


async def check_whole(at: Registry, routers: Routers) -> None:
    """Each router copies, and the registrar knows it."""
    for name, (source, dest) in routers.items():
        at.net.of(source).append(source, "new")
        at.net.settle()
        assert at.net.data(dest)[-1] == "new"
        assert at.net.data(dest).count("new") == 1
        assert (await at.get(name))["dest"] == dest


@pytest.mark.parametrize("victim", [0, 1], ids=["registrar", "other"])
@pytest.mark.parametrize(("source", "dest"), [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("kind", ROWS)
async def test_a_change_that_a_death_interrupts_is_made_or_not_and_can_be_repeated(
    kind: str, source: int, dest: int, victim: int
) -> None:
    row, ends = ROWS[kind], Ends.at(source, dest)
    deaths = 0
    for when in ("before", "after"):
        number = 0
        while True:
            async with registry(Net(SHARDS)) as at:
                await row.prepare(at, ends)
                prepared = row.prepare is not _prepare_nothing
                if not await interrupted(at, ends, row, victim, number, when):
                    break
                deaths += 1
                sweep(at.net)
                await at.delete("none")  # reads the graph
                routers = at.routers()
                assert routers in (row.before(ends), row.after(ends)), (number, when)
                check_copies(at.net, ends, prepared and kind != "delete of a destination")
                await row.change(at, ends)
                assert at.routers() == row.after(ends), (number, when)
                check_copies(at.net, ends, prepared and kind != "delete of a destination")
                await check_whole(at, row.after(ends))
                at.net.crash()
                assert at.routers() == row.after(ends)
            number += 1
    assert deaths >= 2


async def test_of_two_routers_with_one_name_the_newer_stays() -> None:
    """Each of them lacks a step that a registrar died before."""
    for here in (0, 1):
        ends = Ends.at(0, here)
        async with registry(Net(SHARDS)) as at:
            at.net.router("r", ends.source, ends.dest)
            at.net.clock.advance(1)
            at.net.router("r", ends.source, ends.other)
            assert (await at.get("r"))["dest"] == ends.other
            assert at.routers() == {"r": (ends.source, ends.other)}


# Changes of a registrar that is gone, which may still be on their way


async def test_a_change_that_arrives_after_the_next_reading_is_refused() -> None:
    """It would close a cycle with a router that was allowed since."""
    source, dest = name_in(0, "s"), name_in(1, "d")
    async with registry(Net(SHARDS)) as at:
        late: list[Step] = []

        async def meet(step: Step, when: When) -> None:
            if step.op == "router_put":
                late.append(step)
                await trio.sleep_forever()

        at.others.meet = meet
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(at.put, "there", source=source, dest=dest))
            while not late:
                await trio.testing.wait_all_tasks_blocked()
            await at.dies()
            nursery.cancel_scope.cancel()
        await at.put("back", source=dest, dest=source)
        reply = at.net.of(dest).reply(late[0].operation, dest)
        assert reply.error is not None
        assert (reply.error.code, reply.error.detail) == (ErrorCode.NOT_READY, {"outcome": "not_done"})
        assert at.routers() == {"back": (dest, source)}


@pytest.mark.parametrize("change", ["put", "delete"])
async def test_a_change_that_waits_for_a_checkpoint_at_the_next_reading_is_refused(change: str) -> None:
    source, other, dest = name_in(0, "s"), name_in(0, "o"), name_in(1, "d")
    async with registry(Net(SHARDS)) as at:
        await at.put("r", source=source, dest=dest)
        at.net.of(source).append(source, 1)
        at.net.settle()
        at.others.saving = False
        lane = at.net.topic(dest).lane
        assert lane is not None
        async with trio.open_nursery() as nursery:
            work = partial(at.put, "r", source=other) if change == "put" else partial(at.delete, "r")
            nursery.start_soon(work)
            while not lane.held:
                await trio.testing.wait_all_tasks_blocked()
            await at.dies()
            nursery.cancel_scope.cancel()
        await at.put("q", source=dest, dest=other)  # a cycle with the router as it would be
        assert at.routers() == {"r": (source, dest), "q": (dest, other)}
        assert not at.net.of(dest).shard.routing.unsaved
        assert at.net.topic(dest).lane is lane
        assert not lane.held
        await check_whole(at, {"r": (source, dest)})


def test_a_reading_waits_for_changes_that_wait_for_a_sync() -> None:
    net = Net(SHARDS)
    source, dest = name_in(0, "s"), name_in(1, "d")
    net.of(source).call("configure", source)
    there = net.of(dest)
    there.call("configure", dest)
    config = as_map(RouterConfig(source, dest))
    put = there.send("router_put", dest, router="r", config=config, epoch=1, head=0, reading=(1, 1))
    look = there.send("router_graph")
    reading = there.send("router_graph", reading=(2, 1))
    there.shard.flush()
    assert there.replies.keys() & {put, look, reading} == {look}
    there.shard.commits.sync_now()
    answer = there.replies[reading]
    assert isinstance(answer, Reply)
    assert [row[0] for row in answer.extra.routers] == ["r"]
    seen = there.replies[look]
    assert isinstance(seen, Reply)
    assert seen.extra.routers == ()
    assert isinstance(there.replies[put], Reply)
    # Changes that rest on this reading or a later one are made.
    for number, at in enumerate([(2, 1), (2, 2), (3, 1)]):
        there.call("router_put", dest, router=f"r{number}", config=config, epoch=1, head=0, reading=at)
    with pytest.raises(TopicsError) as error:
        there.call("router_delete", dest, router="r0", reading=(1, 9))
    assert error.value.detail == {"outcome": "not_done"}

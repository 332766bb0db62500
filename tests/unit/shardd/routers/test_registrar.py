"""Claims about the registrar: changes of routers are made one at a time, wholly or not at all, and none too late.

The topics of a router are in one shard or in two, and the registrar's own shard has none, one or both of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import msgspec
import pytest
import trio
import trio.testing

from proto.ipc.message import Reply, Request
from proto.ipc.operations import RegistrarDelete, RegistrarDeleteTopic, RegistrarGet, RegistrarPut, Room, RoomOrder
from proto.model.errors import ErrorCode, TopicsError, not_ready, starting
from proto.model.names import shard_of
from shardd.changes.treasurer import NO_CAP
from shardd.routers.registrar import LEAST_BYTES, MOST_BYTES
from tests.support.gateway_stage import until
from tests.support.registrar import Registry, Step, When, registry
from tests.support.routed import Net


def name_in(shard: int, shards: int, stem: str) -> str:
    return next(name for n in range(200) if shard_of(name := f"{stem}{n}", shards) == shard)


class Scene(NamedTuple):
    at: Registry
    source: str
    dest: str
    other: str

    def write(self, topic: str, *data: Any) -> None:
        self.at.net.of(topic).append(topic, *data)


@pytest.fixture(params=[(1, 0, 0), (2, 0, 0), (2, 0, 1), (2, 1, 0), (2, 1, 1)], ids=str)
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    shards, source, dest = request.param
    names = [name_in(at, shards, stem) for at, stem in ((source, "s"), (dest, "d"), (dest, "o"))]
    async with registry(Net(shards)) as at:
        yield Scene(at, *names)


@pytest.fixture
async def two() -> AsyncIterator[Scene]:
    """The source is with the registrar, the destinations are in the other shard."""
    async with registry(Net(2)) as at:
        yield Scene(at, *(name_in(where, 2, stem) for where, stem in ((0, "s"), (1, "d"), (1, "o"))))


def code(error: pytest.ExceptionInfo[TopicsError]) -> tuple[ErrorCode, str | None]:
    return error.value.code, (error.value.detail or {}).get("outcome")


async def test_a_router_is_made_changed_shown_and_deleted(scene: Scene) -> None:
    at, source, dest, other = scene
    made = await at.put("r", source=source, dest=dest)
    assert (made["router"], made["created"], made["source"], made["dest"]) == ("r", True, source, dest)
    scene.write(source, 1)
    at.net.settle()
    assert at.net.data(dest) == [1]
    assert (await at.put("r", preserve_tag=False))["created"] is False
    shown = await at.get("r")
    assert (shown["forwarded_total"], shown["preserve_tag"]) == (1, False)
    moved = await at.put("r", dest=other)
    assert (moved["created"], moved["dest"]) == (False, other)
    assert (await at.get("r"))["forwarded_total"] == 0
    assert at.routers() == {"r": (source, other)}
    assert await at.delete("r") == {"router": "r", "deleted": True}
    assert await at.delete("r") == {"router": "r", "deleted": False}
    with pytest.raises(TopicsError, match="does not exist"):
        await at.get("r")
    assert at.routers() == {}
    assert at.net.data(dest) == [1]


async def test_the_answer_says_whether_the_router_is_new_and_how_long_its_sync_took(two: Scene) -> None:
    body = msgspec.json.encode({"source": two.source, "dest": two.dest})
    first = await two.at.ask(RegistrarPut(b"", (), "r"), body=body)
    again = await two.at.ask(RegistrarPut(b"", (), "r"), body=body)
    assert (first.created, again.created) == (True, False)
    assert first.performance.keys() == {"wal_append_ms", "fsync_ms"}


@pytest.mark.parametrize("which", ["source", "dest"])
async def test_a_deleted_topic_takes_its_routers_with_it_and_leaves_what_they_copied(scene: Scene, which: str) -> None:
    at, source, dest, other = scene
    await at.put("r", source=source, dest=dest)
    await at.put("hidden", source=source, dest=dest, filter="x")
    await at.put("too", source=source, dest=other)
    scene.write(source, 1, 2)
    at.net.settle()
    answer = await at.delete_topic(source if which == "source" else dest, ("r", "too"))
    assert answer["deleted"] is True
    assert answer["routers_removed"] == (["r", "too"] if which == "source" else ["r"])
    assert at.routers() == ({} if which == "source" else {"too": (source, other)})
    assert (await at.put("back", source=dest, dest=source))["created"], "the registrar knows that they are gone"
    for _ in range(2):
        assert at.net.data(other) == [1, 2]
        if which == "source":
            assert at.net.data(dest) == [1, 2]
        await at.dies([*range(len(at.net.shards))])


async def test_a_topic_that_no_router_names_is_deleted_in_its_shard(scene: Scene) -> None:
    at, source, dest, other = scene
    await at.put("r", source=source, dest=dest)
    scene.write(other, 1)
    at.others.steps.clear()
    with pytest.raises(TopicsError) as error:
        await at.delete_topic(other, if_empty=True)
    assert error.value.code is ErrorCode.TOPIC_NOT_EMPTY
    assert (await at.delete_topic(other))["deleted"] is True
    assert (await at.delete_topic(other))["deleted"] is False
    assert at.others.ops == ["delete_topic"] * 3
    assert at.routers() == {"r": (source, dest)}


async def test_a_deletion_that_is_refused_leaves_the_routers_and_what_is_known_of_them(scene: Scene) -> None:
    at, source, dest, _ = scene
    await at.put("r", source=source, dest=dest)
    scene.write(source, 1)
    at.net.settle()
    at.others.steps.clear()
    with pytest.raises(TopicsError) as error:
        await at.delete_topic(source, if_empty=True)
    assert error.value.code is ErrorCode.TOPIC_NOT_EMPTY
    assert at.others.ops == ["router_hold", "delete_topic", "router_hold"]
    scene.write(source, 2)
    at.net.settle()
    assert at.net.data(dest) == [1, 2]
    at.others.steps.clear()
    await at.get("r")
    assert at.others.ops == ["router_get"], "the graph need not be read again"


# What a key may name


async def test_a_key_changes_and_sees_only_routers_whose_names_it_covers(two: Scene) -> None:
    at, source, dest, other = two
    await at.put("r", source=source, dest=dest)
    for prefixes in (("r", "s"), ("r", "d"), ("r",)):
        for work in (at.get("r", prefixes), at.delete("r", prefixes), at.put("r", prefixes, allow_cycle=True)):
            with pytest.raises(TopicsError, match="may not touch") as error:
                await work
            assert error.value.code is ErrorCode.FORBIDDEN
    with pytest.raises(TopicsError, match=f'may not touch "{other}"'):
        await at.put("r", ("r", "s", dest), dest=other)
    assert (await at.get("r", ("r", "s", "d")))["dest"] == dest


async def test_errors_about_the_graph_name_only_what_the_key_covers(two: Scene) -> None:
    at, source, dest, other = two
    await at.put("one", source=source, dest=dest)
    await at.put("two", source=dest, dest=other)
    with pytest.raises(TopicsError) as error:
        await at.put("back", ("back", source, other), source=other, dest=source)
    assert error.value.code is ErrorCode.ROUTER_CYCLE
    assert error.value.detail == {"cycle": [other, source, other]}
    assert f"{source} -> … -> {other}" in error.value.message
    with pytest.raises(TopicsError) as error:
        await at.put("in", ("in", "x", dest), source="x", dest=dest)
    assert error.value.detail == {"reason": "router_dest_fan_in", "dest": dest}
    with pytest.raises(TopicsError) as error:
        await at.put("in", (), source="x", dest=dest)
    assert error.value.detail == {"reason": "router_dest_fan_in", "dest": dest, "source": source}
    assert at.routers() == {"one": (source, dest), "two": (dest, other)}


async def test_the_cap_counts_the_routers_of_all_shards(two: Scene) -> None:
    net = Net(2, max_routers=2)
    async with registry(net) as at:
        await at.put("r0", source=two.source, dest=two.dest)
        await at.put("r1", source=two.dest, dest=name_in(0, 2, "back"))
        at.others.steps.clear()
        with pytest.raises(TopicsError) as error:
            await at.put("r2", source=two.source, dest=two.other)
        assert (error.value.code, error.value.detail) == (ErrorCode.THROTTLED, {"limit": "max_routers", "max": 2})
        assert at.others.ops == ["router_graph"] * 2, "there could be fewer than was known"
        await at.put("r1", allow_cycle=True)
        await at.delete("r1")
        await at.put("r2", source=two.source, dest=two.other)


async def test_a_body_that_is_no_router_is_refused_before_anything_is_asked(two: Scene) -> None:
    for body in (b"{", b'{"sourc":"a"}', b'{"source":7}'):
        reply = await two.at.ask(RegistrarPut(b"", (), "r"), body=body)
        assert reply.error is not None
        assert reply.error.code is ErrorCode.INVALID_REQUEST
    assert two.at.others.ops == []
    with pytest.raises(TopicsError, match="a router needs dest"):
        await two.at.put("r", source="a")


# Shards that do not serve


async def test_a_topic_is_deleted_while_another_shard_is_away(two: Scene) -> None:
    two.write(two.source, 1)
    two.at.others.away = {1}
    assert (await two.at.delete_topic(two.source))["routers_removed"] == []
    with pytest.raises(TopicsError) as error:
        await two.at.delete_topic(two.dest)
    assert code(error) == (ErrorCode.NOT_READY, "not_done")


async def test_a_shard_that_was_seen_with_a_router_from_it_is_waited_for(two: Scene) -> None:
    """Records that the router copied and has not saved would be lost."""
    at = two.at
    await at.put("r", source=two.source, dest=two.dest)
    at.others.away = {1}
    with pytest.raises(TopicsError) as error:
        await at.delete_topic(two.source)
    assert error.value.code is ErrorCode.NOT_READY
    assert "delete_topic" not in at.others.ops
    at.others.away = set()
    assert (await at.delete_topic(two.source))["routers_removed"] == ["r"]


async def test_what_was_learned_without_a_shard_is_not_taken_for_everything(two: Scene) -> None:
    at = two.at
    two.write(two.source, 1)
    at.net.router("r", two.source, two.dest)  # as an earlier registrar did
    at.others.away = {1}
    for topic in (name_in(0, 2, "x"), name_in(0, 2, "y")):
        await at.delete_topic(topic)
    for work in (at.get("r"), at.put("q", source="a", dest="b"), at.delete("r")):
        with pytest.raises(TopicsError) as error:
            await work
        assert code(error) == (ErrorCode.NOT_READY, "not_done")
    at.others.away = set()
    assert (await at.get("r"))["dest"] == two.dest
    assert (await at.delete_topic(two.source))["routers_removed"] == ["r"]


def removed_by_its_shard(at: Registry, dest: str) -> None:
    """The routers to a topic end, because their source was gone."""
    shard = at.net.of(dest).shard
    shard.routing.drop(shard.directory.find(dest))
    shard.flush()
    shard.commits.sync_now()


async def test_a_router_whose_shard_removed_it_is_not_found_and_is_forgotten(two: Scene) -> None:
    at = two.at
    await at.put("r", source=two.source, dest=two.dest)
    removed_by_its_shard(at, two.dest)
    with pytest.raises(TopicsError) as error:
        await at.get("r")
    assert error.value.code is ErrorCode.ROUTER_NOT_FOUND
    assert (await at.delete("r"))["deleted"] is False


@pytest.mark.parametrize("why", ["max_routers", "router_dest_fan_in", "router_cycle"])
async def test_no_router_is_refused_because_of_one_that_its_shard_removed(two: Scene, why: str) -> None:
    async with registry(Net(2, max_routers=1 if why == "max_routers" else 9)) as at:
        await at.put("r", source=two.source, dest=two.dest)
        source, dest = {
            "max_routers": (two.source, two.other),
            "router_dest_fan_in": (two.other, two.dest),
            "router_cycle": (two.dest, two.source),
        }[why]
        with pytest.raises(TopicsError) as error:
            await at.put("next", source=source, dest=dest)
        assert why in (error.value.code, *(error.value.detail or {}).values())
        removed_by_its_shard(at, two.dest)
        assert (await at.put("next", source=source, dest=dest))["created"] is True
        assert at.routers() == {"next": (source, dest)}


# Ends that are not known


async def test_after_an_unknown_end_the_graph_is_read_again(two: Scene) -> None:
    at = two.at
    lost = [True]

    async def meet(step: Step, when: When) -> None:
        if lost[0] and (step.op, when) == ("router_put", "after"):
            lost[0] = False
            raise not_ready("the answer was lost", outcome="unknown")

    at.others.meet = meet
    with pytest.raises(TopicsError) as error:
        await at.put("r", source=two.source, dest=two.dest)
    assert code(error) == (ErrorCode.NOT_READY, "unknown")
    assert [len(each.shard.directory.visible) for each in at.net.shards] == [1, 1], "they may belong to the router"
    assert (await at.put("r", source=two.source, dest=two.dest))["created"] is False


async def test_a_change_that_is_made_in_part_never_ends_as_not_done(two: Scene) -> None:
    at = two.at
    back = name_in(0, 2, "b")
    await at.put("r", source=two.source, dest=two.dest)
    at.net.clock.advance(1)  # of two with one name, the newer stays

    async def meet(step: Step, when: When) -> None:
        if (step.op, step.topic, when) == ("router_put", back, "after"):
            at.others.away = {1}

    at.others.meet = meet
    with pytest.raises(TopicsError) as error:
        await at.put("r", dest=back)
    assert code(error) == (ErrorCode.NOT_READY, "unknown")
    at.others.away, at.others.meet = set(), None
    assert (await at.get("r"))["dest"] == back
    assert at.routers() == {"r": (two.source, back)}


async def test_an_exception_fails_its_request_only(scene: Scene) -> None:
    at, source, dest, _ = scene
    number = 0
    while True:
        left = [number]

        async def meet(step: Step, when: When, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise RuntimeError("a defect")

        at.others.meet = meet
        try:
            await at.put("r", source=source, dest=dest)
        except TopicsError as error:
            if error.code is not ErrorCode.INTERNAL:
                raise
        at.others.meet = None
        assert (await at.put("r", source=source, dest=dest))["source"] == source
        assert (await at.get("r"))["dest"] == dest
        assert (await at.delete("r"))["deleted"] is True
        if left[0] >= 0:
            break
        number += 1
    assert number > 5


async def test_a_refused_router_leaves_no_topic_that_was_made_for_it(two: Scene) -> None:
    """The cap over all topics is kept, too: a new topic counts under the limit of its shard."""
    at = two.at
    numbers = count(1)
    for harness in at.net.shards:
        harness.shard.allowance.bind(alone=False)

    def limit(shard: int, topics: int, *, full: bool = False) -> None:
        harness = at.net.shards[shard]
        harness.shard.allowance.obey(RoomOrder((1, 1, 0, next(numbers)), Room(topics, NO_CAP), full=(full, False)))
        harness.settle()

    refused: list[TopicsError] = []

    async def ask() -> None:
        with pytest.raises(TopicsError) as error:
            await at.put("r", source=two.source, dest=two.dest)
        refused.append(error.value)

    limit(0, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert not refused, "the second topic waits for room"
        assert at.net.topic(two.source)
        limit(1, 0, full=True)
    (error,) = refused
    assert (error.code, error.detail) == (ErrorCode.THROTTLED, {"limit": "max_topics", "max": 100_000})
    assert [len(harness.shard.directory.visible) for harness in at.net.shards] == [0, 0]
    limit(1, 1)
    await at.put("r", source=two.source, dest=two.dest)
    assert [len(harness.shard.directory.visible) for harness in at.net.shards] == [1, 1]


# One at a time


class Gate:
    """Stops the registrar before a step, or before its answer, until it is opened."""

    def __init__(self, at: Registry, op: str, when: When = "before") -> None:
        self.reached = trio.Event()
        self.open = trio.Event()
        self._at = op, when
        at.others.meet = self._meet

    async def _meet(self, step: Step, when: When) -> None:
        if (step.op, when) == self._at:
            self.reached.set()
            await self.open.wait()


async def test_changes_are_made_one_at_a_time(two: Scene) -> None:
    """Each would close the cycle that the other one begins."""
    at, gate = two.at, Gate(two.at, "router_put")
    ends: list[str] = []

    async def put(name: str, source: str, dest: str) -> None:
        try:
            await at.put(name, source=source, dest=dest)
            ends.append(name)
        except TopicsError as error:
            ends.append(error.code)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, "there", two.source, two.dest)
        await gate.reached.wait()
        nursery.start_soon(put, "back", two.dest, two.source)
        await trio.testing.wait_all_tasks_blocked()
        assert ends == []
        gate.open.set()
    assert ends == ["there", "router_cycle"]


async def test_the_deletion_of_another_topic_waits_for_no_turn(two: Scene) -> None:
    at, gate = two.at, Gate(two.at, "router_put")
    two.write(two.other, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(at.ask, RegistrarPut(b"", (), "r"), "", b'{"source":"%b","dest":"%b"}' % names(two))
        await gate.reached.wait()
        assert (await at.delete_topic(two.other))["deleted"] is True
        gate.open.set()
    assert at.routers() == {"r": (two.source, two.dest)}


@pytest.mark.parametrize("which", ["source", "dest"])
async def test_a_topic_whose_router_is_being_made_is_deleted_after_that_and_with_it(two: Scene, which: str) -> None:
    at, gate = two.at, Gate(two.at, "router_put", "after")
    answers: list[Any] = []

    async def delete() -> None:
        answers.append(await at.delete_topic(two.source if which == "source" else two.dest))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(at.put, "r", source=two.source, dest=two.dest))
        await gate.reached.wait()
        nursery.start_soon(delete)
        await trio.testing.wait_all_tasks_blocked()
        gate.open.set()
    assert answers[0]["routers_removed"] == ["r"]
    assert at.routers() == {}
    at.others.steps.clear()
    assert (await at.put("next", source=two.other, dest=two.dest))["created"] is True
    assert "router_graph" not in at.others.ops, "the registrar knows that it is gone"


async def test_a_look_at_the_graph_ends_no_change_that_is_made_meanwhile() -> None:
    async with registry(Net(2)) as at:
        source, dest, other = (name_in(0, 2, stem) for stem in "sdo")
        at.net.of(other).append(other, 1)
        gate = Gate(at, "router_put")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(at.put, "r", source=source, dest=dest))
            await gate.reached.wait()
            at.net.crash([1])
            assert (await at.delete_topic(other))["deleted"] is True
            assert at.others.ops[-3:] == ["router_graph", "router_graph", "delete_topic"]
            gate.open.set()
        assert at.routers() == {"r": (source, dest)}


def names(scene: Scene) -> tuple[bytes, bytes]:
    return scene.source.encode(), scene.dest.encode()


async def test_the_registrars_shard_serves_while_a_change_waits_for_it() -> None:
    """Of one shard alone, which is source, destination and registrar."""
    async with registry(Net(1)) as at:
        await at.put("r", source="a", dest="b")
        at.net.shards[0].append("a", 1)
        at.net.settle()
        at.others.saving = False
        ends: list[Any] = []

        async def delete() -> None:
            ends.append(await at.delete_topic("a"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete)
            await until(lambda: "router_hold" in at.others.ops)
            await trio.testing.wait_all_tasks_blocked()
            assert not ends, "the copies are not saved"
            at.net.shards[0].append("a", 2)
            assert at.net.data("b") == [1]
            at.others.saving = True
            at.net.shards[0].shard.checkpoint_now()
        assert ends[0]["routers_removed"] == ["r"]
        assert at.net.data("b") == [1]


async def test_lanes_of_all_shards_are_saved_at_once(two: Scene) -> None:
    """A deletion takes as long as the slowest checkpoint, not as all of them."""
    at = two.at
    here = name_in(0, 2, "h")
    await at.put("r", source=two.source, dest=two.dest)
    await at.put("q", source=two.source, dest=here)
    gate = Gate(at, "router_hold")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(at.delete_topic, two.source)
        await gate.reached.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert at.others.ops[-2:] == ["router_hold", "router_hold"]
        gate.open.set()
    assert at.routers() == {}


# Too late, cancelled, too many


async def test_a_request_past_its_deadline_is_not_begun(two: Scene) -> None:
    at = two.at
    at.net.clock.advance(10_000)
    with pytest.raises(TopicsError) as error:
        await at.call(RegistrarDelete(b"", (), "r"), deadline_s=9)
    assert code(error) == (ErrorCode.NOT_READY, "not_done")
    assert at.others.ops == []


@pytest.mark.parametrize("what", ["deadline", "cancelled"])
async def test_a_request_that_waits_ends_with_its_asker(two: Scene, what: str) -> None:
    at, gate = two.at, Gate(two.at, "router_put")
    registrar = at.net.shards[0].shard.registrar
    ends: list[Reply[Any]] = []

    async def ask() -> None:
        body = b'{"source":"x","dest":"y"}'
        ends.append(await at.ask(RegistrarPut(b"", (), "late"), "", body, ident=77, deadline_s=5))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(at.ask, RegistrarPut(b"", (), "r"), "", b'{"source":"%b","dest":"%b"}' % names(two))
        await gate.reached.wait()
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        registrar.expire()
        registrar.cancel("another gateway", 77)
        await trio.testing.wait_all_tasks_blocked()
        assert not ends
        if what == "deadline":
            at.net.clock.advance(6_000)
            registrar.expire()
        else:
            at.net.shards[0].shard.cancel("gateway", 77)
        await until(lambda: bool(ends))
        gate.open.set()
    assert ends[0].error is not None
    assert ends[0].error.detail == {"outcome": "not_done"}
    assert at.routers() == {"r": (two.source, two.dest)}
    assert not registrar._open
    assert not registrar._sizes


async def test_a_request_that_is_cancelled_as_its_turn_comes_takes_no_step(two: Scene) -> None:
    at, gate = two.at, Gate(two.at, "router_graph")
    ends: list[Reply[Any]] = []

    async def ask() -> None:
        body = b'{"source":"%b","dest":"%b"}' % names(two)
        ends.append(await at.ask(RegistrarPut(b"", (), "r"), "", body, ident=77))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await gate.reached.wait()
        await trio.testing.wait_all_tasks_blocked()
        gate.open.set()
        at.net.shards[0].shard.cancel("gateway", 77)
    assert ends[0].error is not None
    assert ends[0].error.detail == {"outcome": "not_done"}
    assert set(at.others.ops) == {"router_graph"}


async def test_a_change_that_has_begun_is_not_cancelled(two: Scene) -> None:
    at, gate = two.at, Gate(two.at, "router_put")
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            body = b'{"source":"%b","dest":"%b"}' % names(two)
            await at.ask(RegistrarPut(b"", (), "r"), "", body, ident=77)

        nursery.start_soon(ask)
        await gate.reached.wait()
        at.net.shards[0].shard.cancel("gateway", 77)
        at.net.clock.advance(10**6)
        at.net.shards[0].shard.registrar.expire()
        gate.open.set()
    assert at.routers() == {"r": (two.source, two.dest)}


async def test_a_step_has_the_deadline_of_its_request_unless_it_completes_what_is_made(two: Scene) -> None:
    at = two.at

    async def deadlines(operation: Any, topic: str = "", body: bytes = b"") -> dict[str, int]:
        at.others.steps.clear()
        reply = await at.ask(operation, topic, body, deadline_s=50)
        assert reply.error is None
        return {step.op: step.deadline_ns // 10**9 for step in at.others.steps}

    found = await deadlines(RegistrarPut(b"", (), "r"), body=b'{"source":"%b","dest":"%b"}' % names(two))
    assert found == {"router_graph": 0, "configure": 50, "router_source": 50, "router_put": 50}
    assert (await deadlines(RegistrarGet(b"", (), "r"))) == {"router_get": 50}
    found = await deadlines(RegistrarPut(b"", (), "r"), body=b'{"dest":"%b"}' % two.other.encode())
    assert found == {"configure": 50, "router_source": 50, "router_put": 50, "router_delete": 0}
    found = await deadlines(RegistrarDeleteTopic(b"", ()), two.source)
    assert found == {"router_hold": 50, "delete_topic": 50, "router_delete": 0}


async def test_a_change_whose_step_comes_too_late_is_not_made(two: Scene) -> None:
    at, gate = two.at, Gate(two.at, "router_put")
    ends: list[Reply[Any]] = []

    async def ask() -> None:
        body = b'{"source":"%b","dest":"%b"}' % names(two)
        ends.append(await at.ask(RegistrarPut(b"", (), "r"), "", body, deadline_s=5))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await gate.reached.wait()
        at.net.clock.advance(6_000)
        gate.open.set()
    assert ends[0].error is not None
    assert ends[0].error.code is ErrorCode.NOT_READY
    assert at.routers() == {}


async def test_a_step_without_an_answer_ends_its_request_and_the_turn(autojump_clock: trio.testing.MockClock) -> None:
    async with registry(Net(1, request_timeout_ms=1000)) as at:
        gate = Gate(at, "router_put")
        started = trio.current_time()
        with pytest.raises(TopicsError) as error:
            await at.put("r", source="a", dest="b")
        assert code(error) == (ErrorCode.NOT_READY, "unknown")
        assert trio.current_time() - started == pytest.approx(1)
        gate.open.set()
        await at.put("r", source="a", dest="b")


async def test_another_shard_makes_no_changes() -> None:
    net = Net(2)
    for shard in net.shards:
        reply = shard.reply(RegistrarDeleteTopic(b"", ()), "a")
        assert reply.error is not None
        assert (reply.error.code, reply.error.detail) == (ErrorCode.NOT_READY, starting("").detail)


async def test_requests_that_wait_are_bounded_and_no_key_takes_all_places(two: Scene) -> None:
    at, gate = two.at, Gate(two.at, "router_graph")
    shard = at.net.shards[0].shard
    places = MOST_BYTES // LEAST_BYTES
    replies: list[Reply[Any]] = []
    idents = iter(range(10**6, 10**7))

    def send(key: bytes) -> TopicsError | None:
        before = len(replies)
        shard.handle(Request(next(idents), RegistrarGet(key, (), "r")), "gateway", replies.append)
        return replies[-1].error if len(replies) > before else None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(at.ask, RegistrarGet(b"third", (), "r"))
        await gate.reached.wait()
        for key, most in ((b"one", places // 2), (b"two", places // 2 - 1)):
            for _ in range(most):
                assert send(key) is None
            error = send(key)
            assert error is not None
            assert error.code is ErrorCode.THROTTLED
            assert error.detail is not None
            assert error.detail["limit"] == "registrar_bytes"
            assert error.detail["max"] == (MOST_BYTES // 2 if key == b"one" else MOST_BYTES)
            assert error.retry_after_ms == 1000
        gate.open.set()
    await until(lambda: not shard.registrar._open)
    at.others.meet = None
    # A body of any size is taken while no other request is open.
    reply = await at.ask(RegistrarPut(b"one", (), "r"), body=b'{"source":"a"%b}' % (b" " * MOST_BYTES))
    assert reply.error is not None
    assert reply.error.code is ErrorCode.INVALID_REQUEST

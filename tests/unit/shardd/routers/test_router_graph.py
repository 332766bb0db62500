"""Claims about the router graph: it is read when it must be, and whole where a change rests on it."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
import trio
import trio.testing

from proto.ipc import operations
from proto.ipc.message import Reply
from proto.ipc.operations import Operation, RouterDelete, RouterGraph, StateGet
from proto.model.errors import ErrorCode, TopicsError, moving, not_ready
from proto.model.names import shard_of
from proto.model.router import RouterConfig, as_map
from shardd.routers.router_graph import Graph, is_certain

A = TypeVar("A")
ZERO, ONE = (next(name for n in range(40) if shard_of(name := f"d{n}", 2) == index) for index in (0, 1))


class Shards:
    """Two shards that answer with their routers, or do not serve."""

    def __init__(self) -> None:
        self.lives: tuple[int | str, ...] = ("a", "b")
        self.epoch = 7
        self.routers: list[dict[str, tuple[str, int]]] = [{}, {}]
        """Of each shard: destination and time of creation by name."""
        self.asked: list[tuple[int, Operation[Any]]] = []
        self.refusing: dict[int, TopicsError] = {}
        self.silent: set[int] = set()

    def index_of(self, topic: str) -> int:
        return shard_of(topic, 2)

    async def returned(self, index: int) -> None:
        if index in self.silent:
            await trio.sleep_forever()

    async def request(
        self, index: int, operation: Operation[A], topic: str, body: bytes = b"", deadline_ns: int = 0
    ) -> Reply[A]:
        self.asked.append((index, operation))
        if index in self.refusing:
            raise self.refusing[index]
        rows = [
            (name, as_map(RouterConfig(source="s", dest=dest)), made_ms)
            for name, (dest, made_ms) in self.routers[index].items()
        ]
        return Reply(1, extra=operations.Graph(tuple(rows)))  # type: ignore[arg-type]

    def readings(self) -> list[Any]:
        found = [operation.reading for _, operation in self.asked if isinstance(operation, RouterGraph)]
        self.asked.clear()
        return found


@pytest.fixture
def shards() -> Shards:
    return Shards()


@pytest.fixture
def graph(shards: Shards) -> Graph:
    return Graph(shards, 5)


def destinations(known: dict[str, Any]) -> dict[str, str]:
    return {name: each.config.dest for name, each in known.items()}


async def test_it_is_read_once_and_again_after_a_restart_or_an_unknown_end(shards: Shards, graph: Graph) -> None:
    shards.routers = [{"r": (ZERO, 1)}, {"q": (ONE, 2)}]
    for _ in range(2):
        assert destinations(await graph.whole()) == {"r": ZERO, "q": ONE}
    assert shards.readings() == [(7, 1)] * 2, "one request for each shard"
    shards.lives = ("a", "c")
    await graph.known()
    assert shards.readings() == [(7, 2)] * 2
    graph.forget()
    await graph.glance()
    assert shards.readings() == [(7, 3)] * 2
    await graph.glance()
    assert shards.readings() == []


async def test_of_two_with_one_name_the_older_one_is_deleted_by_the_reading(shards: Shards, graph: Graph) -> None:
    shards.routers = [{"r": (ZERO, 5)}, {"r": (ONE, 4)}]
    assert destinations(await graph.whole()) == {"r": ZERO}
    assert shards.asked[-1] == (1, RouterDelete("r", (7, 1)))


async def test_a_reading_that_cannot_delete_the_older_one_is_none(shards: Shards, graph: Graph) -> None:
    shards.routers = [{"r": (ZERO, 4)}, {"r": (ONE, 5)}]
    request, failing = shards.request, True

    async def failing_once(index: int, operation: Operation[Any], *more: Any, **named: Any) -> Any:
        nonlocal failing
        if failing and isinstance(operation, RouterDelete):
            failing = False
            raise not_ready("shard 0 is away")
        return await request(index, operation, *more, **named)

    shards.request = failing_once  # type: ignore[method-assign]
    with pytest.raises(TopicsError):
        await graph.whole()
    shards.readings()
    assert destinations(await graph.whole()) == {"r": ONE}
    assert shards.readings() == [(7, 2)] * 2
    assert not failing


async def test_without_a_shard_there_is_what_was_last_seen_of_it_but_not_the_whole(
    shards: Shards, graph: Graph
) -> None:
    shards.routers = [{"r": (ZERO, 1)}, {"q": (ONE, 2)}]
    await graph.whole()
    shards.refusing, shards.lives = {1: not_ready("shard 1 is away")}, ("a", "")
    shards.routers[0]["new"] = (ZERO, 3)
    assert destinations(await graph.known()) == {"r": ZERO, "new": ZERO, "q": ONE}
    with pytest.raises(TopicsError, match="shard 1 is away"):
        await graph.whole()
    shards.refusing, shards.lives = {}, ("a", "c")
    shards.routers[1]["late"] = (ONE, 4)
    assert "late" in await graph.whole(), "what was learned without a shard is not taken for everything"


async def test_a_shard_that_moves_is_asked_again(
    shards: Shards, graph: Graph, autojump_clock: trio.testing.MockClock
) -> None:
    shards.routers = [{"r": (ZERO, 1)}, {"q": (ONE, 2)}]
    request, refusals = shards.request, [moving(1), moving(1), moving(0)]

    async def refusing(index: int, operation: Operation[Any], *more: Any, **named: Any) -> Any:
        if index == 1 and refusals:
            raise refusals.pop(0)
        return await request(index, operation, *more, **named)

    shards.request = refusing  # type: ignore[method-assign]
    with pytest.raises(TopicsError, match="shard 0 moves"):  # which shard 1 had asked
        await graph.whole()
    assert not refusals
    assert destinations(await graph.whole()) == {"r": ZERO, "q": ONE}
    assert trio.current_time() < 1


async def test_another_error_of_a_shard_is_that_of_the_reading(shards: Shards, graph: Graph) -> None:
    shards.refusing = {1: TopicsError(ErrorCode.INTERNAL, "an error of the shard")}
    for read in (graph.whole, graph.known):
        with pytest.raises(TopicsError, match="an error of the shard"):
            await read()


async def test_a_glance_during_a_change_ends_no_change(shards: Shards, graph: Graph) -> None:
    async with graph.turn:
        await graph.glance()
        assert shards.readings() == [None] * 2
        await graph.whole()
        assert shards.readings() == [(7, 1)] * 2, "what a glance saw is not kept"


async def test_a_change_that_ends_in_an_unknown_state_has_the_graph_read_again(shards: Shards, graph: Graph) -> None:
    ends = {
        TopicsError(ErrorCode.THROTTLED, "refused"): False,
        TopicsError(ErrorCode.TOPIC_NOT_EMPTY, "refused"): False,
        not_ready("no answer"): True,
        TopicsError(ErrorCode.INTERNAL, "an error of ours"): True,
        KeyError("an error of ours"): True,
    }
    for end, again in ends.items():
        await graph.whole()
        shards.asked.clear()
        with pytest.raises(type(end)), graph.changing():
            raise end
        assert is_certain(end) is not again
        await graph.whole()
        assert bool(shards.readings()) is again


@pytest.mark.parametrize("shard", [0, 1])
async def test_a_shard_that_does_not_answer_in_time_is_an_unknown_end(
    shards: Shards, graph: Graph, shard: int, autojump_clock: trio.testing.MockClock
) -> None:
    shards.silent = {shard}
    with pytest.raises(TopicsError, match="has not answered in time") as error:
        await graph.ask((ZERO, ONE)[shard], StateGet(touch=False))
    assert error.value.detail == {"shard": shard, "outcome": "unknown"}
    first, second = await graph.ask_each((0, 1), StateGet(touch=False))
    assert [isinstance(each, TopicsError) for each in (first, second)] == [shard == 0, shard == 1]

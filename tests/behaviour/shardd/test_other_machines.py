"""Shards that need each other, and are held by different machines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from proto.model.errors import ErrorCode, TopicsError
from tests.support.holders import Holders, holders

ONE = {"records": [{"data": 1}]}


async def eventually(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The first answer of `ask` that is not false. Until then it may get a `503`. Raises other errors."""
    while True:
        try:
            if found := await ask():
                return found
        except TopicsError as error:
            if error.code is not ErrorCode.NOT_READY:
                raise
        await trio.sleep(0.005)


async def configured(there: Holders, name: str, by: int) -> bool:
    await there.ask("configure", name, by=by)
    return True


async def filled(there: Holders, index: int, *, by: int) -> int:
    """Make topics of a shard until the cap is reached. Returns how many."""
    made: list[str] = []

    async def fill() -> None:
        while len(made) < 100:
            name = there.name(index, len(made))
            await eventually(partial(configured, there, name, by))
            made.append(name)

    with pytest.raises(TopicsError, match="TOPICS_MAX_TOPICS"):
        await fill()
    return len(made)


async def obeyed(there: Holders, index: int, term: int) -> bool:
    """Whether a shard has obeyed an order of the treasurer in this term."""
    return there.process(index).shard.allowance.report.at[0] == term


async def test_a_cap_holds_over_all_machines(tmp_path: Path) -> None:
    async with holders(tmp_path, 0, 1, 2, max_topics=10) as there:
        await eventually(partial(configured, there, there.name(0), 1))
        await eventually(partial(configured, there, there.name(2), 1))
        assert await filled(there, 1, by=0) == 8
        assert there.process(1).shard.allowance.report.at[:3] == (1, 0, 0)


async def test_the_holder_of_shard_0_divides_the_cap_wherever_it_is(tmp_path: Path) -> None:
    async with holders(tmp_path, 0, 0, 1, max_topics=10) as there:
        for _ in range(3):
            await there.move(1, 0)
        await eventually(partial(configured, there, there.name(1), 2))
        await eventually(partial(obeyed, there, 2, 1))
        await there.move(0, 2)  # whose terms and incarnations are fewer
        await eventually(partial(obeyed, there, 2, 2))
        assert await filled(there, 2, by=0) == 9


async def test_a_shard_that_moves_stays_booked_until_its_next_holder_reports(tmp_path: Path) -> None:
    async with holders(tmp_path, 0, 1, 2, max_topics=10) as there:
        for number in range(3):
            await eventually(partial(configured, there, there.name(1, number), 0))
        await there.lose(1)

        async def fill() -> None:
            for number in range(10):
                await configured(there, there.name(2, number), by=0)

        with pytest.raises(TopicsError, match="not known yet"):
            await fill()
        await there.hold(1, 0)
        assert await filled(there, 2, by=0) == 7


async def test_a_shard_without_a_holder_is_taken_to_hold_its_share_in_the_end(tmp_path: Path) -> None:
    async with holders(tmp_path, 0, 1, 2, max_topics=9) as there:
        there.away_s = 0.5
        await there.lose(1)
        await there.move(0, 2)  # whose treasurer knows nothing yet
        since = trio.current_time()
        assert await filled(there, 2, by=0) == 6
        assert trio.current_time() - since >= 0.5


async def test_routers_copy_between_machines_and_go_on_after_a_move(tmp_path: Path) -> None:
    async with holders(tmp_path, 0, 1, 2) as there:
        source, dest = there.name(1), there.name(2)
        for name in (source, dest):
            await there.ask("configure", name)
        router = {"source": source, "dest": dest}
        await there.ask("registrar_put", "", router, by=2, at=0, key=b"", prefixes=(), router="r")

        async def copied(count: int) -> bool:
            return bool((await there.ask("state", dest))["count"] == count)

        await there.ask("append", source, ONE, by=2)
        await eventually(lambda: copied(1))
        await there.move(1, 2)
        await there.ask("append", source, ONE, by=0)
        await eventually(lambda: copied(2))
        await there.move(2, 0)
        await there.ask("append", source, ONE, by=0)
        await eventually(lambda: copied(3))


async def test_the_registrar_is_where_shard_0_is(tmp_path: Path) -> None:
    async with holders(tmp_path, 0, 1) as there:
        for _ in range(3):
            await there.move(0, 0)
        for index in (0, 1):
            await there.ask("configure", there.name(index))

        async def put(name: str) -> bool:
            body = {"source": there.name(0), "dest": there.name(1)}
            await there.ask("registrar_put", "", body, by=1, at=0, key=b"", prefixes=(), router=name)
            return True

        await put("first")
        await there.move(0, 1)  # whose incarnations are smaller
        await eventually(lambda: put("second"))
        found = await there.ask("router_graph", "", at=1)
        assert sorted(row[0] for row in found["routers"]) == ["first", "second"]


async def test_dead_letters_go_to_another_machine(tmp_path: Path) -> None:
    async with holders(tmp_path, 0, 1) as there:
        queue, letters = there.name(0), there.name(1)
        await there.ask("configure", letters, by=0)
        await there.ask("configure", queue, {"type": "queue", "max_deliveries": 1, "dead_letter": letters}, by=1)
        await there.ask("append", queue, ONE, by=1)
        await there.lose(1)
        await there.ask("claim", queue, {"node": "n", "lease_ms": 60_000})
        await there.ask("nack", queue, {"node": "n", "seqs": [1]})
        assert not (await there.ask("claim", queue, {"node": "n"}))["claimed"]
        await there.hold(1, 2)

        async def arrived() -> bool:
            return bool((await there.ask("state", letters))["count"] == 1)

        await eventually(arrived)

"""Claims about `shardd.process.room_tasks`: several shards in one process, with real sockets, divide the caps."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from proto.ipc.control import ShardState
from proto.ipc.operations import Append, Configure, DeleteTopic, RoomWant
from proto.ipc.transport import MessageSocket
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from shardd.clock import SystemClock
from shardd.process.peers import Peers, links
from shardd.process.room_tasks import RoomTasks, epoch_of, treasurer_of
from shardd.process.server import Server
from shardd.shard import Shard, opened_shard
from shardd.storage.disk import RealDisk
from tests.support.gateway_stage import until

SIZE = 17


class Service:
    """Shards, each with its tasks. A test is the supervisor."""

    def __init__(self, path: Path, nursery: trio.Nursery, shards: int, **limits: Any) -> None:
        self.path = path
        self.nursery = nursery
        self.limits = Limits(**limits)
        self.states = [ShardState(index) for index in range(shards)]
        self.shards: list[Shard | None] = [None] * shards
        self.peers: list[Peers | None] = [None] * shards
        self.scopes: list[trio.CancelScope] = [trio.CancelScope() for _ in range(shards)]
        self.asking = Peers(
            opened_shard(RealDisk(), SystemClock(), self._made("asker"), Limits()), -1, links(shards, 20)
        )

    def _made(self, name: str) -> Path:
        (self.path / name).mkdir(exist_ok=True)
        return self.path / name

    async def start(self, index: int) -> None:
        shard = opened_shard(RealDisk(), SystemClock(), self._made(str(index)), self.limits)
        shard.allowance.bind(alone=len(self.shards) == 1)
        incarnation = self.states[index].incarnation + 1
        endpoint = f"ipc://{self.path}/{index}.{incarnation}.sock"
        peers = Peers(shard, index, links(len(self.shards), timeout_s=20))
        peers.update(self.states)
        self.shards[index], self.peers[index] = shard, peers
        scope = self.scopes[index] = trio.CancelScope()

        async def run(task_status: trio.TaskStatus[None]) -> None:
            socket = MessageSocket.router(endpoint)
            try:
                with scope:
                    async with trio.open_nursery() as nursery:
                        await nursery.start(Server(shard, socket, self.limits).run)
                        await nursery.start(peers.run)
                        nursery.start_soon(RoomTasks(shard, peers, self.limits).run)
                        task_status.started()
            finally:
                socket.close()
                shard.log.close()

        await self.nursery.start(run)
        self.tell(index, "ready", endpoint, incarnation)

    def tell(self, index: int, phase: str, endpoint: str = "", incarnation: int | None = None) -> None:
        number = self.states[index].incarnation if incarnation is None else incarnation
        self.states = [*self.states]
        self.states[index] = ShardState(index, phase, endpoint, number)
        for peers in (*self.peers, self.asking):
            if peers is not None:
                peers.update(self.states)

    def lose(self, index: int, phase: str = "down") -> None:
        self.scopes[index].cancel()
        self.peers[index] = None
        self.tell(index, phase)

    async def ask(self, topic: str, operation: Any = None, body: Any = None) -> TopicsError | None:
        raw = msgspec.json.encode({"records": [{"data": 1}]} if body is None else body)
        index = self.asking.index_of(topic)
        try:
            await self.asking.request(index, operation or Append(), topic, raw if operation is None else b"")
        except TopicsError as error:
            return error
        return None

    def totals(self) -> tuple[int, int]:
        counted = [shard.directory.counters() for shard in self.shards if shard is not None]
        return sum(each[0] for each in counted), sum(each[2] for each in counted)

    def name(self, index: int, number: int = 0) -> str:
        """The name of a topic of a shard."""
        return [name for name in (f"t{n}" for n in range(999)) if self.asking.index_of(name) == index][number]


@asynccontextmanager
async def service(path: Path, shards: int, **limits: Any) -> AsyncIterator[Service]:
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            made = Service(path, nursery, shards, **limits)
            await nursery.start(made.asking.run)
            for index in range(shards):
                await made.start(index)
            yield made
            nursery.cancel_scope.cancel()


async def many(there: Service, topics: list[str], operation: Any = None) -> list[TopicsError | None]:
    answers: list[TopicsError | None] = []

    async def worker(mine: list[str]) -> None:
        answers.extend([await there.ask(topic, operation) for topic in mine])

    async with trio.open_nursery() as nursery:
        for start in range(16):
            nursery.start_soon(worker, topics[start::16])
    return answers


def refused(error: TopicsError | None, limit: str) -> None:
    assert error is not None
    assert (error.code, (error.detail or {}).get("limit")) == (ErrorCode.THROTTLED, limit), error


async def freed(there: Service, topic: str, operation: Any = None) -> None:
    """Ask until there is room; it is found a moment after it was made."""
    with trio.fail_after(60):
        while await there.ask(topic, operation) is not None:  # noqa: ASYNC110 - what it looks at has no event
            await trio.sleep(0.01)


@pytest.mark.parametrize("seed", range(3))
async def test_many_writers_on_all_shards_fill_the_total_exactly(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    async with service(tmp_path, 3, max_total_bytes=50 * SIZE + 5) as there:
        answers = await many(there, [f"t{rng.randrange(9)}" for _ in range(120)])
        assert there.totals()[1] == 50 * SIZE
        assert answers.count(None) == 50
        for answer in answers:
            if answer is not None:
                refused(answer, "max_total_bytes")
        await there.ask(there.name(0), DeleteTopic())
        left = 50 - there.totals()[1] // SIZE
        for _ in range(left):
            await freed(there, there.name(1))
        assert there.totals()[1] == 50 * SIZE
        refused(await there.ask(there.name(1)), "max_total_bytes")


async def test_many_creations_on_all_shards_fill_the_topics_exactly_and_updates_always_pass(tmp_path: Path) -> None:
    async with service(tmp_path, 3, max_topics=10) as there:
        answers = await many(there, [f"t{n}" for n in range(40)], Configure())
        assert there.totals()[0] == 10
        assert answers.count(None) == 10
        for answer in answers:
            if answer is not None:
                refused(answer, "max_topics")
        names = [name for shard in there.shards if shard is not None for name in shard.directory.visible]
        assert set(await many(there, names)) == {None}
        await there.ask(names[0], DeleteTopic())
        other = next(there.name(n) for n in range(3) if n != there.asking.index_of(names[0]))
        await freed(there, f"{other}x", Configure())
        refused(await there.ask("once-more", Configure()), "max_topics")


async def test_a_shard_uses_what_it_has_while_the_treasurer_is_away(tmp_path: Path) -> None:
    async with service(tmp_path, 3, max_topics=60) as there:
        assert await there.ask(there.name(1)) is None
        there.lose(0)
        for number in range(1, 10):
            assert await there.ask(there.name(1, number)) is None
        missing = await there.ask(there.name(1, 10))
        assert missing is not None
        assert (missing.code, missing.detail) == (ErrorCode.NOT_READY, {"outcome": "not_done"})
        await there.start(0)
        assert await there.ask(there.name(1, 10)) is None


async def test_a_request_waits_for_the_treasurer_that_comes_back(tmp_path: Path) -> None:
    async with service(tmp_path, 2, max_topics=4) as there:
        assert await there.ask(there.name(1)) is None
        there.lose(0)
        answers: list[TopicsError | None] = []

        async def ask(number: int) -> None:
            answers.append(await there.ask(there.name(1, number)))

        async with trio.open_nursery() as nursery:
            for number in (1, 2):
                nursery.start_soon(ask, number)
            shard = there.shards[1]
            assert shard is not None
            await until(lambda: shard.allowance.unsettled)
            await there.start(0)
        assert answers == [None, None]


async def test_without_the_first_shard_the_next_one_divides_the_caps(tmp_path: Path) -> None:
    async with service(tmp_path, 3, max_topics=30) as there:
        await there.ask(there.name(0))
        there.lose(0, "failed")
        assert set(await many(there, [there.name(1, n) for n in range(18)])) == {None}
        answers = await many(there, [there.name(1, n) for n in range(18, 22)])
        assert answers.count(None) == 2, "shard 0 is taken to hold its share, 10"
        refused(next(each for each in answers if each is not None), "max_topics")
        await there.start(0)
        assert await there.ask(there.name(0, 1)) is None, "it has its part"
        assert there.totals()[0] <= 30


async def test_what_a_dead_shard_may_have_taken_counts_until_its_successor_reports(tmp_path: Path) -> None:
    async with service(tmp_path, 3, max_total_bytes=30 * SIZE) as there:
        for _ in range(5):
            assert await there.ask(there.name(1)) is None
        there.lose(1)
        answers = await many(there, [there.name(2)] * 40)
        known = {None if each is None else each.code for each in answers}
        assert known == {None, ErrorCode.NOT_READY}, "the shard may give back, so nothing is refused for good"
        assert answers.count(None) <= 25
        await there.start(1)
        left = 25 - answers.count(None)
        for _ in range(left):
            await freed(there, there.name(2))
        assert there.totals()[1] == 30 * SIZE


async def test_a_shard_that_cannot_start_is_taken_to_hold_its_share(tmp_path: Path) -> None:
    async with service(tmp_path, 2, max_topics=10) as there:
        there.lose(0)
        there.lose(1, "failed")
        await there.start(0)
        answers = await many(there, [there.name(0, n) for n in range(8)])
        assert answers.count(None) == 5
        refused(next(each for each in answers if each is not None), "max_topics")


async def test_a_want_of_no_shard_is_refused(tmp_path: Path) -> None:
    async with service(tmp_path, 2, max_topics=10) as there:
        for shard in (-1, 2, 1 << 40):
            with pytest.raises(TopicsError) as caught:
                await there.asking.request(0, RoomWant(shard, (0, 0, 0, 0), (0, 0), (1, 1)), "")  # type: ignore[arg-type]
            assert caught.value.code is ErrorCode.INVALID_REQUEST
        with pytest.raises(TopicsError) as caught:
            await there.asking.request(1, RoomWant(0, (0, 0, 0, 0), (0, 0), (1, 1)), "")  # type: ignore[arg-type]
        assert caught.value.code is ErrorCode.NOT_READY


async def test_one_shard_sends_nothing(tmp_path: Path) -> None:
    async with service(tmp_path, 1, max_topics=2) as there:
        assert (await many(there, ["a", "b", "c", "d"])).count(None) == 2
        assert there.shards[0] is not None
        assert there.shards[0].allowance.report.at == (0, 0, 0, 0)


def test_the_first_shard_that_can_start_has_the_treasurer_and_later_ones_have_larger_epochs() -> None:
    states = [ShardState(0, "failed", incarnation=4), ShardState(1, "open", incarnation=2, term=3), ShardState(2)]
    assert treasurer_of(states) == 1
    assert epoch_of(states, 1) == (3, 6, 1)
    again = [ShardState(0, "open", incarnation=5), *states[1:]]
    assert treasurer_of(again) == 0
    assert epoch_of(again, 0) > epoch_of(states, 1)
    assert treasurer_of([ShardState(0, "failed"), ShardState(1, "failed")]) == 0

"""What each sink of a log does: the role of a shard in front of a store, and the sink of the shipper's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing

from shardd.replication import role
from shardd.replication.log_reader import Frames, LogReader
from shardd.replication.messages import Part, Position
from shardd.replication.shipper import Sink
from shardd.replication.store import StoreError, Unreachable
from shardd.storage.disk import RealDisk
from tests.support.bucket import MemoryStore
from tests.support.gateway_stage import until
from tests.support.harness import FakeClock, Harness
from tests.support.kept_sink import Kept
from tests.support.roles import Machine, Time
from tests.support.shipped import SMALL


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role, "TURN_S", 0.005)


@pytest.fixture(params=["role", "kept"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@dataclass
class Scene:
    sink: Sink
    harness: Harness
    reader: LogReader
    hold: Callable[[], None]
    """From now on a part that is put stays on its way."""
    release: Callable[[], None]
    """What is on its way arrives."""
    end: Callable[[], None]
    """The sink is over, as if the shard had been taken over."""
    nursery: trio.Nursery
    noted: list[tuple[Part, Frames]] = field(default_factory=list)
    ended: trio.Event = field(default_factory=trio.Event)
    """Set when what `begin` runs was stopped."""

    async def ship(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.ended.set()

    def frames(self, *data: object) -> Frames:
        """The next frames of the log, which has these records more."""
        for each in data:
            self.harness.append("a", each)
        self.harness.shard.commits.sync_now()
        found = self.reader.take(self.harness.shard.log.synced_no, 1 << 20)
        assert found is not None
        return found

    async def put_later(self, frames: Frames) -> trio.Event:
        """Put them in a task of its own. The event is set when `put` has returned."""
        done = trio.Event()

        async def put() -> None:
            await self.sink.put(frames)
            done.set()

        self.nursery.start_soon(put)
        await trio.testing.wait_all_tasks_blocked()
        return done


@asynccontextmanager
async def opened(kind: str, path: Path) -> AsyncIterator[Scene]:
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            if kind == "kept":
                sink = Kept()
                sink.may.set()
                await nursery.start(sink.run)

                def hold() -> None:
                    sink.may = trio.Event()

                def release() -> None:
                    sink.may.set()

                scene = _scene(sink, path / "shard-00", hold, release, sink.over.set, nursery)
            else:
                store = MemoryStore()
                machine = Machine(nursery, store, path, "one", Time())
                await machine.role.held.wait()

                def fault(operation: str, name: str) -> StoreError | None:
                    return Unreachable("away") if "/log/" in name and operation == "create" else None

                scene = _scene(
                    machine.role,
                    machine.path,
                    lambda: setattr(store, "fault", fault),
                    lambda: setattr(store, "fault", lambda operation, name: None),
                    lambda: machine.role._end("replaced"),
                    nursery,
                )
            scene.sink.taken = lambda part, frames: scene.noted.append((part, frames))
            yield scene
            nursery.cancel_scope.cancel()


def _scene(
    sink: Sink,
    path: Path,
    hold: Callable[[], None],
    release: Callable[[], None],
    end: Callable[[], None],
    nursery: trio.Nursery,
) -> Scene:
    harness = Harness(RealDisk(), FakeClock(), path, **SMALL)
    return Scene(sink, harness, LogReader(RealDisk(), path / "wal"), hold, release, end, nursery)


async def test_a_part_is_noted_and_counted_when_put_returns(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as scene:
        before = scene.sink.position
        scene.sink.begin(0, scene.ship)
        first = scene.frames(1, 2)
        await scene.sink.put(first)
        assert scene.sink.position == Position(before.part + 1, first.last_no)
        second = scene.frames(3)
        await scene.sink.put(second)
        assert scene.sink.position == Position(before.part + 2, second.last_no)
        assert [frames for _, frames in scene.noted] == [first, second]
        assert [(part.number, part.first_no, part.last_no) for part, _ in scene.noted] == [
            (before.part + 1, first.first_no, first.last_no),
            (before.part + 2, second.first_no, second.last_no),
        ]


async def test_a_part_on_its_way_is_not_there(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as scene:
        scene.sink.begin(0, scene.ship)
        scene.hold()
        before = scene.sink.position
        frames = scene.frames(1)
        done = await scene.put_later(frames)
        assert (scene.sink.position, scene.noted, done.is_set()) == (before, [], False)
        scene.release()
        await done.wait()
        assert scene.sink.position.frame_no == frames.last_no
        assert len(scene.noted) == 1


async def test_those_that_wait_for_a_part_are_woken_when_it_is_there(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as scene:
        scene.sink.begin(0, scene.ship)
        seen: list[int] = []

        async def wait() -> None:
            await scene.sink.arrived()
            seen.append(scene.sink.position.frame_no)

        for _ in range(2):
            scene.nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        frames = scene.frames(1)
        await scene.sink.put(frames)
        await until(lambda: len(seen) == 2)
        assert seen == [frames.last_no] * 2


async def test_the_next_part_follows_the_frame_that_shipping_begins_after(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as scene:
        skipped = scene.frames(1, 2, 3)
        scene.sink.begin(skipped.last_no, scene.ship)
        assert scene.sink.position.frame_no == skipped.last_no
        await scene.sink.put(scene.frames(4))
        assert [part.first_no for part, _ in scene.noted] == [skipped.last_no + 1]


async def test_the_end_stops_what_ships_and_wakes_all_that_wait(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as scene:
        scene.sink.begin(0, scene.ship)
        scene.hold()
        before = scene.sink.position
        done = await scene.put_later(scene.frames(1))
        scene.end()
        await done.wait()
        await scene.ended.wait()
        await scene.sink.arrived()
        assert scene.sink.over.is_set()
        assert (scene.sink.position, scene.noted) == (before, [])


async def test_after_the_end_nothing_begins(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as scene:
        before = scene.sink.position
        scene.end()
        scene.sink.begin(5, scene.ship)
        await trio.testing.wait_all_tasks_blocked()
        assert scene.sink.position == before
        assert not scene.ended.is_set()


async def test_an_orderly_end_waits_for_what_is_on_its_way(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as scene:
        scene.sink.begin(0, scene.ship)
        caught_up = trio.Event()
        finished = trio.Event()

        async def finish() -> None:
            await scene.sink.finish(caught_up.wait)
            finished.set()

        scene.nursery.start_soon(finish)
        await trio.testing.wait_all_tasks_blocked()
        assert not scene.sink.over.is_set()
        frames = scene.frames(1)
        await scene.sink.put(frames)
        assert scene.sink.position.frame_no == frames.last_no
        caught_up.set()
        await finished.wait()
        assert scene.sink.over.is_set()

"""The giver: each step is reported when it is done, what was refused is taken back, and the end is not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import trio
from msgspec.structs import replace

from proto.ipc.control import Step, StepDone
from proto.model.errors import TopicsError
from shardd.process.giver import Giver
from shardd.replication.states import ReplicaState

SAVING = Step(1, 5, 3, "saving")
REFUSING, ENDING = replace(SAVING, state="refusing"), replace(SAVING, state="ending")


class Scene:
    """A giver with a shard whose calls are noted, and wait until the test says so."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.done: list[StepDone] = []
        self.refusal: TopicsError | None = None
        self.worth = True
        self.fault: OSError | None = None
        self.may: dict[str, trio.Event] = {}
        self.replica = SimpleNamespace(term=5, state=ReplicaState.HOLDING)
        self.news = trio.Event()
        shard: Any = self
        holder: Any = SimpleNamespace(save=self.waits("save"), shipper=self)
        self.caught_up, self.drain, self.idle = self.waits("caught_up"), self.waits("drain"), self.waits("idle")
        self.control = self.commits = self
        dismiss = self.waits("dismiss")
        self.giver = Giver(shard, self, holder, 1, self.reported, dismiss)  # type: ignore[arg-type]

    def waits(self, name: str) -> Callable[[], Any]:
        self.may[name] = trio.Event()

        async def call() -> None:
            self.note(name)
            await self.may[name].wait()

        return call

    def note(self, name: str) -> None:
        self.calls.append(name)
        self.news.set()
        self.news = trio.Event()

    def wanted(self) -> None:
        self.note("wanted")

    def sync_now(self) -> None:
        self.note("sync")
        if self.fault is not None:
            raise self.fault

    @property
    def moving(self) -> TopicsError | None:
        return self.refusal

    def move(self, refusal: TopicsError | None) -> None:
        self.refusal = refusal
        self.note("serves" if refusal is None else "refuses")

    async def reported(self, done: StepDone) -> None:
        self.done.append(done)
        self.note(done.event)

    async def until(self, name: str) -> None:
        with trio.fail_after(10):
            while name not in self.calls:
                await self.news.wait()


@asynccontextmanager
async def running() -> AsyncIterator[Scene]:
    scene = Scene()
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            await scene.giver.run()
            scene.note("over")

        nursery.start_soon(run)
        yield scene
        nursery.cancel_scope.cancel()


async def test_a_shard_is_saved_then_refuses_ships_and_ends() -> None:
    async with running() as scene:
        scene.giver.ordered(SAVING)
        await scene.until("wanted")
        await scene.until("save")
        assert scene.refusal is None, "requests are served meanwhile"
        assert not scene.done
        scene.may["save"].set()
        await scene.until("saved")
        scene.giver.ordered(REFUSING)
        await scene.until("idle")
        assert scene.refusal is not None
        assert scene.refusal.detail == {"shard": 1, "reason": "moving", "outcome": "not_done"}
        scene.may["idle"].set()
        await scene.until("caught_up")
        assert scene.calls.index("refuses") < scene.calls.index("sync")
        assert len(scene.done) == 1
        scene.may["caught_up"].set()
        await scene.until("shipped")
        scene.giver.ordered(ENDING)
        await scene.until("drain")
        assert scene.giver.given
        scene.replica.state = ReplicaState.DRAINED
        scene.may["drain"].set()
        await scene.until("dismiss")
        assert scene.done == [StepDone(3, "saved"), StepDone(3, "shipped"), StepDone(3, "ended")]
        assert "over" not in scene.calls, "someone may still ask"
        scene.may["dismiss"].set()
        await scene.until("over")
        assert scene.refusal is not None, "also after the end"


async def test_what_was_logged_already_is_not_saved_again() -> None:
    async with running() as scene:
        scene.worth = False
        scene.giver.ordered(SAVING)
        await scene.until("saved")
        assert "save" not in scene.calls


async def test_a_hand_over_that_is_given_up_leaves_the_shard_serving() -> None:
    async with running() as scene:
        scene.giver.ordered(REFUSING)
        await scene.until("idle")
        scene.giver.ordered(None)
        await scene.until("serves")
        scene.may["idle"].set()
        scene.giver.ordered(SAVING)
        await scene.until("save")
        assert "sync" not in scene.calls, "the step was cancelled"
        assert not scene.giver.given


async def test_nothing_goes_back_from_the_end() -> None:
    async with running() as scene:
        scene.may["idle"].set()
        scene.giver.ordered(ENDING)
        await scene.until("drain")
        scene.giver.ordered(None)
        scene.may["drain"].set()
        scene.may["dismiss"].set()
        await scene.until("over")
        assert scene.refusal is not None
        assert scene.done == [], "the bucket did not answer: the next process looks"


async def test_a_stop_ends_the_term_whatever_is_ordered() -> None:
    async with running() as scene:
        scene.giver.ordered(REFUSING)
        await scene.until("idle")
        scene.giver.stop()
        scene.giver.ordered(None)
        scene.may["idle"].set()
        await scene.until("drain")
        assert scene.refusal is not None
        assert scene.calls.index("sync") < scene.calls.index("drain")
        scene.may["dismiss"].set()
        scene.may["drain"].set()
        await scene.until("over")


async def test_a_step_for_another_term_is_passed_over() -> None:
    async with running() as scene:
        scene.giver.ordered(replace(ENDING, term=4))
        scene.giver.ordered(SAVING)
        await scene.until("save")
        assert scene.refusal is None


async def test_a_disk_that_fails_ships_nothing_and_the_process_continues() -> None:
    async with running() as scene:
        scene.fault = OSError("no device")
        scene.may["idle"].set()
        scene.giver.ordered(REFUSING)
        await scene.until("sync")
        scene.giver.ordered(None)
        await scene.until("serves")
        assert scene.done == []

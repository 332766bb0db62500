"""Machines without a supervisor's process: the main programs of their rosters and shards, and what passes between them.

`Machines`, which passes it on, is the real one. The test starts processes again, as the supervisor does.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from proto.ipc.control import (
    EXIT_DEPOSED,
    REPORTS,
    Control,
    Holder,
    Progress,
    Ready,
    Shards,
    ShardState,
    Start,
    Stop,
)
from proto.ipc.control_link import ControlLink
from proto.model.limits import Limits
from shardd.process import main, roster
from supervisor.process.cluster import Address, Machines
from supervisor.process.states import ChildState

SHARDS = 2


class Child:
    """As far as `Machines` looks at one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ChildState.STARTING
        self.phase, self.holder, self.holder_link, self.term = "open", "", ("", ""), 0
        self.incarnation = 0
        self.heard: Callable[[Control], object] = lambda message: None
        self.link: ControlLink | None = None
        self.scope = trio.CancelScope()

    def want(self) -> None:
        """Two machines need each shard."""

    def held_by(self, found: Holder) -> None:
        """It has a process, which knows that."""


class Machine:
    def __init__(self, nursery: trio.Nursery, path: Path, name: str) -> None:
        self.nursery, self.path, self.name = nursery, path, name
        at = Address("127.0.0.1", 0, "tcp://127.0.0.1", name, f"place of {name}")
        self.machines = Machines(at, self.tell, self.tell)
        self.shards = [Child(f"shard-{index:02d}") for index in range(SHARDS)]
        self.roster = Child("roster")
        self.machines.join(self.roster, self.shards, lambda index: True)  # type: ignore[arg-type]
        self.changed = trio.Event()
        self.over = False
        for shard in range(SHARDS):
            (path / name / f"shard-{shard:02d}").mkdir(parents=True, exist_ok=True)
        (path / "bucket").mkdir(exist_ok=True)
        for child in (*self.shards, self.roster):
            nursery.start_soon(self._keep, child)

    @property
    def held(self) -> set[int]:
        return {index for index, shard in enumerate(self.shards) if shard.phase == "ready"}

    def states(self) -> list[ShardState]:
        return [
            ShardState(
                index,
                self.machines.phase(index, each.phase),
                self._endpoint(each),
                each.incarnation,
                holder=each.holder,
                term=each.term,
                holder_at=each.holder_link[0],
                holder_key=each.holder_link[1],
            )
            for index, each in enumerate(self.shards)
        ]

    def _endpoint(self, child: Child) -> str:
        return f"ipc://{self.path}/{self.name}.{child.name}.{child.incarnation}"

    def _start(self, child: Child) -> Start:
        index = self.shards.index(child) if child in self.shards else 0
        return Start(
            "shard" if child in self.shards else "roster",
            Limits(bucket=(self.path / "bucket").as_uri(), replication="sync", term_ttl_ms=1500, max_topics=0),
            index,
            SHARDS,
            str(self.path / self.name),
            7,
            f"http://{self.name}",
            self._endpoint(child),
            states=self.states(),
            incarnation=child.incarnation,
            askers={"g0": 1, **{f"s{n}": each.incarnation for n, each in enumerate(self.shards)}},
            cluster=self.machines.of_shard(index),
        )

    async def _keep(self, child: Child) -> None:
        """Run the processes of a child, one after the other."""
        status = EXIT_DEPOSED
        while not self.over and status == EXIT_DEPOSED:
            child.incarnation += 1
            child.state, child.phase, child.holder, child.holder_link, child.term = (
                ChildState.STARTING,
                "open",
                "",
                ("", ""),
                0,
            )
            ours, theirs = socket.socketpair()
            child.link = ControlLink(ours)
            self._saw(child)
            with trio.CancelScope() as child.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._hear, child, child.link)
                    await child.link.send(self._start(child))
                    status = await (main if child in self.shards else roster).main(theirs.detach())
                    nursery.cancel_scope.cancel()
            link, child.link = child.link, None
            await link.aclose()
            child.state, child.phase = ChildState.WAITING, "down"
            self._saw(child)
            if child.scope.cancelled_caught:  # as if it were killed
                status = EXIT_DEPOSED

    async def _hear(self, child: Child, link: ControlLink) -> None:
        while (message := await link.receive()) is not None:
            if isinstance(message, REPORTS):
                child.heard(message)
            elif isinstance(message, Progress):
                child.phase, child.holder, child.term = message.phase, message.holder, message.term or child.term
                child.holder_link = message.holder_at, message.holder_key
            elif isinstance(message, Ready):
                child.state = ChildState.SERVING
                child.phase = "ready" if child in self.shards else child.phase
            self._saw(child)

    def _saw(self, child: Child) -> None:
        self.machines.saw(child)  # type: ignore[arg-type]
        self.tell()
        self.changed.set()
        self.changed = trio.Event()

    def tell(self) -> None:
        for child in (*self.shards, self.roster):
            if child.link is not None:
                self.nursery.start_soon(self._tell, child)

    async def _tell(self, child: Child) -> None:
        news: list[Control] = [*self.machines.news(child), Shards(self.states())]  # type: ignore[arg-type]
        for message in news:
            if child.link is not None:
                try:
                    await child.link.send(message)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return

    async def stop(self) -> None:
        self.over = True
        for child in (*self.shards, self.roster):
            if child.link is not None:
                await child.link.send(Stop())
        while any(child.link is not None for child in (*self.shards, self.roster)):
            await self.changed.wait()


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "configure", lambda name: None)
    monkeypatch.setattr(roster, "configure", lambda name: None)


async def until(condition: Callable[[], Any], *machines: Machine) -> None:
    while not condition():
        with trio.move_on_after(0.1):
            async with trio.open_nursery() as nursery:

                async def heard(event: trio.Event) -> None:
                    await event.wait()
                    nursery.cancel_scope.cancel()

                for each in machines:
                    nursery.start_soon(partial(heard, each.changed))


async def test_shards_are_spread_when_a_machine_joins_and_given_away_when_it_leaves(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            one = Machine(nursery, tmp_path, "one")
            await until(lambda: one.held == {0, 1}, one)
            two = Machine(nursery, tmp_path, "two")
            await until(lambda: len(one.held) == len(two.held) == 1 and not one.held & two.held, one, two)
            (moved,) = two.held
            await until(lambda: one.shards[moved].holder == "http://two", one)
            assert two.shards[moved].term == 2
            two.machines.leave()
            await until(lambda: one.held == {0, 1} and two.machines.left, one, two)
            assert one.shards[moved].term == 3
            await two.stop()
            await one.stop()
            nursery.cancel_scope.cancel()


async def test_a_roster_that_dies_takes_no_rank_away_and_its_next_process_goes_on(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            one = Machine(nursery, tmp_path, "one")
            await until(lambda: one.held == {0, 1}, one)
            one.roster.scope.cancel()
            await until(lambda: one.roster.state is ChildState.WAITING or one.roster.incarnation == 2, one)
            assert one.machines.orders(0).rank == 0
            two = Machine(nursery, tmp_path, "two")
            await until(lambda: len(one.held) == len(two.held) == 1, one, two)
            for each in (two, one):
                await each.stop()
            nursery.cancel_scope.cancel()

"""A shard's process that gives its shard away, and one that takes it: their main programs, with a bucket and sockets.

The test is the supervisor, the roster and the gateway of both.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from proto.ipc.control import (
    EXIT_DEPOSED,
    Cluster,
    Control,
    Followed,
    Orders,
    Progress,
    Ready,
    ShardState,
    Start,
    Step,
    StepDone,
    Stop,
)
from proto.ipc.control_link import ControlLink
from proto.ipc.links import Links
from proto.ipc.message import Reply
from proto.ipc.operations import Append
from proto.ipc.remote import KeyPair
from proto.model.errors import TopicsError
from proto.model.limits import Limits
from shardd.process import main

ASKERS = KeyPair.new()


class Process:
    """One shard's process of a machine, from the supervisor's end of its control link."""

    def __init__(self, nursery: trio.Nursery, path: Path, machine: str, incarnation: int = 1) -> None:
        self.endpoint = f"ipc://{path}/{machine}.{incarnation}"
        self.data = path / machine
        (self.data / "shard-00").mkdir(parents=True, exist_ok=True)
        (path / "bucket").mkdir(exist_ok=True)
        ours, theirs = socket.socketpair()
        self.link = ControlLink(ours)
        self.incarnation = incarnation
        self.heard: list[Control] = []
        self.news = trio.Event()
        self.started = trio.Event()
        self.status: int | None = None
        self.start = Start(
            "shard",
            Limits(bucket=(path / "bucket").as_uri(), replication="sync", term_ttl_ms=1500, max_topics=0),
            data_dir=str(self.data),
            created_ms=7,
            address=f"http://{machine}",
            endpoint=self.endpoint,
            states=[ShardState(0, "open", self.endpoint, incarnation)],
            incarnation=incarnation,
            askers={"g0": 1, "s0": incarnation},
            cluster=Cluster(
                f"m{machine}", ASKERS.public, ASKERS.secret, "127.0.0.1:0", "tcp://127.0.0.1", {}, machine, machine
            ),
        )
        nursery.start_soon(self._run, theirs.detach())
        nursery.start_soon(self._hear)

    async def _run(self, descriptor: int) -> None:
        await self.link.send(self.start)
        self.started.set()
        self.status = await main.main(descriptor)
        self._note()

    async def _hear(self) -> None:
        while (message := await self.link.receive()) is not None:
            self.heard.append(message)
            self._note()

    def _note(self) -> None:
        self.news.set()
        self.news = trio.Event()

    async def until(self, condition: Any) -> Any:
        while not (found := condition()):
            await self.news.wait()
        return found

    async def says(self, kind: type[Control]) -> Any:
        """The first message of a kind."""
        return await self.until(lambda: next((each for each in self.heard if isinstance(each, kind)), None))

    @property
    def term(self) -> int:
        return max((each.term for each in self.heard if isinstance(each, Progress)), default=0)

    async def orders(self, rank: float, state: str = "") -> None:
        await self.started.wait()
        await self.link.send(Orders(rank, Step(0, self.term, 1, state) if state else None))

    async def done(self, event: str) -> None:
        await self.until(lambda: StepDone(1, event) in self.heard)

    async def holds(self) -> None:
        await self.says(Ready)

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[Links]:
        links = Links(1, 20, name="g0.1")
        links.update([ShardState(0, "ready", self.endpoint, self.incarnation)])
        async with trio.open_nursery() as nursery:
            await nursery.start(links.run)
            yield links
            nursery.cancel_scope.cancel()

    async def ended(self) -> int:
        await self.until(lambda: self.status is not None)
        await self.link.aclose()
        assert self.status is not None
        return self.status


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "configure", lambda name: None)


async def append(links: Links, number: int) -> Reply:
    body = msgspec.json.encode({"records": [{"data": number}], "config": {"durability": "fsync"}})
    return await links.to(0).ask(Append(), "t", body).reply()


def refusal(reply: Reply) -> Any:
    assert isinstance(reply.error, TopicsError)
    return reply.error.detail


def contents(path: Path) -> bytes:
    return b"".join(each.read_bytes() for each in path.rglob("*") if each.is_file())


async def test_a_shard_is_handed_over_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            one = Process(nursery, tmp_path, "one")
            await one.orders(0)
            await one.holds()
            two = Process(nursery, tmp_path, "two")
            assert (await two.says(Followed)).lag_s < 1
            async with one.asked() as gateway:
                for number in range(5):
                    (await append(gateway, number)).checked()
                await one.orders(0, "saving")
                await one.done("saved")
                assert list((tmp_path / "bucket" / "shard-00" / "manifests").iterdir())
                (await append(gateway, 5)).checked()
                await one.orders(1, "refusing")
                await one.done("shipped")
                assert refusal(await append(gateway, 6)) == {"shard": 0, "reason": "moving", "outcome": "not_done"}
                await one.orders(1)
                await trio.testing.wait_all_tasks_blocked()
                (await append(gateway, 7)).checked()  # it was given up
                await one.orders(1, "refusing")
                await one.orders(1, "ending")
                await two.orders(0)
                await one.done("ended")
                assert refusal(await append(gateway, 8))["reason"] == "moving", "also after the end of its term"
            assert await one.ended() == EXIT_DEPOSED
            await two.holds()
            again = Process(nursery, tmp_path, "one", 2)
            async with two.asked() as gateway:
                (await append(gateway, 9)).checked()
            holders = [each for each in (await again.until(lambda: follows(again))) if each.holder]
            assert (holders[0].holder, holders[0].holder_at != "") == ("http://two", True)
            assert (again.term, two.term) == (0, 2)
            for each in (again, two):
                await each.link.send(Stop())
                assert await each.ended() == 0
            found = msgspec.json.decode((tmp_path / "bucket" / "shard-00" / "terms" / f"{2:020d}").read_bytes())
            assert found["member"] == "two"
            nursery.cancel_scope.cancel()


def follows(process: Process) -> list[Progress]:
    return [each for each in process.heard if isinstance(each, Progress) and each.holder]


async def test_a_shard_that_no_roster_has_given_a_rank_is_not_claimed(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            one = Process(nursery, tmp_path, "one")
            await one.orders(inf)
            assert (await one.says(Progress)).phase == "standby"
            assert not (tmp_path / "bucket" / "shard-00" / "terms").exists()
            await one.orders(0)
            await one.holds()
            await one.link.send(Stop())
            assert await one.ended() == 0
            nursery.cancel_scope.cancel()


async def test_while_a_shard_is_handed_over_each_request_is_done_or_certainly_not(tmp_path: Path) -> None:
    answers: list[Reply] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            one = Process(nursery, tmp_path, "one")
            await one.orders(0)
            await one.holds()
            async with one.asked() as gateway, trio.open_nursery() as writers:

                async def write(first: int) -> None:
                    for number in range(first, first + 1_000_000):
                        answers.append(await append(gateway, number))
                        await trio.lowlevel.checkpoint()  # a refusal may be there at once

                for writer in range(4):
                    writers.start_soon(write, writer * 1_000_000)

                async def goes_on() -> None:
                    before = len(answers)
                    while len(answers) < before + 20:
                        await trio.lowlevel.checkpoint()

                for state, event in (("saving", "saved"), ("refusing", "shipped"), ("ending", "ended")):
                    await goes_on()
                    await one.orders(1, state)
                    await one.done(event)
                await goes_on()
                writers.cancel_scope.cancel()
            assert await one.ended() == EXIT_DEPOSED
            nursery.cancel_scope.cancel()
    refused = [refusal(each) for each in answers if each.error is not None]
    assert refused
    assert all(each == {"shard": 0, "reason": "moving", "outcome": "not_done"} for each in refused), refused[:3]

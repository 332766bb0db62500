"""Outcomes of a request reach a task that waits or a callback, in order and once each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from proto.ipc.control import ShardState
from proto.ipc.link import Link, Pending
from proto.ipc.links import Links
from proto.ipc.message import Cancel, Message, Parked, Reply
from proto.ipc.operations import StateGet
from proto.model.errors import TopicsError


@asynccontextmanager
async def silent_shard(short_path: Path) -> AsyncIterator[tuple[Links, Link]]:
    """Yields the link to a shard that never answers."""
    links = Links(1, 60.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(links.run)
        links.update([ShardState(0, "ready", f"ipc://{short_path}/s")])
        yield links, links.to(0)
        nursery.cancel_scope.cancel()


def ask(link: Link) -> Pending[Any]:
    return link.ask(StateGet(), "t", b"")


async def test_a_callback_gets_the_parking_and_then_the_reply(short_path: Path) -> None:
    async with silent_shard(short_path) as (_, link):
        heard: list[object] = []
        pending = ask(link)
        pending.then(heard.append)
        pending.resolve(Parked(pending.id))
        assert heard == [Parked(pending.id)]
        pending.resolve(Reply(pending.id, b"x"))
        assert heard == [Parked(pending.id), Reply(pending.id, b"x")]


async def test_a_callback_gets_an_outcome_that_came_before_it(short_path: Path) -> None:
    async with silent_shard(short_path) as (_, link):
        heard: list[object] = []
        pending = ask(link)
        pending.resolve(Reply(pending.id))
        pending.then(heard.append)
        assert heard == [Reply(pending.id)]


async def test_a_reply_replaces_a_parking_that_no_task_took(short_path: Path) -> None:
    async with silent_shard(short_path) as (_, link), trio.open_nursery() as nursery:
        pending = ask(link)
        heard: list[object] = []

        async def wait() -> None:
            heard.append(await pending.wait())

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        pending.resolve(Parked(pending.id))
        pending.resolve(Reply(pending.id))
        await trio.testing.wait_all_tasks_blocked()
        assert heard == [Reply(pending.id)]


async def test_a_cancelled_wait_leaves_the_outcome_for_the_next(short_path: Path) -> None:
    async with silent_shard(short_path) as (_, link):
        pending = ask(link)
        with trio.move_on_after(0):
            await pending.wait()
        pending.resolve(Reply(pending.id))
        assert await pending.wait() == Reply(pending.id)


async def test_a_callback_that_fails_keeps_no_outcome_from_the_others(short_path: Path) -> None:
    async with silent_shard(short_path) as (links, link):
        heard: list[Any] = []

        def fail(_: object) -> None:
            raise RuntimeError("the callback's mistake")

        ask(link).then(fail)
        ask(link).then(heard.append)
        links.update([ShardState(0)])
        assert isinstance(heard[0], TopicsError)


@pytest.mark.parametrize("how", ["fail", "sweep"])
async def test_no_call_follows_an_abandonment_by_another_callback(short_path: Path, how: str) -> None:
    async with silent_shard(short_path) as (_, link):
        heard: list[object] = []
        first, second = ask(link), ask(link)
        first.then(lambda _: second.abandon())
        second.then(heard.append)
        if how == "fail":
            link.fail()
        else:
            link.sweep(second.deadline)
        assert not heard
        assert not link.waiting


async def test_what_came_between_the_end_of_the_wait_and_the_abandonment_is_taken_back(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with silent_shard(short_path) as (_, link), trio.open_nursery() as nursery:
        pending = ask(link)
        sent: list[Message] = []
        monkeypatch.setattr(link._socket, "send", sent.append)
        scope = trio.CancelScope()

        async def wait() -> None:
            with scope:
                await pending.wait()
            pending.abandon()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        link._end(Reply(pending.id))
        await trio.testing.wait_all_tasks_blocked()
        assert sent == [Cancel(pending.id)]
        pending.abandon()
        assert len(sent) == 1


async def test_a_reply_that_was_taken_is_not_taken_back(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with silent_shard(short_path) as (_, link):
        pending = ask(link)
        sent: list[Message] = []
        monkeypatch.setattr(link._socket, "send", sent.append)
        link._end(Reply(pending.id))
        await pending.wait()
        pending.abandon()
        assert not sent


async def test_a_request_that_is_a_step_of_another_one_has_its_deadline_if_that_is_earlier(tmp_path: Path) -> None:
    async with silent_shard(tmp_path) as (_, link):
        own = ask(link).request.deadline_ns
        assert link.ask(StateGet(), "t", b"", 5).request.deadline_ns == 5
        assert own <= link.ask(StateGet(), "t", b"", 2**64 - 1).request.deadline_ns < 2**63

"""Membership: a machine shows itself while it runs, hears of the others, and waits for no delayed call of the store."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
import trio

from shardd.replication.attach import FORMAT, Service
from shardd.replication.members import Member, publish
from shardd.replication.membership import Membership
from shardd.replication.names import NODES, SERVICE
from shardd.replication.nodes import number
from shardd.replication.store import StoreError, Unreachable
from tests.support.bucket import MemoryStore
from tests.unit.shardd.replication.test_members import member

CREATED_MS = 77


def bucket(created_ms: int = CREATED_MS) -> MemoryStore:
    store = MemoryStore()
    store.objects[SERVICE] = msgspec.json.encode(Service(FORMAT, created_ms, 2))
    return store


class Heard:
    def __init__(self) -> None:
        self.news: list[dict[str, Member]] = []
        self.nodes: dict[int, str] = {}
        self.changed = trio.Event()

    async def __call__(self, members: Mapping[str, Member], nodes: Mapping[int, str]) -> None:
        self.news.append(dict(members))
        self.nodes = dict(nodes)
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, *machines: str) -> None:
        with trio.fail_after(60):
            while not self.news or set(self.news[-1]) != set(machines):
                await self.changed.wait()


@asynccontextmanager
async def running(store: MemoryStore, name: str = "a") -> AsyncIterator[tuple[Membership, Heard]]:
    heard = Heard()
    times = iter(range(1, 1 << 30))
    made = Membership(store, member(name), CREATED_MS, 0.01, lambda: next(times), heard)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        yield made, heard
        nursery.cancel_scope.cancel()


async def until(condition: object) -> None:
    with trio.fail_after(60):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110 - a worker thread makes it true
            await trio.sleep(0.001)


def written(store: MemoryStore, name: str) -> Member:
    return msgspec.json.decode(store.objects[f"members/{name}"], type=Member)


async def test_a_machine_writes_itself_again_and_again_and_hears_of_others() -> None:
    store = bucket()
    async with running(store) as (_, heard):
        await until(lambda: "members/a" in store.objects and written(store, "a").at_ms > 2)
        publish(store, member("b"))
        await heard.until("a", "b")
        store.delete("members/b")
        await heard.until("a")


async def test_a_change_of_clocks_is_no_news() -> None:
    store = bucket()
    async with running(store) as (_, heard):
        await heard.until("a")
        before = len(heard.news)
        first = written(store, "a").at_ms
        await until(lambda: written(store, "a").at_ms > first + 5)
        assert len(heard.news) == before
        publish(store, member("b", "m1"))
        await heard.until("a", "b")
        publish(store, member("b", "m2"))
        await until(lambda: heard.news[-1]["b"].nonce == "m2")


async def test_while_the_bucket_is_away_what_is_known_stays() -> None:
    store = bucket()
    publish(store, member("b"))
    away = threading.Event()

    def fault(operation: str, name: str) -> StoreError | None:
        return Unreachable("no connection") if away.is_set() else None

    store.fault = fault
    async with running(store) as (_, heard):
        await heard.until("a", "b")
        away.set()
        calls = len(store.calls)
        await until(lambda: len(store.calls) > calls + 10)
        assert set(heard.news[-1]) == {"a", "b"}
        away.clear()
        store.objects.pop("members/b")
        await heard.until("a")


async def test_a_write_that_hangs_delays_no_news() -> None:
    store = bucket()
    go_on = threading.Event()

    def fault(operation: str, name: str) -> StoreError | None:
        if operation == "put" and name == "members/a":
            go_on.wait(60)
        return None

    async with running(store) as (_, heard):
        await heard.until("a")
        store.fault = fault
        publish(store, member("b"))
        await heard.until("a", "b")
        go_on.set()


async def test_nothing_is_written_into_the_bucket_of_another_service() -> None:
    for store in (bucket(CREATED_MS + 1), MemoryStore()):
        async with running(store):
            await until(lambda store=store: store.calls.count(("get", SERVICE)) > 3)
            assert not [name for name in store.objects if name.startswith("members/")]
            store.objects[SERVICE] = bucket().objects[SERVICE]
            await until(lambda store=store: "members/a" in store.objects)


async def test_a_machine_that_stops_is_a_member_no_more() -> None:
    store = bucket()
    async with running(store) as (membership, heard):
        await heard.until("a")
    await membership.withdraw()
    assert "members/a" not in store.objects


async def test_a_machine_has_its_number_before_it_is_a_member_and_hears_those_of_others() -> None:
    store = bucket()
    number(store, "b")
    async with running(store) as (_, heard):
        await heard.until("a")
        assert heard.nodes == {1: "b", 2: "a"}
        calls = [name for _, name in store.calls]
        assert calls.index("nodes/00000000000000000002") < calls.index("members/a")
        number(store, "c")
        publish(store, member("c"))
        await heard.until("a", "c")
        assert heard.nodes == {1: "b", 2: "a", 3: "c"}


async def test_while_nodes_cannot_be_read_a_key_is_revoked_all_the_same() -> None:
    store = bucket()
    publish(store, member("b"))

    def fault(operation: str, name: str) -> StoreError | None:
        return Unreachable("no connection") if operation == "list" and name == NODES else None

    async with running(store) as (_, heard):
        await heard.until("a", "b")
        store.fault = fault
        store.delete("members/b")
        await heard.until("a")
        assert heard.nodes == {1: "a"}

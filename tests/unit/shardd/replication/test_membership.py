"""Membership: a machine shows itself while it runs, hears of the others, and waits for no delayed call of the store."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count

import msgspec
import pytest
import trio
from msgspec.structs import replace

from shardd.replication.attach import FORMAT, Service, Term
from shardd.replication.members import Member, publish
from shardd.replication.membership import Membership
from shardd.replication.names import MEMBERS, NODES, SERVICE, ShardNames
from shardd.replication.nodes import Nodes
from shardd.replication.store import StoreError, Unreachable
from shardd.roster.members import RosterTiming
from shardd.roster.roster import Roster
from tests.support.bucket import MemoryStore
from tests.unit.shardd.replication.test_members import member

CREATED_MS = 77
SHARDS = 2


def bucket(created_ms: int = CREATED_MS) -> MemoryStore:
    store = MemoryStore()
    store.objects[SERVICE] = msgspec.json.encode(Service(FORMAT, created_ms, 2))
    return store


class Heard:
    def __init__(self) -> None:
        self.news: list[dict[str, Member]] = []
        self.numbers: dict[str, int] = {}
        self.changed = trio.Event()

    async def __call__(self, members: Mapping[str, Member], numbers: Mapping[str, int]) -> None:
        self.news.append(dict(members))
        self.numbers = dict(numbers)
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, *machines: str) -> None:
        with trio.fail_after(60):
            while not self.news or set(self.news[-1]) != set(machines):
                await self.changed.wait()


@asynccontextmanager
async def running(store: MemoryStore, name: str = "a", ttl_s: float = 0.3) -> AsyncIterator[tuple[Membership, Heard]]:
    heard = Heard()
    own = member(name)
    roster = Roster(own.machine, own.nonce, f"place of {name}", SHARDS, RosterTiming(ttl_s))
    made = Membership(store, own, roster, CREATED_MS, ttl_s, heard, trio.lowlevel.checkpoint)
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
        await until(lambda: "members/a" in store.objects and written(store, "a").beat > 2)
        publish(store, member("b"))
        await heard.until("a", "b")
        store.delete("members/b")
        await heard.until("a")


async def test_a_change_of_clocks_is_no_news() -> None:
    store = bucket()
    async with running(store) as (_, heard):
        await until(lambda: heard.numbers)
        before = len(heard.news)
        first = written(store, "a")
        await until(lambda: written(store, "a").beat > first.beat + 3)
        assert written(store, "a").at_ms > first.at_ms
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


async def test_the_time_in_an_object_is_after_the_write_before_it_also_if_that_was_given_up() -> None:
    store = bucket()
    hangs, go_on = threading.Event(), threading.Event()

    def fault(operation: str, name: str) -> StoreError | None:
        if operation == "put" and name == "members/a":
            hangs.set()
            go_on.wait(60)
        return None

    async with running(store) as (membership, heard):
        await heard.until("a")
        store.fault = fault
        await until(hangs.is_set)
        before = written(store, "a").beat
        await until(lambda: membership._writes.statistics().tasks_waiting)
        at_s = time.time()
        await until(lambda: time.time() > at_s + 0.005)
        ended_ms = round(1000 * time.time())
        go_on.set()
        await until(lambda: written(store, "a").beat > before + 1)
        assert written(store, "a").at_ms >= ended_ms


async def test_a_look_may_take_longer_than_a_third_of_the_time_to_live() -> None:
    """It is several requests. Where each takes long, the machine would see nothing, and not show itself any more."""
    store = bucket()
    never = threading.Event()

    def fault(operation: str, name: str) -> StoreError | None:
        if (operation, name) == ("list", MEMBERS):
            never.wait(0.3)
        return None

    store.fault = fault
    async with running(store, ttl_s=0.6) as (_, heard):
        await heard.until("a")
        await until(lambda: written(store, "a").beat > 2)


async def test_members_count_as_reported_when_they_were() -> None:
    """A look may end while it reports them."""
    store = bucket()
    async with running(store) as (membership, heard):
        await heard.until("a")

        beats = count(1)

        async def slowly(members: Mapping[str, Member], numbers: Mapping[str, int]) -> None:
            publish(store, replace(member("b"), beat=next(beats)))  # on a busy machine, it may count as lost meanwhile
            await trio.sleep(0.25)  # longer than a look may take
            await heard(members, numbers)

        membership._heard = slowly
        publish(store, replace(member("b"), beat=next(beats)))
        await heard.until("a", "b")


async def test_nothing_is_written_into_the_bucket_of_another_service() -> None:
    for store in (bucket(CREATED_MS + 1), MemoryStore()):
        async with running(store):
            await until(lambda store=store: store.calls.count(("get", SERVICE)) > 3)
            assert not [name for name in store.objects if name.startswith("members/")]
            store.objects[SERVICE] = bucket().objects[SERVICE]
            await until(lambda store=store: "members/a" in store.objects)


async def test_the_next_term_of_a_shard_without_a_process_here_is_seen_between_two_looks() -> None:
    store, names = bucket(), [ShardNames(shard) for shard in range(SHARDS)]
    async with running(store, ttl_s=10_000) as (membership, _):
        membership.roster.runs = {1}
        await until(lambda: "members/a" in store.objects)
        for number in (1, 2):
            term = msgspec.json.encode(Term(number, f"n{number}", "host", 0, member="b"))
            store.objects[names[0].term(number)] = term
            await until(lambda number=number: membership.roster.view.holders[0].term == number)
        assert not [name for _, name in store.calls if name == names[1].term(1)], "its process sees to that"


async def test_the_next_term_of_a_shard_that_is_moved_is_asked_for_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the process that has given it away still runs."""
    monkeypatch.setattr("shardd.replication.membership.TERMS_S", 10_000)
    store, names = bucket(), ShardNames(1)
    async with running(store, ttl_s=10_000) as (membership, _):
        membership.roster.runs = {0, 1}
        await until(lambda: "members/a" in store.objects)
        monkeypatch.setattr(Roster, "moving", {1})
        store.objects[names.term(1)] = msgspec.json.encode(Term(1, "n1", "host", 0, member="b"))
        await until(lambda: membership.roster.view.holders[1].term == 1)


async def test_a_machine_that_stops_is_a_member_no_more() -> None:
    store = bucket()
    async with running(store) as (membership, heard):
        await heard.until("a")
    await membership.withdraw()
    assert "members/a" not in store.objects


async def test_a_machine_gets_a_number_and_hears_those_of_others() -> None:
    store = bucket()
    Nodes(store).number("b")
    async with running(store) as (_, heard):
        await until(lambda: heard.numbers == {"b": 1, "a": 2})
        publish(store, member("c"))
        await heard.until("a", "c")
        Nodes(store).number("c")
        await until(lambda: heard.numbers == {"b": 1, "a": 2, "c": 3})
        listed = store.calls.count(("list", NODES))
        first = written(store, "a").at_ms
        await until(lambda: written(store, "a").at_ms > first + 5)
        assert store.calls.count(("list", NODES)) <= listed + 1, "numbers are read although all are known"


@pytest.mark.parametrize("operation", ["list", "get", "create"])
async def test_numbers_that_hang_delay_no_news_of_members(operation: str) -> None:
    store = bucket()
    Nodes(store).number("b")
    go_on = threading.Event()

    def fault(asked: str, name: str) -> StoreError | None:
        if asked == operation and name.startswith(NODES):
            go_on.wait(60)
        return None

    store.fault = fault
    async with running(store) as (_, heard):
        await heard.until("a")
        publish(store, member("b"))
        await heard.until("a", "b")
        store.delete("members/b")
        await heard.until("a")
        assert heard.numbers == {}
        go_on.set()
        await until(lambda: heard.numbers == {"b": 1, "a": 2})

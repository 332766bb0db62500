"""Settings that all machines of a service have alike: a machine with others does not start, and takes nothing over."""

from __future__ import annotations

import re
import threading
from collections.abc import Container
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import trio

from proto.model.replication import Replication
from shardd.replication import parts, role
from shardd.replication.attach import (
    Mark,
    Mismatch,
    Service,
    Settings,
    Term,
    TermError,
    read_mark,
    read_term,
    write_mark,
)
from shardd.replication.messages import CreateTerm, Look, Request, Result
from shardd.replication.names import SERVICE, ShardNames
from shardd.replication.objects import Objects
from tests.support.bucket import MemoryStore
from tests.support.fault_disk import FaultDisk
from tests.support.roles import Machine, Pair
from tests.support.shipped import TIMING

NAMES = ShardNames(0)
TTL_MS = 10_000
OTHERS = {
    "mode": (Replication.ASYNC, TTL_MS, False, r"TOPICS_REPLICATION=sync, this machine TOPICS_REPLICATION=async"),
    "time to live": (Replication.SYNC, 2000, False, r"TOPICS_TERM_TTL_MS=10000, this machine TOPICS_TERM_TTL_MS=2000"),
    "encryption": (
        Replication.SYNC,
        TTL_MS,
        True,
        r"TOPICS_BUCKET_ENCRYPT=false, this machine TOPICS_BUCKET_ENCRYPT=true",
    ),
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role, "TURN_S", 0.005)
    monkeypatch.setattr(role, "RETRY_S", 0.005)


async def refused(machine: Machine) -> str:
    with trio.fail_after(60):
        await machine.role.over.wait()
    assert isinstance(machine.role.error, Mismatch)
    return str(machine.role.error)


@pytest.mark.parametrize("other", OTHERS)
async def test_a_machine_with_another_setting_does_not_start(tmp_path: Path, other: str) -> None:
    replication, ttl_ms, encrypt, sentence = OTHERS[other]
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", ttl_ms=TTL_MS, encrypt=False)
        await one.open()
        await one.write("a", 1)
        two = pair.machine("two", replication=replication, ttl_ms=ttl_ms, encrypt=encrypt)
        two.role.take_over()
        found = await refused(two)
        assert re.search(sentence, found)
        assert "term 1 of http://one" in found
        assert one.role.serving()
        assert [term for term, kind in pair.kinds() if kind == parts.FENCE] == [1]
        nursery.cancel_scope.cancel()


async def test_a_holder_that_waits_for_no_bucket_is_not_replaced_by_a_machine_that_does(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", replication=Replication.ASYNC, ttl_ms=TTL_MS)
        await one.open()
        two = pair.machine("two", ttl_ms=TTL_MS)
        assert "TOPICS_REPLICATION=async" in await refused(two)
        nursery.cancel_scope.cancel()


async def test_a_setting_is_changed_behind_the_end_of_a_term(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", replication=Replication.ASYNC, ttl_ms=TTL_MS)
        await one.open()
        await one.write("a", 1)
        other = pair.machine("other", replication=Replication.ASYNC, ttl_ms=TTL_MS)
        other.stop()
        await one.shipper.drain()
        two = pair.machine("two", ttl_ms=2000)
        await two.open()
        assert two.contents() == {"a": [1]}
        service = msgspec.json.decode(pair.store.objects[SERVICE], type=Service)
        assert Settings.of(service) == Settings("sync", 2000, 2)
        other.start()
        assert "TOPICS_REPLICATION=sync, this machine TOPICS_REPLICATION=async" in await refused(other)
        nursery.cancel_scope.cancel()


async def test_a_standby_that_runs_ends_when_a_term_has_other_settings(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", ttl_ms=TTL_MS)
        await one.open()
        two = pair.machine("two", ttl_ms=TTL_MS)
        await pair.until(lambda: two.role.holder)
        made = Term(2, "of another", "three", 0, "http://three", "async", TTL_MS, 2)
        pair.store.objects[NAMES.term(2)] = msgspec.json.encode(made)
        pair.time.now += 4
        assert "term 2 of http://three has TOPICS_REPLICATION=async" in await refused(two)
        nursery.cancel_scope.cancel()


async def test_a_comparison_of_settings_that_takes_too_long_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", ttl_ms=TTL_MS)
        await one.open()
        two = pair.machine("two", replication=Replication.ASYNC, ttl_ms=TTL_MS)
        two.role.newest.timing = msgspec.structs.replace(TIMING, time_to_live=0.5)  # so long it waits for an answer
        check, begun, ended, looked = two.role.objects.check_settings, trio.Event(), threading.Event(), trio.Event()

        def slow(own: Container[str]) -> None:
            if begun.is_set():
                check(own)
            else:
                trio.from_thread.run_sync(begun.set)
                ended.wait(60)

        async def carried(request: Request) -> None:
            await carry(request)
            if begun.is_set():
                looked.set()

        carry = two.role._carry
        monkeypatch.setattr(two.role.objects, "check_settings", slow)
        monkeypatch.setattr(two.role, "_carry", carried)
        with trio.fail_after(60):
            await begun.wait()
            two.role.take_over()
            await looked.wait()
        ended.set()
        assert two.role.replica is not None
        assert two.role.replica.newest.seen is None, "nothing is known of a term that may have other settings"
        assert "TOPICS_REPLICATION=sync, this machine TOPICS_REPLICATION=async" in await refused(two)
        assert NAMES.term(2) not in pair.store.objects
        nursery.cancel_scope.cancel()


async def test_a_machine_changes_its_own_setting_at_a_restart(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", replication=Replication.ASYNC, ttl_ms=TTL_MS)
        await one.open()
        await one.write("a", 1)
        one.stop()
        one.replication, one.settings = Replication.SYNC, Settings("sync", TTL_MS, 2)
        one.start()
        await one.open()
        assert one.contents() == {"a": [1]}
        nursery.cancel_scope.cancel()


async def test_a_bucket_of_an_earlier_release_gets_the_settings_of_its_first_holder(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one")
        await one.open()
        await one.write("a", 1)
        one.stop()
        assert b"replication" not in pair.store.objects[SERVICE] + pair.store.objects[NAMES.term(1)]
        two = pair.machine("two", ttl_ms=TTL_MS)
        await pair.silence()
        await pair.silence()
        await two.open()
        service = msgspec.json.decode(pair.store.objects[SERVICE], type=Service)
        term = msgspec.json.decode(pair.store.objects[NAMES.term(2)], type=Term)
        assert Settings.of(service) == Settings.of(term) == Settings("sync", TTL_MS, 2)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("field", ["replication", "ttl_ms", "shards", "encrypt"])
def test_before_any_term_the_settings_are_those_of_the_service(field: str) -> None:
    store = MemoryStore()
    ours = Settings("sync", TTL_MS, 2, True)
    theirs = ours._replace(**{field: {"replication": "async", "encrypt": False}.get(field, 7)})
    service = Service(1, 0, theirs.shards, theirs.replication, theirs.ttl_ms, theirs.encrypt)
    store.objects[SERVICE] = msgspec.json.encode(service)
    value = str(theirs._asdict()[field]).lower()
    with pytest.raises(Mismatch, match=rf"service.json has TOPICS_\w+={value}, this machine"):
        Objects(store, 0, Term(0, "", "", 0, "", *ours)).check_settings(())


def test_a_bucket_that_says_nothing_of_encryption_is_used_with_either_value() -> None:
    store = MemoryStore()
    store.objects[SERVICE] = b'{"format":1,"service":0,"shards":2,"replication":"sync","ttl_ms":10000}'
    for encrypt in (False, True):
        Objects(store, 0, Term(0, "", "", 0, "", "sync", TTL_MS, 2, encrypt)).check_settings(())


def test_a_term_of_an_earlier_release_says_nothing_of_where_its_holder_hears_others() -> None:
    found = read_term(b'{"term":3,"nonce":"aa","machine":"one","made_ms":1,"replication":"sync"}', 3)
    assert (found.endpoint, found.key, found.shown) == ("", "", "one")


def test_a_mark_of_which_the_disk_takes_a_part_leaves_the_one_before() -> None:
    disk, path = FaultDisk(), Path("/shard-00")
    disk.make_dir(path)
    mark = Mark("memory://", "lineage", part=3, frame_no=8)
    write_mark(disk, path, mark)
    disk.faults[len(disk.calls) + 1] = 10
    with pytest.raises(OSError, match="did not take all bytes"):
        write_mark(disk, path, replace(mark, part=9))
    assert disk.calls[-1][0] == "write"
    assert read_mark(disk, path) == mark


def test_a_term_has_nothing_new_if_its_holder_hears_no_other_machine() -> None:
    """Earlier releases ignore what they do not know."""
    made = Term(3, "aa", "one", 1, "http://one", "sync", TTL_MS, 2)
    assert set(msgspec.json.decode(msgspec.json.encode(made))) <= {
        "term", "nonce", "machine", "made_ms", "address", "replication", "ttl_ms", "shards"
    }  # fmt: skip


@pytest.mark.parametrize("number", ["1" + "0" * 400, "9007199254740992", "-1"])
@pytest.mark.parametrize("field", ["made_ms", "ttl_ms"])
def test_a_term_with_a_number_that_is_no_time_is_damaged(field: str, number: str) -> None:
    numbers = {"made_ms": "1"} | {field: number}
    data = '{"term":3,"nonce":"aa","machine":"one",' + ",".join(f'"{k}":{v}' for k, v in numbers.items()) + "}"
    with pytest.raises(TermError, match="damaged"):
        read_term(data.encode(), 3)


def claimed(store: MemoryStore, term: int, member: str, made_ms: int) -> Term:
    """A term, created by a machine after a look."""
    own = Term(0, f"{term:032x}", "host", 0, f"http://{member}", member=member)
    objects = Objects(store, 0, own, lambda: made_ms)
    objects.carry(Look())
    assert objects.carry(CreateTerm(term)) is Result.DONE
    return read_term(store.objects[ShardNames(0).term(term)], term)


def test_each_term_has_the_machines_that_held_the_shard_before_it() -> None:
    store = MemoryStore()
    assert claimed(store, 1, "a", 10).leaders == [(0, "a")]
    assert claimed(store, 2, "a", 20).leaders == [(0, "a")]
    assert claimed(store, 3, "b", 30).leaders == [(0, "a"), (30, "b")]
    found = claimed(store, 4, "a", 40)
    assert (found.member, found.leaders) == ("a", [(0, "a"), (30, "b"), (40, "a")])


def test_the_leaders_before_a_term_of_an_earlier_release_or_a_damaged_one_are_not_known() -> None:
    store = MemoryStore()
    claimed(store, 1, "a", 10)
    old = msgspec.json.encode(Term(2, "aa", "one", 15))
    for data in (old, b"{torn"):
        store.objects[ShardNames(0).term(2)] = data
        assert claimed(store, 3, "b", 30).leaders == [(0, ""), (30, "b")]
        del store.objects[ShardNames(0).term(3)]


def test_a_machine_without_a_name_tells_no_leaders() -> None:
    store = MemoryStore()
    claimed(store, 1, "a", 10)
    assert claimed(store, 2, "", 20).leaders == []

"""Members: which keys are heard follows the bucket, and one damaged member changes nothing for the others."""

from __future__ import annotations

import msgspec
import pytest

from shardd.replication import members
from shardd.replication.members import Member, keys, publish, read_all, withdraw
from shardd.replication.store import StoreError, Unreachable
from tests.support.bucket import MemoryStore


def member(machine: str, nonce: str = "", at_ms: int = 0) -> Member:
    nonce = nonce or f"m{machine}"
    return Member(machine, nonce, f"http://{machine}", f"key of {nonce}", "tcp://host:1", at_ms)


def test_what_a_machine_publishes_is_read_by_the_others() -> None:
    store = MemoryStore()
    for name in ("a", "b"):
        publish(store, member(name))
    assert read_all(store, {}) == {"a": member("a"), "b": member("b")}
    assert keys(read_all(store, {})) == {"key of ma": "ma", "key of mb": "mb"}


def test_a_restart_replaces_the_key_and_a_deletion_revokes_it() -> None:
    store = MemoryStore()
    publish(store, member("a", "m1"))
    publish(store, member("a", "m2"))
    assert keys(read_all(store, {})) == {"key of m2": "m2"}
    store.delete("members/a")
    assert read_all(store, {"a": member("a", "m2")}) == {}


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b'{"machine":1}', b'{"machine":"b"}', b"[" * 10_000])
def test_a_damaged_member_is_as_it_was_and_the_others_count(data: bytes) -> None:
    store = MemoryStore()
    publish(store, member("a"))
    publish(store, member("b"))
    known = read_all(store, {})
    store.objects["members/a"] = data
    assert read_all(store, known) == known
    assert read_all(store, {}) == {"b": member("b")}


def test_a_member_that_cannot_be_read_now_is_as_it_was() -> None:
    store = MemoryStore()
    publish(store, member("a"))
    known = read_all(store, {})
    publish(store, member("b"))

    def fault(operation: str, name: str) -> StoreError | None:
        return Unreachable("no connection") if name == "members/a" and operation == "get" else None

    store.fault = fault
    assert read_all(store, known) == {"a": member("a"), "b": member("b")}


def test_a_member_under_the_name_of_another_machine_does_not_count() -> None:
    store = MemoryStore()
    store.objects["members/a"] = msgspec.json.encode(member("b"))
    assert read_all(store, {}) == {}


def test_members_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MOST", 3)
    store = MemoryStore()
    for name in "edcba":
        publish(store, member(name))
    assert list(read_all(store, {})) == ["a", "b", "c"]


def test_fields_of_later_releases_are_ignored() -> None:
    store = MemoryStore()
    store.objects["members/a"] = msgspec.json.encode({**msgspec.to_builtins(member("a")), "cores": 8})
    assert read_all(store, {}) == {"a": member("a")}


def test_a_machine_withdraws_its_own_member_only() -> None:
    store = MemoryStore()
    publish(store, member("a", "m2"))
    withdraw(store, member("a", "m1"))
    assert read_all(store, {}) == {"a": member("a", "m2")}
    withdraw(store, member("a", "m2"))
    withdraw(store, member("a", "m2"))
    assert not store.objects

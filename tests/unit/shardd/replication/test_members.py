"""Members: which keys are heard follows the bucket, and one damaged member changes nothing for the others."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from shardd.replication import members
from shardd.replication.members import KEPT, Member, create_move, keys, moves_from, publish, read_all, withdraw
from shardd.replication.names import move_name
from shardd.replication.store import StoreError, Unreachable
from shardd.roster.moves import Move, Moves
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


HUGE = b"1" + b"0" * 400


@pytest.mark.parametrize("field", [b"ttl_ms", b"at_ms", b"beat"])
@pytest.mark.parametrize("number", [HUGE, b"9007199254740992", b"-1"])
def test_a_member_with_a_number_that_is_no_time_is_damaged(field: bytes, number: bytes) -> None:
    store = MemoryStore()
    publish(store, member("b"))
    store.objects["members/a"] = b'{"machine":"a","nonce":"n","%s":%s}' % (field, number)
    assert read_all(store, {}) == {"b": member("b")}


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


MOVE = Move(1, 3, 7, "a", "ma", "b")


def test_an_entry_of_a_move_is_created_once_and_read_from_its_number_on() -> None:
    store = MemoryStore()
    create_move(store, MOVE)
    create_move(store, replace(MOVE, target="c"))
    create_move(store, replace(MOVE, number=2))
    assert moves_from(store, 0, 4) == moves_from(store, 1, 4) == [MOVE, replace(MOVE, number=2)]
    assert moves_from(store, 2, 4) == [replace(MOVE, number=2)]


def numbers(store: MemoryStore) -> list[int]:
    return [move.number for move in moves_from(store, 0, 4)]


def test_the_last_entries_of_moves_are_kept() -> None:
    store = MemoryStore()
    for number in range(1, 3 * KEPT):
        create_move(store, replace(MOVE, number=number))
        assert len(store.objects) == min(number, KEPT)
    assert numbers(store) == [*range(2 * KEPT, 3 * KEPT)]


def test_a_roster_that_starts_reads_the_last_entries_of_many() -> None:
    store = MemoryStore()
    for number in range(1, 3 * KEPT):  # each creator died before it removed another one
        store.create(move_name(number), msgspec.json.encode(replace(MOVE, number=number)))
    assert numbers(store) == [*range(2 * KEPT, 3 * KEPT)]


def test_a_creation_in_a_name_that_was_freed_is_not_the_last_and_removes_nothing_later() -> None:
    """1. A machine stops before it creates an entry. 2. Others create that and more; it is removed. 3. It wakes."""
    store = MemoryStore()
    for number in range(1, KEPT + 9):
        create_move(store, replace(MOVE, number=number))
    late = replace(MOVE, number=8, source="late")
    assert numbers(store) == [*range(9, KEPT + 9)]
    create_move(store, late)
    assert numbers(store) == [*range(9, KEPT + 9)], "of those that are there, the last ones are read"
    for known in (0, 7, 8, KEPT + 8):
        moves = Moves(void=60)
        moves.looked(moves_from(store, known, 4), 0, 0)
        assert moves.next_number == KEPT + 9


def test_an_entry_that_is_removed_while_it_is_read_leaves_the_one_before_it_not_the_last() -> None:
    """Else the late entry 8 would be its creator's."""
    store = MemoryStore()
    for number in (8, 9):
        create_move(store, replace(MOVE, number=number))
    read = store.get

    def slow(name: str) -> bytes:
        store.delete(move_name(9))
        return read(name)

    store.get = slow  # type: ignore[method-assign]
    moves = Moves(void=60)
    moves.looked(moves_from(store, 0, 4), 0, 0)
    assert (moves.next_number, moves.pending(lambda shard: 0)) == (10, None)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b'{"number":1}', b"[" * 10_000])
def test_a_damaged_entry_takes_its_number_and_moves_nothing(data: bytes) -> None:
    store = MemoryStore()
    create_move(store, MOVE)
    for strange in (data, msgspec.json.encode(replace(MOVE, shard=4)), msgspec.json.encode(replace(MOVE, number=2))):
        store.objects["moves/00000000000000000001"] = strange
        (found,) = moves_from(store, 0, 4)
        moves = Moves(void=60)
        moves.looked([found], 0, 0)
        assert (moves.next_number, moves.pending(lambda shard: 0)) == (2, None)

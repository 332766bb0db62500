"""Nodes: a machine keeps its number, and no two machines have the same one, whichever comes first."""

from __future__ import annotations

import random

import pytest

from shardd.replication import nodes
from shardd.replication.nodes import Nodes
from shardd.replication.store import StoreError, UnknownOutcome, Unreachable
from tests.support.bucket import MemoryStore


def number(store: MemoryStore, machine: str) -> int:
    """That a machine finds at a start."""
    return Nodes(store).number(machine)


def read(store: MemoryStore) -> dict[int, str]:
    found = Nodes(store)
    found.read()
    return found.machines


def test_machines_are_numbered_from_one_and_keep_their_numbers() -> None:
    store = MemoryStore()
    assert [number(store, name) for name in "abcab"] == [1, 2, 3, 1, 2]
    assert read(store) == {1: "a", 2: "b", 3: "c"}


def test_of_two_machines_that_want_a_number_the_second_gets_the_next_one() -> None:
    store, other = MemoryStore(), MemoryStore()
    other.objects = store.objects

    def fault(operation: str, name: str) -> StoreError | None:
        if operation == "create" and not store.objects:
            number(other, "b")
        return None

    store.fault = fault
    assert number(store, "a") == 2
    assert read(store) == {1: "b", 2: "a"}


@pytest.mark.parametrize("seed", range(20))
def test_a_creation_without_an_answer_wastes_no_number_and_gives_none_twice(seed: int) -> None:
    draw = random.Random(seed)
    store = MemoryStore()

    def fault(operation: str, name: str) -> StoreError | None:
        if draw.random() < 0.4:
            return UnknownOutcome("no answer") if draw.random() < 0.5 else Unreachable("no connection")
        return None

    store.fault = fault
    found: dict[str, int] = {}
    while len(found) < 5:
        name = draw.choice("abcde")
        try:
            got = number(store, name)
        except StoreError:
            continue
        assert found.setdefault(name, got) == got
    store.fault = lambda operation, name: None
    assert read(store) == {got: name for name, got in found.items()}
    assert sorted(found.values()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b'{"machine":1}', b"[" * 10_000])
def test_a_damaged_node_keeps_its_number_from_others(data: bytes) -> None:
    store = MemoryStore()
    number(store, "a")
    number(store, "b")
    (first, _) = sorted(store.objects)
    store.objects[first] = data
    assert read(store) == {1: "", 2: "b"}
    assert [number(store, name) for name in "ab"] == [3, 2]


def test_what_is_known_is_not_read_again_also_if_the_rest_could_not_be_read() -> None:
    store = MemoryStore()
    for name in "abc":
        number(store, name)
    away = True

    def fault(operation: str, name: str) -> StoreError | None:
        return Unreachable("no connection") if away and operation == "get" and name.endswith("3") else None

    store.fault = fault
    found = Nodes(store)
    with pytest.raises(Unreachable):
        found.read()
    away = False
    store.calls.clear()
    found.read()
    assert found.numbers() == {"a": 1, "b": 2, "c": 3}
    assert [operation for operation, _ in store.calls] == ["list", "get"]


def test_only_the_newest_numbers_are_read_and_none_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "MOST", 3)
    store = MemoryStore()
    assert [number(store, name) for name in "abcde"] == [1, 2, 3, 4, 5]
    assert read(store) == {3: "c", 4: "d", 5: "e"}
    assert [number(store, name) for name in "dea"] == [4, 5, 6]

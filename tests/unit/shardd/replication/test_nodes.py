"""Nodes: a machine keeps its number, and no two machines have the same one, whichever comes first."""

from __future__ import annotations

import random

import pytest

from shardd.replication.nodes import number, read_nodes
from shardd.replication.store import StoreError, UnknownOutcome, Unreachable
from tests.support.bucket import MemoryStore


def test_machines_are_numbered_from_one_and_keep_their_numbers() -> None:
    store = MemoryStore()
    assert [number(store, name) for name in "abcab"] == [1, 2, 3, 1, 2]
    assert read_nodes(store, {}) == {1: "a", 2: "b", 3: "c"}


def test_of_two_machines_that_want_a_number_the_second_gets_the_next_one() -> None:
    store, other = MemoryStore(), MemoryStore()
    other.objects = store.objects

    def fault(operation: str, name: str) -> StoreError | None:
        if operation == "create" and not store.objects:
            number(other, "b")
        return None

    store.fault = fault
    assert number(store, "a") == 2
    assert read_nodes(store, {}) == {1: "b", 2: "a"}


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
    assert read_nodes(store, {}) == {got: name for name, got in found.items()}
    assert sorted(found.values()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b'{"machine":1}', b"[" * 10_000])
def test_a_damaged_node_keeps_its_number_from_others(data: bytes) -> None:
    store = MemoryStore()
    number(store, "a")
    number(store, "b")
    (first, _) = sorted(store.objects)
    store.objects[first] = data
    assert read_nodes(store, {}) == {1: "", 2: "b"}
    assert read_nodes(store, {1: "a"}) == {1: "a", 2: "b"}
    assert [number(store, name) for name in "ab"] == [3, 2]


def test_what_is_known_is_not_read_again() -> None:
    store = MemoryStore()
    number(store, "a")
    store.calls.clear()
    assert read_nodes(store, {1: "a"}) == {1: "a"}
    assert [operation for operation, _ in store.calls] == ["list"]

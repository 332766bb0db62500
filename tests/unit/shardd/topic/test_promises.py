"""Promises: what topics may come to hold stays booked while any of their records is staged."""

from __future__ import annotations

import random

import pytest

from shardd.topic.promises import Promise, Promises


def test_what_is_staged_is_booked_until_it_is_visible() -> None:
    promises = Promises()
    promise = Promise(promises, held=100)
    promise.add(30)
    assert (promises.booked, promise.most) == (30, 130)
    promise.changed(30)
    assert promises.booked == 0, "what is visible is no longer promised"
    assert promise.end(130, 0) is False
    assert (promises.booked, promise.most) == (0, 130)


def test_what_is_undone_is_no_longer_booked() -> None:
    promises = Promises()
    promise = Promise(promises, held=100)
    promise.add(30)
    assert promise.end(100, 0) is False
    assert (promises.booked, promise.most) == (0, 100)


def test_the_promise_sinks_to_what_those_that_are_left_may_add() -> None:
    promises = Promises()
    promise = Promise(promises, held=100)
    promise.add(30)
    promise.add(50)
    assert promise.end(100, 50) is True
    assert (promises.booked, promise.most) == (50, 150)


def test_what_evicts_as_much_as_it_brings_needs_nothing() -> None:
    promises = Promises()
    promise = Promise(promises, held=100)
    promise.add(0)
    assert promises.booked == 0
    promise.changed(0)
    assert promise.end(100, 0) is False
    assert promises.booked == 0


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_booked_when_nothing_is_staged(seed: int) -> None:
    """A topic that keeps all it is given, of writes that commit or are undone in any order."""
    rng = random.Random(seed)
    promises = Promises()
    topics: list[tuple[Promise, list[int]]] = [(Promise(promises, 0), []) for _ in range(3)]
    held = [0, 0, 0]
    for step in range(200):
        at = rng.randrange(3)
        promise, staged = topics[at]
        if step < 150 and rng.random() < 0.6:
            size = rng.randrange(1, 50)
            promise.add(size)
            staged.append(size)
        elif staged:
            size = staged.pop(0)
            if rng.random() < 0.8:
                promise.changed(size)
                held[at] += size
            left = promise.end(held[at], sum(staged))
            assert left is bool(staged)
        assert promises.booked == sum(max(each.most - size, 0) for (each, _), size in zip(topics, held, strict=True))
    for at, (promise, staged) in enumerate(topics):
        while staged:
            staged.pop(0)
            promise.end(held[at], sum(staged))
    assert promises.booked == 0

"""Claims about name lists: they stay what the shard has up to their bound, and are seldom asked for again."""

from __future__ import annotations

import random

import pytest

from gateway.streams.name_list import NameList, asked

MOST = 4


def test_a_list_that_is_whole_follows_every_change() -> None:
    known = NameList({"a1": 1, "a2": 2}, MOST)
    assert known.change("a3", 3) == []
    assert known.change("a1", 0) == ["a1"]
    assert known.change("a9", 0) == []
    assert known.epochs == {"a2": 2, "a3": 3}
    for name in ("a2", "a3"):
        known.change(name, 0)
    assert not known.short, "there is nothing behind it"


@pytest.mark.parametrize("seed", range(5))
def test_a_list_is_always_the_beginning_of_what_there_is(seed: int) -> None:
    rng = random.Random(seed)
    there: dict[str, int] = {f"a{n:03}": n + 1 for n in range(0, 90, 3)}

    def first() -> NameList:
        return NameList(dict(sorted(there.items())[: asked(MOST)]), MOST)

    known, lists, changes = first(), 1, 3000
    for epoch in range(100, 100 + changes):
        name = f"a{rng.randrange(40):03}"
        epoch = epoch if rng.random() < 0.5 else 0
        there.pop(name, None)
        if epoch:
            there[name] = epoch
        known.change(name, epoch)
        if known.short:
            known, lists = first(), lists + 1
        assert len(known.epochs) < 3 * MOST
        assert list(known.epochs.items() - there.items()) == []
        assert len(known.epochs) > MOST or known.epochs == there
        assert sorted(known.epochs) == sorted(there)[: len(known.epochs)]
    assert lists <= changes / MOST + 1, "a list is asked for again after as many changes as a stream has topics"

"""The tag index: which batches may have a tag, and which tags begin with a prefix."""

from __future__ import annotations

import random

import pytest

from proto.format.columns import Columns, optional, plain
from proto.format.frame import decode_batch, encode_batch
from shardd.topic import tag_index
from shardd.topic.tag_index import TagIndex, carriers


def columns(*tags: str | None) -> Columns:
    """A batch with these tags, as it is read back."""
    column = optional([None if tag is None else tag.encode() for tag in tags])
    batch = Columns(len(tags), 1, plain([b"1"] * len(tags)), column, None, None, b"")
    return decode_batch(encode_batch(batch, 1, 1).head)


def test_a_tag_is_found_in_each_batch_that_has_it_and_in_no_other() -> None:
    index = TagIndex()
    index.add(1, columns("a", "b", None), 0, None)
    index.add(4, columns("b", "c"), 0, None)
    index.add(6, columns("c", "c"), 0, None)
    assert index.upto == 7
    assert index.places(index.equal(b"a")) == [1]
    assert index.places(index.equal(b"b")) == [1, 4]
    assert index.places(index.equal(b"c")) == [4, 6]
    assert index.equal(b"none") == set()
    assert index.entries == 5


def test_only_records_that_are_asked_for_are_indexed() -> None:
    index = TagIndex()
    index.add(1, columns("a", "b", "c"), 1, None)
    index.add(4, columns("d", "e"), 0, b"\0\1")
    index.add(6, columns("f", "g"), 0, b"\0\0")
    assert [index.equal(tag) != set() for tag in (b"a", b"b", b"c", b"d", b"e", b"f")] == [
        False,
        True,
        True,
        False,
        True,
        False,
    ]
    assert index.places({b"b"}) == [2]


def test_records_without_tags_move_the_index_on() -> None:
    index = TagIndex()
    index.add(1, columns(None, None), 0, None)
    assert (index.upto, index.entries) == (2, 0)


@pytest.mark.parametrize("run", [1, 3, 1000])
def test_prefixes_find_tags_that_came_before_and_after_the_first_search(
    run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tag_index, "RUN", run)
    index = TagIndex()
    rng = random.Random(run)
    known: set[bytes] = set()
    for first in range(1, 200, 4):
        tags = ["".join(rng.choices("ab", k=rng.randrange(1, 5))) for _ in range(4)]
        index.add(first, columns(*tags), 0, None)
        known |= {tag.encode() for tag in tags}
        if first % 20 == 1:
            for prefix in (b"", b"a", b"ab", b"bb", b"aaaaa"):
                assert index.starting_with(prefix) == {tag for tag in known if tag.startswith(prefix)}
            assert index.unsorted == 0


def test_a_tag_that_is_forgotten_is_not_found_and_may_come_again() -> None:
    index = TagIndex()
    index.add(1, columns("a", "b"), 0, None)
    index.add(3, columns("a", "a"), 0, None)
    assert index.starting_with(b"") == {b"a", b"b"}
    index.forget({b"a"})
    assert index.entries == 1
    assert (index.equal(b"a"), index.starting_with(b"")) == (set(), {b"b"})
    index.add(5, columns("a", "c"), 0, None)
    assert index.places(index.equal(b"a")) == [5]
    assert index.starting_with(b"") == {b"a", b"b", b"c"}


def test_tags_that_came_and_were_forgotten_since_a_search_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tag_index, "RUN", 10)
    index = TagIndex()
    index.add(1, columns("a"), 0, None)
    assert index.starting_with(b"") == {b"a"}
    for seq in range(2, 1002):
        index.add(seq, columns(f"t{seq}"), 0, None)
        index.forget({f"t{seq}".encode()})
        assert index.unsorted < 50
    index.add(1002, columns("b"), 0, None)
    assert index.starting_with(b"") == {b"a", b"b"}


def test_carriers_are_the_places_in_a_batch() -> None:
    batch = columns("a", None, "b", "a")
    assert carriers(batch, {b"a"}, 0, 4) == [0, 3]
    assert carriers(batch, {b"a"}, 1, 3) == []
    assert carriers(batch, {b"a", b"b"}, 1, 4) == [2, 3]
    assert carriers(batch, set(), 0, 4) == []
    same = columns("a", "a", "a")
    assert carriers(same, {b"a"}, 1, 3) == [1, 2]
    assert carriers(same, {b"b"}, 0, 3) == []
    assert carriers(columns(None, None), {b"a"}, 0, 2) == []

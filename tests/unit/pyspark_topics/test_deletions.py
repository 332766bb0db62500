"""Deletions of a topic, evaluated for many records at once."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pyarrow as pa
import pytest

from pyspark_topics.deletions import EQUAL, PREFIX, Deletions

TAGS = (b"a", b"ab", None, b"a", b"b")


def dead(deletions: Deletions, tags: Sequence[bytes | None] = TAGS, first: int = 1) -> list[bool]:
    seqs = pa.array(range(first, first + len(tags)), pa.int64())
    found: list[bool] = deletions.dead(pa.array(tags, pa.binary()), seqs).to_pylist()
    return found


def test_without_deletions_all_live() -> None:
    assert not Deletions()
    assert dead(Deletions()) == [False] * 5


def test_a_tag_is_deleted_before_its_seq_and_records_without_one_never_are() -> None:
    deletions = Deletions()
    deletions.add(EQUAL, b"a", 4)
    assert dead(deletions) == [True, False, False, False, False]
    deletions.add(EQUAL, b"a", 3)
    assert dead(deletions) == [True, False, False, False, False], "an earlier end takes nothing back"
    deletions.add(EQUAL, b"a", 5)
    assert dead(deletions) == [True, False, False, True, False]


def test_a_prefix_takes_all_tags_that_begin_so() -> None:
    deletions = Deletions()
    deletions.add(PREFIX, b"a", 3)
    assert dead(deletions) == [True, True, False, False, False]
    deletions.add(PREFIX, b"", 10)
    assert dead(deletions) == [True, True, False, True, True]


def test_a_seq_is_deleted_whatever_its_tag() -> None:
    assert dead(Deletions(seqs=array("q", (3, 5, 99)))) == [False, False, True, False, True]


def test_what_cannot_concern_later_records_is_left_out() -> None:
    deletions = Deletions({b"a": 4, b"b": 9}, {b"x": 3, b"y": 20}, array("q", (2, 12)))
    after = deletions.after(4)
    assert (after.equal, after.prefixes, list(after.seqs)) == ({b"b": 9}, {b"y": 20}, [12])
    assert not deletions.after(100)
    assert dead(deletions, (b"a", b"b"), first=8) == dead(deletions.after(8), (b"a", b"b"), first=8)


def test_an_operator_of_a_later_release_is_an_error() -> None:
    with pytest.raises(ValueError, match="'Regex' is not known"):
        Deletions().add("Regex", b"a", 4)

"""Gaps: in seq order, joined where they meet for one reason, and gone below the floor."""

from __future__ import annotations

import pytest

from shardd.topic.gaps import Gaps


def test_a_gap_that_meets_the_one_before_for_the_same_reason_is_one_with_it() -> None:
    gaps = Gaps()
    gaps.add(3, 5, "cap")
    gaps.add(6, 7, "cap")
    gaps.add(8, 9, "ttl")
    assert gaps.ranges == [(3, 7, "cap"), (8, 9, "ttl")]
    assert gaps.at(6) == (7, "cap")
    assert gaps.at(2) is None
    assert gaps.next_after(8) == 8


def test_gaps_below_the_floor_are_taken_out_once() -> None:
    gaps = Gaps([(3, 7, "cap"), (9, 12, "ttl")])
    assert gaps.below(8) == [(7, "cap")]
    assert gaps.below(8) == []
    assert gaps.next_after(1) == 9


def test_a_gap_before_an_earlier_one_is_a_mistake_of_ours() -> None:
    gaps = Gaps([(3, 7, "cap")])
    with pytest.raises(AssertionError):
        gaps.add(7, 8, "cap")


def test_after_a_gap_is_the_first_seq_that_is_in_none() -> None:
    gaps = Gaps([(3, 7, "cap"), (8, 9, "ttl"), (11, 12, "ttl")])
    assert [gaps.after(seq) for seq in (2, 3, 7, 9, 10, 11, 13)] == [2, 10, 10, 10, 10, 13, 13]

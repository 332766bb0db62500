"""Losses of a topic as gaps of a reader."""

from __future__ import annotations

import pytest

from pyspark_topics.losses import Losses

Gaps = list[tuple[int, int, str]]


@pytest.mark.parametrize(
    ("low", "high", "gaps"),
    [
        (1, 100, [(1, 7, "mixed")]),
        (5, 100, [(5, 7, "ttl")]),
        (6, 100, [(6, 7, "ttl")]),
        (8, 100, []),
        (1, 3, [(1, 3, "mixed")]),
    ],
)
def test_what_is_lost_from_the_front_is_one_gap_up_to_the_first_record(low: int, high: int, gaps: Gaps) -> None:
    assert Losses([(4, "cap"), (7, "ttl")]).between(low, high, earliest=8) == gaps


def test_records_that_were_deleted_behind_a_loss_belong_to_its_gap() -> None:
    assert Losses([(4, "cap")]).between(1, 100, earliest=9) == [(1, 8, "cap")]
    assert Losses([(4, "cap")]).between(5, 100, earliest=9) == [], "only deletions are not told"


def test_a_range_of_no_seqs_has_no_gap() -> None:
    losses = Losses([(4, "cap")], inner=[(10, 19, "source_trim")])
    for low in (1, 3, 5, 12, 20):
        assert losses.between(low, low - 1, earliest=5) == []


def test_inner_losses_are_told_where_they_are() -> None:
    losses = Losses(inner=[(5, 6, "source_trim"), (20, 29, "restart")])
    assert losses.between(1, 100, earliest=1) == [(5, 6, "source_trim"), (20, 29, "cap")]
    assert losses.between(6, 25, earliest=1) == [(6, 6, "source_trim"), (20, 25, "cap")]
    assert losses.between(7, 19, earliest=1) == []


def test_an_inner_loss_before_the_first_record_is_one_from_the_front() -> None:
    losses = Losses([(4, "cap")], inner=[(5, 6, "cap")])
    assert losses.between(1, 100, earliest=7) == [(1, 6, "cap")]
    losses = Losses([(4, "ttl")], inner=[(5, 6, "cap")])
    assert losses.between(1, 100, earliest=7) == [(1, 6, "mixed")]
    assert losses.between(5, 100, earliest=7) == [(5, 6, "cap")]


def test_losses_that_are_added_are_those_of_the_server() -> None:
    losses = Losses()
    assert losses.floor == 0
    for upto, reason in ((3, "cap"), (5, "cap"), (5, "ttl"), (9, "ttl")):
        losses.add(upto, reason)
    assert losses.runs == [(5, "cap"), (9, "ttl")]
    assert losses.floor == 10


def test_a_stop_loses_the_end() -> None:
    losses = Losses()
    losses.tail(8, 9)
    assert losses.between(1, 100, earliest=1) == [(8, 9, "cap")]

"""Offsets of streams: their stored form, unread ranges, and limits that neither lose records nor starve a topic."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_topics.offsets import (
    DataLoss,
    Gap,
    Offsets,
    Position,
    begin,
    dump,
    limit,
    load,
    onward,
    records,
    report,
    unread,
    vanished,
)

names = st.sampled_from(["a", "b", "c", "d"])
maps = st.dictionaries(names, st.builds(Position, st.integers(1, 50), st.integers(0, 2), st.booleans()))


@given(maps)
def test_offsets_come_back_as_they_were_and_look_the_same_whatever_their_order(offsets: Offsets) -> None:
    shuffled = dict(reversed(list(offsets.items())))
    assert json.dumps(dump(offsets)) == json.dumps(dump(shuffled))
    assert load(json.loads(json.dumps(dump(offsets)))) == offsets


@pytest.mark.parametrize("foreign", [[1], {"a": 5}, {"a": {"seq": "x", "epoch": 1}}, {"a": {"0": 5}}])
def test_foreign_checkpoints_are_refused_with_a_sentence(foreign: object) -> None:
    with pytest.raises(ValueError, match="checkpointLocation of its own"):
        load(foreign)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "first"),
    [
        (None, Position(9, 1), 1),
        (Position(4, 1), Position(9, 1), 4),
        (Position(4, 1), Position(9, 0), 4),
        (Position(4, 0), Position(9, 3), 4),
        (Position(4, 1), Position(9, 2), 1),
        (Position(12, 0), Position(9, 0), 1),
        (Position(4, 1, gone=True), Position(9, 1), 4),
        (Position(4, 0, gone=True), Position(9, 0), 1),
    ],
)
def test_where_a_batch_begins(old: Position | None, new: Position, first: int) -> None:
    assert begin({} if old is None else {"t": old}, {"t": new}, "t") == first


def test_topics_that_are_gone_stay_where_they_were_and_are_told() -> None:
    start = {"gone": Position(5, 1), "stays": Position(2, 1), "anew": Position(7, 1)}
    latest = {"new": Position(3, 1), "stays": Position(4, 1), "anew": Position(2, 2)}
    end = onward(start, latest)
    assert list(end) == ["anew", "gone", "new", "stays"]
    assert end["gone"] == Position(5, 1, gone=True)
    assert set(vanished(start, end, latest)) == {Gap("gone", 5, 0, "deleted"), Gap("anew", 7, 0, "recreated")}
    assert vanished(end, onward(end, latest), latest) == []
    # `stays` was deleted between the choice of the end and the read of the batch.
    assert Gap("stays", 2, 3, "deleted") in vanished(start, end, {"new", "anew"})
    earliest = {topic: Position(1, at.epoch) for topic, at in latest.items()}
    assert unread(start, end, earliest) == {"anew": (1, 2), "new": (1, 3), "stays": (2, 4)}


def test_gaps_fail_with_their_ranges_or_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    gaps = [Gap("t", 5, 9, "cap"), Gap("u", 3, 0, "recreated")]
    with pytest.raises(DataLoss, match=r'topic "t": seq 5 to 9 \(cap\); topic "u": seq 3 on \(recreated\).*failOnData'):
        report(gaps, True)
    with caplog.at_level(logging.WARNING, "pyspark_topics"):
        report(gaps, False)
    assert 'topic "t": seq 5 to 9 (cap)' in caplog.text
    report([], True)


@given(
    st.dictionaries(names, st.lists(st.tuples(st.integers(1, 20), st.integers(0, 500)), min_size=1, max_size=5)),
    st.integers(1, 2000),
)
def test_limits_are_kept_and_every_topic_moves_until_all_is_read(
    pieces: dict[str, list[tuple[int, int]]], budget: int
) -> None:
    """No batch exceeds the budget by more than one record per topic and the rounding inside a piece."""
    layout = {}
    for topic, parts in pieces.items():
        at, layout[topic] = 1, []
        for count, weight in parts:
            layout[topic].append((at, at + count, weight))
            at += count
    end = {topic: Position(parts[-1][1], 1) for topic, parts in layout.items()}
    start = {topic: Position(1, 1) for topic in layout}
    rounds = 0
    while start != end:
        weights = {}
        for topic, parts in layout.items():
            first = start[topic].seq
            left = [
                (max(low, first), stop, weight * (stop - max(low, first)) // (stop - low))
                for low, stop, weight in parts
                if stop > first
            ]
            if left:
                weights[topic] = left
        cut = limit(start, end, weights, budget)
        heaviest = sum(max(-(-weight // (stop - low)) for low, stop, weight in parts) for parts in layout.values())
        taken = 0.0
        for topic, parts in weights.items():
            assert start[topic].seq < cut[topic].seq <= end[topic].seq
            for low, stop, weight in parts:
                taken += weight * max(min(stop, cut[topic].seq) - low, 0) / (stop - low)
        assert taken <= budget + heaviest
        start = cut
        rounds += 1
        assert rounds <= 500


def test_a_limit_of_records_is_shared_in_proportion() -> None:
    start = {"big": Position(1, 1), "small": Position(11, 1)}
    end = {"big": Position(901, 1), "small": Position(111, 1), "done": Position(5, 1)}
    left = records(unread(start, end | {"done": Position(1, 1)}, {}))
    assert limit(start, end, left, 100) == {"big": Position(91, 1), "small": Position(21, 1), "done": Position(5, 1)}
    assert limit(start, end, left, 1000) is end

"""Conditions of a read, from the filters of Spark: they may keep too much, and never leave out a row that fits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from pyspark_topics.where import ALL, MAX_I64, Text, Where, conditions


@dataclass
class Filter:
    attribute: tuple[str, ...]
    value: Any = None


@dataclass
class Negation:
    child: Any


def of(kind: str, column: str, value: Any = None) -> Any:
    """A filter of that class, without Spark."""
    return type(kind, (Filter,), {})((column,), value)


def without(inner: Any) -> Any:
    return type("Not", (Negation,), {})(inner)


@pytest.mark.parametrize(
    ("kind", "value", "low", "high"),
    [
        ("EqualTo", 5, 5, 5),
        ("EqualNullSafe", 5, 5, 5),
        ("In", (9, 3, None, 7), 3, 9),
        ("GreaterThan", 5, 5, MAX_I64),
        ("GreaterThanOrEqual", 5, 5, MAX_I64),
        ("LessThan", 5, 0, 5),
        ("LessThanOrEqual", 5, 0, 5),
        ("In", (), 0, MAX_I64),
        ("EqualTo", None, 0, MAX_I64),
        ("EqualTo", "text", 0, MAX_I64),
        ("StringStartsWith", "5", 0, MAX_I64),
    ],
)
def test_a_range_of_seqs_holds_every_match(kind: str, value: Any, low: int, high: int) -> None:
    where = conditions([of(kind, "offset", value)])
    assert (where.low, where.high) == (low, high)


def test_all_filters_hold_together() -> None:
    where = conditions([of("GreaterThan", "offset", 5), of("LessThan", "offset", 9), of("GreaterThan", "offset", 3)])
    assert (where.low, where.high) == (5, 9)
    assert conditions([of("In", "partition", (1, 2)), of("In", "partition", (2, 3))]).shards == {2}
    assert conditions([of("In", "tag", ("a", "b")), of("EqualTo", "key", "b")]).tag == Text(frozenset({b"b"}))


@pytest.mark.parametrize(
    ("value", "slack"),
    [(datetime(2026, 1, 2, tzinfo=UTC), 0), (datetime(2026, 1, 2), 86_400_000)],
    ids=["with a zone", "without"],
)
def test_times_have_room_where_their_zone_is_not_known(value: datetime, slack: int) -> None:
    ms = int(datetime(2026, 1, 2, tzinfo=UTC).timestamp() * 1000)
    where = conditions([of("GreaterThanOrEqual", "timestamp", value)])
    assert (where.since_ms, where.until_ms) == (ms - 1 - slack, MAX_I64)
    where = conditions([of("LessThan", "timestamp", value)])
    assert (where.since_ms, where.until_ms) == (0, ms + 1 + slack)


@pytest.mark.parametrize(
    "one",
    [
        of("EqualTo", "value", 5),
        of("Unknown", "tag", "a"),
        of("EqualTo", "partition", "not a number"),
        of("GreaterThan", "partition", 1),
        of("StringStartsWith", "tag", 7),
        without(of("EqualTo", "tag", "a")),
        type("EqualTo", (Filter,), {})(("meta", "inner"), "a"),
    ],
)
def test_a_filter_that_is_not_understood_changes_nothing(one: Any) -> None:
    assert conditions([one]) == ALL


def test_null_and_not_null_together_match_nothing() -> None:
    null, present = of("IsNull", "tag"), without(of("IsNull", "tag"))
    assert conditions([null]).tag == Text(null=True)
    assert conditions([present]).tag == Text(null=False)
    assert conditions([of("IsNotNull", "tag")]).tag == Text(null=False)
    assert conditions([null, present]).tag.equal == frozenset()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (Text(), None),
        (Text(frozenset({b"a", b"ab"})), [True, True, False, False]),
        (Text(prefixes=(b"a", b"ab")), [False, True, False, False]),
        (Text(null=True), [False, False, False, True]),
        (Text(null=False), [True, True, True, False]),
        (Text(frozenset({b"a"}), (b"b",)), [False] * 4),
    ],
)
def test_a_mask_says_the_same_of_a_column_as_of_each_value(text: Text, kept: list[bool] | None) -> None:
    values = ["a", "ab", "b", None]
    mask = text.mask(pa.array([None if each is None else each.encode() for each in values], pa.binary()))
    assert (None if mask is None else mask.to_pylist()) == kept
    if kept is not None:
        assert [text.allows(each) for each in values if each is not None] == kept[:3]


def test_columns_without_a_condition_are_not_read() -> None:
    tags = pa.array([b"a", b"b"], pa.binary())

    def unread() -> Any:
        raise AssertionError("read")

    assert Where().mask(unread, unread) is None
    assert Where(tag=Text(frozenset({b"a"}))).mask(lambda: tags, unread).to_pylist() == [True, False]


def test_shards_that_are_not_named_are_all() -> None:
    assert ALL.shard(7)
    assert not Where(shards=frozenset({1})).shard(7)

"""Conditions of a read that an index or a column can decide: shards, topics, seqs, times, tags and nodes.

They are derived from the filters that Spark pushes down (from Spark 4.1 on), all of which must hold. An unsupported
filter changes nothing. Spark filters the rows again, so returning too many rows is harmless; withholding a matching row
would be an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc

from pyspark_topics.arrays import FALSE, texts

MAX_I64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Text:
    """Condition on a text column: in `equal` (unless None), with all `prefixes`, and null or not (unless None)."""

    equal: frozenset[bytes] | None = None
    prefixes: tuple[bytes, ...] = ()
    null: bool | None = None

    def allows(self, value: str) -> bool:
        """Whether a value known before reading satisfies the condition."""
        raw = value.encode()
        return (
            self.null is not True
            and (self.equal is None or raw in self.equal)
            and all(map(raw.startswith, self.prefixes))
        )

    def mask(self, column: Any) -> Any:
        """Boolean array, true for values of a binary array that satisfy the condition; None if it is empty."""
        masks = []
        if self.equal is not None:
            masks.append(pc.is_in(column, value_set=texts(sorted(self.equal))))
        masks += [pc.fill_null(pc.starts_with(column, pattern=prefix), FALSE) for prefix in self.prefixes]
        if self.null is not None:
            masks.append(pc.is_null(column) if self.null else pc.is_valid(column))
        return _all(masks)


def _all(masks: Iterable[Any]) -> Any:
    kept = None
    for mask in masks:
        if mask is not None:
            kept = mask if kept is None else pc.and_(kept, mask)
    return kept


@dataclass(frozen=True, slots=True)
class Where:
    """Conditions of a read. Seqs and times (ms) are inclusive."""

    topic: Text = Text()
    shards: frozenset[int] | None = None
    low: int = 0
    high: int = MAX_I64
    since_ms: int = 0
    until_ms: int = MAX_I64
    tag: Text = Text()
    node: Text = Text()

    def shard(self, number: int) -> bool:
        return self.shards is None or number in self.shards

    def mask(self, tags: Callable[[], Any], nodes: Callable[[], Any]) -> Any:
        """Boolean array, true for records whose tag and node match; None without such conditions. Ranges decide the
        others."""
        return _all(
            condition.mask(column())
            for condition, column in ((self.tag, tags), (self.node, nodes))
            if condition != Text()
        )


ALL = Where()


def conditions(filters: Iterable[Any]) -> Where:
    """Conditions from filters of `pyspark.sql.datasource`. Filters are identified by class name, because Spark 4.0
    lacks the classes."""
    where = ALL
    for one in filters:
        where = _narrow(where, one)
    return where


def _narrow(where: Where, one: Any) -> Where:
    kind = type(one).__name__
    if kind == "Not":
        inner = one.child
        if type(inner).__name__ != "IsNull":
            return where
        kind, one = "IsNotNull", inner
    if len(one.attribute) != 1:
        return where
    column = one.attribute[0]
    value: Any = getattr(one, "value", None)
    if kind in ("EqualTo", "EqualNullSafe") and value is not None:
        kind, value = "In", (value,)
    if kind == "In":
        value = tuple(item for item in value if item is not None)
    try:
        if column in ("tag", "node", "topic", "key"):
            name = "tag" if column == "key" else column
            fields: Any = {name: _text(getattr(where, name), kind, value)}
            return replace(where, **fields)
        if column == "partition" and kind == "In":
            shards = frozenset(map(int, value))
            return replace(where, shards=shards if where.shards is None else where.shards & shards)
        if column == "offset":
            low, high = _range(kind, value, lambda seq: (int(seq), int(seq)))
            return replace(where, low=max(where.low, low), high=min(where.high, high))
        if column == "timestamp":
            low, high = _range(kind, value, _ms)
            return replace(where, since_ms=max(where.since_ms, low), until_ms=min(where.until_ms, high))
    except (TypeError, ValueError, AttributeError):
        pass  # a literal of another type
    return where


def _text(known: Text, kind: str, value: Any) -> Text:
    if kind == "In":
        values = frozenset(item.encode() if isinstance(item, str) else bytes(item) for item in value)
        return replace(known, equal=values if known.equal is None else known.equal & values)
    if kind == "StringStartsWith":
        return replace(known, prefixes=(*known.prefixes, value.encode()))
    if kind in ("IsNull", "IsNotNull"):
        null = kind == "IsNull"
        if known.null not in (None, null):
            return replace(known, equal=frozenset())  # null and not null: no value matches
        return replace(known, null=null)
    return known


def _range(kind: str, value: Any, floor_and_ceiling: Callable[[Any], tuple[int, int]]) -> tuple[int, int]:
    """The lowest and highest whole number that may match a filter."""
    if kind == "In" and value:
        pairs = [floor_and_ceiling(item) for item in value]
        return min(low for low, _ in pairs), max(high for _, high in pairs)
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return floor_and_ceiling(value)[0], MAX_I64
    if kind in ("LessThan", "LessThanOrEqual"):
        return 0, floor_and_ceiling(value)[1]
    return 0, MAX_I64


def _ms(value: datetime) -> tuple[int, int]:
    """The milliseconds around a time. Without a time zone, a day of tolerance is added on either side."""
    slack = 0 if value.tzinfo is not None else 86_400_000
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    ms = int(aware.timestamp() * 1000)
    return ms - 1 - slack, ms + 1 + slack

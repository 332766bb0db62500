"""Reconcile: deletes the rows of a lake whose records were deleted in the service since they were read.

Deletions leave no trace in a log, so rows and records are compared, a range of offsets at a time:

    the row's offset                                              the row
    below what caps or age took from the topic's front            stays: the table is for what the service has no more
    at a record that the service has, or in a loss                stays
    above what the source has: a backup, or a bucket that lags    stays
    any other, of the topic's present instance                    goes
    any, with one of the tags                                     goes

Losses are asked for again after the records were read: what was lost meanwhile was not deleted.

Rows of a topic that is gone, or was created again, stay unless a tag names them. Predicates name offsets
and never tags, because Delta keeps predicates in its log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from pyspark_topics.lake.deltars import offsets_in
from pyspark_topics.lake.layout import GAPS, arrow, same_service
from pyspark_topics.lake.local import Lake, Source
from pyspark_topics.offsets import Offsets, Position

READ = arrow({"topic": "string", "offset": "bigint", "gap_to": "bigint"})
"""Rows of losses have the last offset in `gap_to`: a service tells of those between records only to a reader."""
WINDOW = 1_000_000
"""Offsets of a topic that are compared at once."""
RUNS = 1000
"""Runs of offsets in the predicate of one deletion."""
Instance = tuple[str, int]
"""Topic and epoch."""


def run(lake: Lake, source: Source, tags: Sequence[str], *, dry_run: bool, vacuum: bool) -> dict[str, int]:
    """Number of rows deleted, or with `dry_run` to delete, by topic. Raises `LakeError` and as sources do."""
    source.reach()
    counts: Counter[str] = Counter()
    with lake.locked():
        latest = source.latest()
        same_service(str(lake.root), lake.position().positions, latest)
        for name in lake.tables.names():
            for (topic, epoch), gone in _gone(lake, source, name, tags):
                counts[topic] += len(gone)
                if not dry_run:
                    _delete(lake, name, (topic, epoch), gone)
        if vacuum and not dry_run:
            for name in [*lake.tables.names(), GAPS]:
                lake.tables.vacuum(name, 0)
    return dict(sorted(counts.items()))


def _gone(lake: Lake, source: Source, name: str, tags: Sequence[str]) -> Iterator[tuple[Instance, pa.Array]]:
    """For windows of each topic's instance in a table: the sorted offsets of rows to delete, if there are any."""
    rows = lake.tables.rows(name)
    if rows is None:
        return
    latest = source.latest()
    found = list(_missing(source, rows, latest, tags))
    if not found:
        return
    source.look()
    lost = source.lost(latest)
    for (topic, epoch), part in found:
        dead = pc.or_(part["tagged"], pc.greater_equal(part["offset"], lost.get(topic, 1)))
        if pc.any(dead).as_py():
            yield (topic, epoch), pc.unique(part["offset"].filter(dead)).sort()


def _missing(
    source: Source, rows: ds.Dataset, latest: Offsets, tags: Sequence[str]
) -> Iterator[tuple[Instance, pa.Table]]:
    """For windows of each topic's instance: the rows without a record and those with one of the tags, if there are any,
    as `offset` and `tagged`. Records that were lost since this began count as missing."""
    allowed, lost = source.topics, source.lost(latest)
    for (topic, epoch), (least, most) in _instances(rows).items():
        if topic not in allowed:
            continue
        there = topic in latest and latest[topic].epoch == epoch
        for low in range(least, most + 1, WINDOW):
            high = min(low + WINDOW - 1, most)
            within = (
                (ds.field("topic") == topic)
                & (ds.field("epoch") == epoch)
                & (ds.field("offset") >= low)
                & (ds.field("offset") <= high)
            )
            part = rows.to_table(columns=["offset", "tag"], filter=within)
            tagged = dead = _tagged(part["tag"], tags)
            if there:
                begin, end = max(low, lost[topic]), min(high, latest[topic].seq - 1)
                front = begin == lost[topic]
                dead = pc.or_(dead, _deleted(source, topic, epoch, part["offset"], begin, end, front=front))
            if pc.any(dead).as_py():
                yield (topic, epoch), pa.table({"offset": part["offset"], "tagged": tagged}).filter(dead)


def _instances(rows: ds.Dataset) -> dict[Instance, tuple[int, int]]:
    """The instances of topics in a table, with their least and greatest offset."""
    found: dict[Instance, tuple[int, int]] = {}
    for batch in rows.to_batches(columns=["topic", "epoch", "offset"]):
        part = pa.Table.from_batches([batch]).group_by(["topic", "epoch"])
        for row in part.aggregate([("offset", "min"), ("offset", "max")]).to_pylist():
            key = row["topic"], row["epoch"]
            least, most = found.get(key, (row["offset_min"], row["offset_max"]))
            found[key] = min(least, row["offset_min"]), max(most, row["offset_max"])
    return found


def _tagged(column: Any, tags: Sequence[str]) -> Any:
    dead: Any = pa.chunked_array([pa.repeat(pa.scalar(False), len(column))])
    for tag in tags:
        same = pc.starts_with(column, tag[:-1]) if tag.endswith("*") else pc.equal(column, tag)
        dead = pc.or_(dead, pc.fill_null(same, False))
    return dead


def _deleted(source: Source, topic: str, epoch: int, rows: Any, low: int, high: int, *, front: bool) -> Any:
    """Which of the offsets `rows`, from `low` to `high`, the service has neither as a record nor lost. `front`: `low`
    is the first offset that caps and age left."""
    start, end = {topic: Position(low, epoch)}, {topic: Position(high + 1, epoch)}
    live = [pa.array([], pa.int64())]
    lost: list[tuple[int, int]] = []
    tasks: Any = source.partitions(start, end) if low <= high else []
    for task in tasks:
        for batch in source.read(task):
            told = pc.is_valid(batch["gap_to"])
            live.append(batch["offset"].filter(pc.invert(told)))
            lost += zip(*(batch[name].filter(told).to_pylist() for name in ("offset", "gap_to")), strict=True)
    lost += [(gap.first, gap.last or high) for gap in source.gaps(start, end)] if low <= high else []
    within = pc.and_(pc.greater_equal(rows, low), pc.less_equal(rows, high))
    dead = pc.and_(within, pc.invert(pc.is_in(rows, value_set=pa.chunked_array(live).combine_chunks())))
    for first, last in lost:
        if first > low or not front:  # one at the front ends after deleted records
            dead = pc.and_(dead, pc.or_(pc.less(rows, first), pc.greater(rows, last)))
    return dead


def _delete(lake: Lake, name: str, instance: Instance, gone: pa.Array) -> None:
    topic, epoch = instance
    found = runs(gone)
    for begin in range(0, len(found), RUNS):
        lake.tables.delete(name, offsets_in(topic, epoch, found[begin : begin + RUNS]))


def runs(offsets: pa.Array) -> list[tuple[int, int]]:
    """Sorted offsets as runs, first and last each."""
    if not len(offsets):
        return []
    ends = pc.indices_nonzero(pc.greater(pc.pairwise_diff(offsets).slice(1), 1))
    firsts = pa.concat_arrays([offsets.slice(0, 1), offsets.take(pc.add(ends, 1))])
    lasts = pa.concat_arrays([offsets.take(ends), offsets.slice(len(offsets) - 1)])
    return list(zip(firsts.to_pylist(), lasts.to_pylist(), strict=True))

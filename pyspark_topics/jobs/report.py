"""`topics-spark report`: statistics of the records in topics, as a table, Parquet files or a picture.

Records are grouped by any of `topic`, `tag`, `node`, `hour` (UTC). For each group:

    records, bytes              bytes of data, tag, node and meta
    records_per_s, bytes_per_s  over the hour, or without `hour` from the first to the last record; null if that time
                                is zero
    gaps                        seqs of the topic within the group without a record (deleted, expired, evicted); null
                                unless the groups are by `topic`, or by `topic` and `hour`. An hour includes the gap
                                between the previous hour and its first record
    p50_bytes, p99_bytes        of a record, within 1 %
    first_time, last_time
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark_topics.visible import aligned

DIMENSIONS = ("topic", "tag", "node", "hour")
ACCURACY = 1000
"""Accuracy of percentiles: its inverse is the relative error of the rank."""


def measure(frame: Any, by: Sequence[str]) -> Any:
    """A row for each group of `frame`, which has the columns of a read or of an archive. Raises `ValueError`."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    wrong = [name for name in by if name not in DIMENSIONS]
    if wrong or not by or len(set(by)) < len(by):
        raise ValueError(f"by {','.join(by)!r}: say some of {', '.join(DIMENSIONS)}, each once")
    size = f.octet_length("value")
    for name in ("tag", "node", "meta"):
        if name in frame.columns:
            size = size + f.coalesce(f.octet_length(name), f.lit(0))
    rows = frame.withColumn("hour", f.date_trunc("hour", "timestamp")).withColumn("size", size)
    groups = rows.groupBy(*by).agg(
        f.count("*").alias("records"),
        f.sum("size").alias("bytes"),
        f.percentile_approx("size", [0.5, 0.99], ACCURACY).alias("sizes"),
        f.min("timestamp").alias("first_time"),
        f.max("timestamp").alias("last_time"),
        f.min("offset").alias("low"),
        f.max("offset").alias("high"),
    )
    gaps = f.lit(None).cast("long")
    if set(by) == {"topic"}:
        gaps = f.col("high") - f.col("low") + 1 - f.col("records")
    elif set(by) == {"topic", "hour"}:
        # Times never decrease with seq, so each hour of a topic is a range of seqs.
        before = f.lag("high").over(Window.partitionBy("topic").orderBy("hour"))
        gaps = f.col("high") - f.coalesce(before, f.col("low") - 1) - f.col("records")
    seconds = f.lit(3600.0)
    if "hour" not in by:
        seconds = f.nullif((f.unix_micros("last_time") - f.unix_micros("first_time")).cast("double") / 1e6, f.lit(0.0))
    return groups.select(
        *by,
        "records",
        "bytes",
        (f.col("records") / seconds).alias("records_per_s"),
        (f.col("bytes") / seconds).alias("bytes_per_s"),
        gaps.alias("gaps"),
        f.col("sizes")[0].alias("p50_bytes"),
        f.col("sizes")[1].alias("p99_bytes"),
        "first_time",
        "last_time",
    ).orderBy(*by)


def table(rows: Sequence[Any]) -> str:
    """Rows as a text table, with numbers aligned to the right."""
    if not rows:
        return "no records\n"
    names = [*rows[0].asDict()]
    right = {place for place, name in enumerate(names) if isinstance(rows[0][name], int | float)}
    return aligned([names, *([_shown(row[name]) for name in names] for row in rows)], right)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)

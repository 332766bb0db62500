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

The picture is a bar chart as SVG text. Groups with an hour become columns over time, stacked by the rest of the group.
Others become bars, the largest first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any

from pyspark_topics.visible import aligned, visible

DIMENSIONS = ("topic", "tag", "node", "hour")
ACCURACY = 1000
"""Accuracy of percentiles: its inverse is the relative error of the rank."""
WIDTH, LEFT, TOP, LINE = 960, 220, 48, 18
CHART_HEIGHT = 320
MOST = 40
"""Largest number of bars; the rest is summed up in one."""
COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#949"]


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


def svg(rows: Sequence[Any], by: Sequence[str], title: str) -> str:
    """An SVG document with the number of records of each group. `rows` are those of `measure`."""
    groups = [(tuple(row[name] for name in by), int(row["records"])) for row in rows]
    body, height = _over_time(groups, by) if "hour" in by else _bars(groups)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
        f'<text x="16" y="26" font-size="16">{escape(title)}</text>{body}</svg>\n'
    )


def _bars(groups: list[tuple[tuple[Any, ...], int]]) -> tuple[str, int]:
    named = sorted(((_name(key), count) for key, count in groups), key=lambda group: (-group[1], group[0]))
    if len(named) > MOST:
        rest = named[MOST - 1 :]
        named = [*named[: MOST - 1], (f"{len(rest)} others", sum(count for _, count in rest))]
    most = max((count for _, count in named), default=1)
    parts = []
    for place, (name, count) in enumerate(named):
        y = TOP + place * LINE
        width = (WIDTH - LEFT - 110) * count / most
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(_short(name))}</text>'
            f'<rect x="{LEFT}" y="{y + 2}" width="{width:.1f}" height="{LINE - 4}" fill="{COLOURS[0]}">'
            f"<title>{escape(name)}: {count:,}</title></rect>"
            f'<text x="{LEFT + width + 6:.1f}" y="{y + 13}">{count:,}</text>'
        )
    return "".join(parts), TOP + len(named) * LINE + 16


def _over_time(groups: list[tuple[tuple[Any, ...], int]], by: Sequence[str]) -> tuple[str, int]:
    at = list(by).index("hour")
    counts: defaultdict[str, Counter[datetime]] = defaultdict(Counter)
    for key, count in groups:
        counts[_name(key[:at] + key[at + 1 :])][key[at]] += count
    ranked = sorted(counts, key=lambda name: (-counts[name].total(), name))
    if len(ranked) > len(COLOURS):
        rest = ranked[len(COLOURS) - 1 :]
        ranked = [*ranked[: len(COLOURS) - 1], f"{len(rest)} others"]
        counts[ranked[-1]] = sum((counts[name] for name in rest), Counter())
    hours_seen = [hour for name in ranked for hour in counts[name]]
    if not hours_seen:
        return "", TOP
    first, last = min(hours_seen), max(hours_seen)
    columns = int((last - first) / timedelta(hours=1)) + 1
    totals = Counter[datetime]()
    parts = []
    step = (WIDTH - LEFT - 16) / columns
    most = max(sum(counts[name][hour] for name in ranked) for hour in set(hours_seen))
    for name, colour in zip(ranked, COLOURS, strict=False):
        for hour, count in sorted(counts[name].items()):
            below = totals[hour]
            totals[hour] += count
            x = LEFT + step * ((hour - first) / timedelta(hours=1))
            y = TOP + CHART_HEIGHT * (1 - (below + count) / most)
            parts.append(
                f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(step - 0.5, 0.2):.2f}" '
                f'height="{CHART_HEIGHT * count / most:.2f}" fill="{colour}">'
                f"<title>{escape(name)} {hour:%Y-%m-%d %H:00}: {count:,}</title></rect>"
            )
    bottom = TOP + CHART_HEIGHT
    for place, (name, colour) in enumerate(zip(ranked, COLOURS, strict=False)):
        y = TOP + place * LINE
        parts.append(
            f'<rect x="16" y="{y}" width="10" height="10" fill="{colour}"/>'
            f'<text x="32" y="{y + 10}">{escape(_short(name, 22))}</text>'
        )
    parts.append(
        f'<text x="{LEFT - 8}" y="{TOP + 10}" text-anchor="end">{most:,}</text>'
        f'<line x1="{LEFT}" y1="{bottom}" x2="{WIDTH - 16}" y2="{bottom}" stroke="black"/>'
        f'<text x="{LEFT}" y="{bottom + 16}">{first:%Y-%m-%d %H:00}</text>'
        f'<text x="{WIDTH - 16}" y="{bottom + 16}" text-anchor="end">{last:%Y-%m-%d %H:00} UTC</text>'
    )
    return "".join(parts), bottom + 32


def _name(key: tuple[Any, ...]) -> str:
    return " · ".join("(none)" if part is None else visible(str(part)) for part in key) or "all records"


def _short(name: str, most: int = 30) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"

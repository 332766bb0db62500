"""Picture of a report: a bar chart as SVG text, without a library.

Groups with an hour become columns over time, stacked by the rest of the group. Others become bars, the largest first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any

from pyspark_topics.visible import visible

WIDTH, LEFT, TOP, LINE = 960, 220, 48, 18
CHART_HEIGHT = 320
MOST = 40
"""Largest number of bars; the rest is summed up in one."""
COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#949"]


def svg(rows: Sequence[Any], by: Sequence[str], title: str) -> str:
    """An SVG document with the number of records of each group. `rows` are those of `report.measure`."""
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

"""Plots of `compare`: one image for each kind of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rows import Row

COLORS = {
    "Topics, 1 shard": "#7db8e8",
    "Topics, 2 shards": "#1f6fb2",
    "Topics, 2 shards, `topics_client`": "#7a86c8",
    "Redis": "#d1495b",
    "JetStream": "#3a9d5d",
    "beanstalkd": "#b8903a",
}


def draw(sections: Mapping[str, Sequence[Row]], directory: Path) -> list[str]:
    """Write the images; return their names without the suffix."""
    import matplotlib as mpl

    mpl.use("Agg")
    directory.mkdir(parents=True, exist_ok=True)
    groups = {
        "append": ("append", "append, durable"),
        "append-together": ("append, 16 writers", "append, 16 writers, durable"),
        "read-and-queue": ("read", "queue"),
        "latency-and-fan-out": ("latency", "fan-out"),
        "memory-and-recovery": ("a million", "idle"),
    }
    drawn = []
    for name, wanted in groups.items():
        if found := [section for section in wanted if section in sections]:
            _image([(section, sections[section]) for section in found], directory / f"{name}.png")
            drawn.append(name)
    return drawn


def _image(panels: Sequence[tuple[str, Sequence[Row]]], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(6.2 * len(panels), 4.2), squeeze=False)
    for axis, (section, rows) in zip(axes[0], panels, strict=True):
        _bars(axis, section, rows)
    handles = {
        label: handle for axis in axes[0] for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="lower center", ncols=len(handles), frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _bars(axis: Any, section: str, rows: Sequence[Row]) -> None:
    """Groups of bars, one for each row, on a logarithmic scale."""
    from matplotlib.ticker import LogLocator

    names = list(dict.fromkeys(name for row in rows for name in row.values))
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        places = [at for at, row in enumerate(rows) if name in row.values]
        heights = [rows[at].medians()[name] for at in places]
        offsets = [at + (number - (len(names) - 1) / 2) * width for at in places]
        axis.bar(offsets, heights, width, label=name.replace("`", ""), color=COLORS.get(name))
    axis.set_yscale("log")
    positive = [value for row in rows for value in row.medians().values() if value > 0]
    low, high = min(positive) / 2, max(positive) * 2  # the smallest bar is seen, too
    axis.set_ylim(low, high)
    if high / low < 300:
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.yaxis.set_minor_formatter(lambda *_: "")
    units = list(dict.fromkeys(row.unit for row in rows))
    labels = [row.label.replace(", ", ",\n").replace(" a request", "\na request") for row in rows]
    if len(units) > 1:
        labels = [f"{label}\n({row.unit})" for label, row in zip(labels, rows, strict=True)]
    axis.set_xticks(range(len(rows)), labels, fontsize=8)
    unit = f"{units[0]}, " if len(units) == 1 else ""
    axis.set_title(f"{section} ({unit}{'more' if rows[0].more_is_better else 'less'} is better)", fontsize=11)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)

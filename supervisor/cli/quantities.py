"""Quantities for people: numbers with their nouns, sizes, times and settings of a topic, as text.

With --json, commands print the numbers themselves.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from supervisor.cli import exact
from supervisor.config.units import DURATIONS

_PREFIXES = ("kB", "MB", "GB", "TB", "PB", "EB")
_NONE_IF_ZERO = ("ttl_ms", "cap_records", "cap_bytes", "max_deliveries")
"""Settings of a topic for which 0 means: no limit."""
_EXACT = ("epoch", "priority", "effective_priority")
"""Numbers that are no amounts, beside seqs."""


def counted(number: int, noun: str) -> str:
    """`1 job`, `2 jobs`, `1,000 jobs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(count: float) -> str:
    """Bytes with a decimal prefix: `1 byte`, `58 bytes`, `1.5 kB`."""
    if count < 1000:
        return counted(int(count), "byte")
    amount = float(count)
    for prefix in _PREFIXES:
        amount /= 1000
        if amount < 999.95 or prefix == _PREFIXES[-1]:
            break
    return f"{amount:,.1f} {prefix}"


def span(ms: int) -> str:
    """A duration in the largest unit of which it is a whole number: `30 s`, `7 d`, `1,500 ms`."""
    for unit, factor in reversed(DURATIONS.items()):
        if ms and factor >= 1 and ms % factor == 0:
            return f"{int(ms / factor):,} {unit}"
    return f"{ms:,} ms"


def moment(ms: int) -> str:
    """A time of this machine's zone, from ms since 1970. A time beyond the calendar stays a number."""
    try:
        return datetime.fromtimestamp(ms / 1000).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(ms)


def utc(ms: int) -> str:
    """A time in UTC, from ms since 1970."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def described(name: str, value: Any) -> tuple[str, str]:
    """A field of a topic's state or configuration as label and text: the unit goes from the name to the value."""
    if value is None:
        none = "not since the shard started" if name == "last_read_ts" else "never" if name.endswith("_ts") else "none"
        return name.removesuffix("_ts").removesuffix("_ms"), none
    if isinstance(value, bool) or not isinstance(value, int):
        return name, exact.text(value)
    if not value and name in _NONE_IF_ZERO:
        return name.removesuffix("_ms"), "none"
    if name.endswith("_ts"):
        return name.removesuffix("_ts"), moment(value)
    if name.endswith("_ms"):
        return name.removesuffix("_ms"), span(value)
    if name.endswith("bytes"):
        return name, size(value)
    return name, str(value) if name.endswith("_seq") or name in _EXACT else f"{value:,}"

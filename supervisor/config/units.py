"""Units of sizes and durations: `64MiB`, `1.5 GB`, `10s`, `500ms`, or a plain number.

A plain number has the unit in the name of the setting or flag: bytes, milliseconds or seconds. Units may be written in
any case, with or without a space before them. Whole results are an `int`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

SIZES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
"""Bytes of each unit."""
DURATIONS = {
    "us": Fraction(1, 1000),
    "ms": Fraction(1),
    "s": Fraction(1000),
    "min": Fraction(60_000),
    "h": Fraction(3_600_000),
    "d": Fraction(86_400_000),
}
"""Milliseconds of each unit."""
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]+)\s*")


def size(text: str) -> int | float | None:
    """Bytes; None for a text without a unit. `/s` at the end is for rates. Raises `ValueError`."""
    return _read(text.removesuffix("/s"), {name: Fraction(factor) for name, factor in SIZES.items()})


def duration_ms(text: str) -> int | float | None:
    """Milliseconds; None for a text without a unit. Raises `ValueError`."""
    return _read(text, DURATIONS)


def _read(text: str, units: Mapping[str, Fraction]) -> int | float | None:
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return None
    number, unit = found.groups()
    factors = {name.lower(): factor for name, factor in units.items()}
    if unit.lower() not in factors:
        raise ValueError(f"{unit} is no unit of it; known are {', '.join(units)}")
    value = Fraction(number) * factors[unit.lower()]
    return int(value) if value.denominator == 1 else float(value)

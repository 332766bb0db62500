"""Ranges of sorted names: finds the names with one of several prefixes by bisection, without reading the others."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

AFTER_ALL = "\x7f"
"""Greater than every character of a name."""


def distinct(prefix: str, prefixes: Sequence[str]) -> list[str]:
    """The prefixes of all names that begin with `prefix` and with one of `prefixes` (if empty, any name). They are
    sorted, and none is a prefix of another."""
    both = [max(prefix, each, key=len) for each in prefixes if prefix.startswith(each) or each.startswith(prefix)]
    found: list[str] = []
    for each in sorted(both if prefixes else [prefix]):
        if not found or not each.startswith(found[-1]):
            found.append(each)
    return found


def page(names: Sequence[str], prefixes: Sequence[str], after: str, size: int) -> tuple[list[str], bool]:
    """Up to `size` of the sorted `names` that follow `after` and begin with one of `prefixes`, and whether there are
    more. `prefixes` is a result of `distinct`."""
    found: list[str] = []
    for start, stop in _spans(names, prefixes, after):
        found += names[start : min(stop, start + size + 1 - len(found))]
        if len(found) > size:
            break
    return found[:size], len(found) > size


def _spans(names: Sequence[str], prefixes: Sequence[str], after: str) -> Iterator[tuple[int, int]]:
    first = bisect_right(names, after)
    for prefix in prefixes:
        start = max(bisect_left(names, prefix), first)
        stop = bisect_left(names, prefix + AFTER_ALL) if prefix else len(names)
        if start < stop:
            yield start, stop

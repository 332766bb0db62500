"""Options: those that a method does not have are named, with those that it has."""

from __future__ import annotations

from collections.abc import Mapping


def check(owner: str, given: Mapping[str, object], known: type, *more: str) -> None:
    """Raises `TypeError` if an option is not a field of `known` (a `TypedDict` or a dataclass) nor one of `more`."""
    names = {*known.__annotations__, *more}
    for name in given:
        if name not in names:
            raise TypeError(f"{owner} has no {name!r}; it has {', '.join(sorted(names))}")

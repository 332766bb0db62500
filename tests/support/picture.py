"""A picture of an object and of all that it holds, to compare two moments of it."""

from __future__ import annotations

import types
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import trio

_PLAIN = (int, float, str, bytes, bool, type(None), Enum, Path)
_PASSED = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, type, trio.Event)


def picture(root: object, passed_over: Iterable[str] = ()) -> dict[str, Any]:
    """Return the plain values that can be reached from `root`, by their path. Attributes in `passed_over`, functions
    and objects of the standard library without fields have no place in it. An object met twice is told by its first
    path."""
    found: dict[str, Any] = {}
    seen: dict[int, str] = {}
    kept: list[object] = []  # ids must stay those of these objects
    skip = frozenset(passed_over)
    stack: list[tuple[str, Any]] = [("", root)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, _PLAIN):
            found[path] = value
        elif isinstance(value, (bytearray, memoryview)):
            found[path] = bytes(value)
        elif isinstance(value, _PASSED) or callable(value):
            continue
        elif id(value) in seen:
            found[path] = seen[id(value)]
        else:
            seen[id(value)] = path
            kept.append(value)
            members = [(f"{path}.{name}", member) for name, member in _members(value) if name not in skip]
            found[path] = type(value).__name__, len(members)
            stack += reversed(members)
    return found


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (dict, OrderedDict, Counter, Mapping)):
        for index, (key, member) in enumerate(value.items()):
            plain = isinstance(key, (*_PLAIN, tuple))
            yield (str(key) if plain else f"#{index}"), member
    elif isinstance(value, (set, frozenset)):
        yield from ((str(index), member) for index, member in enumerate(sorted(value, key=repr)))
    elif isinstance(value, (list, tuple, deque)):
        yield from ((str(index), member) for index, member in enumerate(value))
    elif isinstance(value, msgspec.Struct):
        yield from ((name, getattr(value, name)) for name in value.__struct_fields__)
    else:
        names = list(getattr(value, "__dict__", ()))
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            names += [slots] if isinstance(slots, str) else slots
        yield from ((name, getattr(value, name)) for name in names if hasattr(value, name))


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs between two pictures."""
    missing = object()
    return [
        f"{path}: {before.get(path, '-')!r} → {after.get(path, '-')!r}"
        for path in {**before, **after}
        if before.get(path, missing) != after.get(path, missing)
    ]

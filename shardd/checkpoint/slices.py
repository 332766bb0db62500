"""Work in slices: generators that pause, so that the shard serves requests between two slices."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

SLICE = 32
LOOK = 4096
"""Number of topics that one slice plans or adopts, and that one slice examines."""
_Result = TypeVar("_Result")


def exhaust(slices: Generator[object, None, _Result]) -> _Result:
    """Run all slices without a pause. Returns the generator's result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: _Result = end.value
            return result

"""A cache for what headers say. Clients choose their values, so the cache keeps short ones only."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Generic, TypeVar, TypeVarTuple

from gateway.errors import GatewayError

MAX_CACHED_BYTES = 1 << 10
"""Longer values are looked at again each time: a head may have 64 KiB."""
_Values = TypeVarTuple("_Values")
_Result = TypeVar("_Result")


class _TooLongError(GatewayError):
    """A value is too long: `lru_cache` keeps nothing of a call that raises."""


class ShortCache(Generic[*_Values, _Result]):
    """A function that remembers its results, the `most` that were used last. Not those for a long value."""

    def __init__(self, most: int, function: Callable[[*_Values], _Result]) -> None:
        def checked(*values: *_Values) -> _Result:
            for value in values:
                if isinstance(value, bytes) and len(value) > MAX_CACHED_BYTES:
                    raise _TooLongError
            return function(*values)

        self._function = function
        self._cached = lru_cache(most)(checked)
        self.cache_info = self._cached.cache_info

    def __call__(self, *values: *_Values) -> _Result:
        try:
            return self._cached(*values)
        except _TooLongError:
            return self._function(*values)


def short_cache(most: int) -> Callable[[Callable[[*_Values], _Result]], ShortCache[*_Values, _Result]]:
    """Like `lru_cache(most)`, for functions of positional values."""

    def decorate(function: Callable[[*_Values], _Result]) -> ShortCache[*_Values, _Result]:
        return ShortCache(most, function)

    return decorate

"""A cache for what headers say. Clients choose their values, so the cache keeps short ones only."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar, TypeVarTuple

from gateway.errors import GatewayError

MAX_CACHED_BYTES = 1 << 10
"""Longer values are looked at again each time: a head may have 64 KiB."""
_Values = TypeVarTuple("_Values")
_Result = TypeVar("_Result")


class _TooLongError(GatewayError):
    """A value is too long: `lru_cache` keeps nothing of a call that raises."""


def short_cache(most: int) -> Callable[[Callable[[*_Values], _Result]], Callable[[*_Values], _Result]]:
    """Like `lru_cache(most)`, for functions of positional values. Results for a long value are not remembered."""

    def decorate(function: Callable[[*_Values], _Result]) -> Callable[[*_Values], _Result]:
        @lru_cache(most)
        def checked(*values: *_Values) -> _Result:
            for value in values:
                if isinstance(value, bytes) and len(value) > MAX_CACHED_BYTES:
                    raise _TooLongError
            return function(*values)

        @wraps(checked)
        def asked(*values: *_Values) -> _Result:
            try:
                return checked(*values)
            except _TooLongError:
                return function(*values)

        return asked

    return decorate

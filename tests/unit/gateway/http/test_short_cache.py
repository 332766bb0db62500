"""What headers say is remembered, but strangers cannot fill the memory of a gateway with long ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.api.bodies import is_json
from gateway.contract.origins import Rule, decide
from gateway.http.accept_header import named, weight
from gateway.http.gzip_coding import accepts_gzip
from gateway.http.short_cache import MAX_CACHED_BYTES, short_cache

RULE = Rule(open=True)


def test_results_are_remembered_for_values_up_to_a_length_and_the_oldest_forgotten() -> None:
    asked: list[tuple[bytes, int]] = []

    @short_cache(2)
    def size(value: bytes, times: int) -> int:
        asked.append((value, times))
        return len(value) * times

    longest, longer = b"x" * MAX_CACHED_BYTES, b"x" * (MAX_CACHED_BYTES + 1)
    for _ in range(2):
        assert (size(longest, 2), size(longer, 2)) == (2048, 2050)
    assert asked == [(longest, 2), (longer, 2), (longer, 2)]
    assert size.__wrapped__.cache_info().currsize == 1
    for times in (3, 4, 2):
        size(longest, times)
    assert asked[3:] == [(longest, 3), (longest, 4), (longest, 2)]


def test_an_exception_is_not_remembered() -> None:
    @short_cache(2)
    def number(value: bytes) -> int:
        return int(value)

    with pytest.raises(ValueError, match="invalid literal"):
        number(b"x")
    assert number.__wrapped__.cache_info().currsize == 0


@pytest.mark.parametrize(
    ("function", "ask"),
    [
        (is_json, is_json),
        (accepts_gzip, accepts_gzip),
        (weight, lambda value: weight(value, b"text/plain")),
        (named, lambda value: named(value, b"text/plain")),
        (decide, lambda value: decide(RULE, value, b"", b"", False, False, False)),
        (decide, lambda value: decide(RULE, b"localhost", value, b"", False, False, False)),
        (decide, lambda value: decide(RULE, b"localhost", b"", value, False, False, False)),
    ],
)
def test_no_long_header_is_kept(function: Any, ask: Callable[[bytes], object]) -> None:
    ask(b"short")
    before = function.__wrapped__.cache_info().currsize
    assert before
    ask(b"x" * (MAX_CACHED_BYTES + 1))
    assert function.__wrapped__.cache_info().currsize == before

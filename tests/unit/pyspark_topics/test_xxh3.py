"""The fallback checksum returns the same numbers as the package xxhash."""

from __future__ import annotations

import random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pyspark_topics.xxh3 import BLOCK, CHUNK, portable

EDGES = [BLOCK, 2 * BLOCK, 17 * BLOCK, CHUNK * BLOCK, (CHUNK + 3) * BLOCK]
LENGTHS = [*range(300), *(edge + by for edge in EDGES for by in (-65, -64, -1, 0, 1, 63, 64))]


def test_every_length_at_which_the_method_changes() -> None:
    rng = random.Random(1)
    for length in LENGTHS:
        data = rng.randbytes(length)
        assert portable(data) == xxhash.xxh3_64_intdigest(data), length


@given(st.binary(max_size=3000))
def test_any_bytes(data: bytes) -> None:
    assert portable(data) == xxhash.xxh3_64_intdigest(data)


@pytest.mark.parametrize("fill", [b"\x00", b"\xff"])
def test_numbers_that_wrap_around(fill: bytes) -> None:
    assert portable(fill * 70_000) == xxhash.xxh3_64_intdigest(fill * 70_000)

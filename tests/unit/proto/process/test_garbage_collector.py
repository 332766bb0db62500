"""Which objects are searched for cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from proto.process.garbage_collector import MIDDLE, NEVER, YOUNG, calm


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_is_there_is_not_searched_and_what_comes_is() -> None:
    present = len(gc.get_objects())
    calm()
    assert gc.get_freeze_count() > present / 2
    assert len(gc.get_objects()) < present / 2
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() >= 1


@pytest.mark.parametrize(("old", "expected"), [(None, NEVER), (50, 50)])
def test_searches_are_rarer(old: int | None, expected: int) -> None:
    calm() if old is None else calm(old)
    assert gc.get_threshold() == (YOUNG, MIDDLE, expected)
    assert gc.isenabled()

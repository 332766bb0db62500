"""Claims about a shard of which one file is damaged, at a draw; and about the bar, which finds a shard that errs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from proto.format.frame import Header
from shardd.recovery import wal_scan
from shardd.storage import segment
from tests.history.damage import run

ENDS = 5
"""Kinds of them. A run that did not see each of them shows little."""
FIRST = 777
"""The seed of short runs, which are the same each time. The long run has a new one."""


def test_what_is_served_is_right_or_refused_and_a_repair_brings_all_back() -> None:
    figures = run(60, FIRST)
    assert figures.failures == []
    assert len(figures.ends) == ENDS


@pytest.mark.long
def test_so_it_is_in_many_draws() -> None:
    seed = random.SystemRandom().randrange(1, 1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    figures = run(2000, seed)
    assert figures.failures == []
    assert len(figures.ends) == ENDS


ERRORS: dict[str, tuple[Any, str, Any]] = {
    "frames of segments are not checked": (segment, "check", Header),
    "damage in the log is always cut off": (wal_scan._Log, "_refuse_damage", lambda *_: None),
}


@pytest.mark.parametrize("error", ERRORS)
def test_a_shard_that_errs_is_found(monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    monkeypatch.setattr(*ERRORS[error])
    assert any(run(50, FIRST + at).failures for at in range(0, 500, 50))


def test_a_copy_that_was_left_behind_is_put_back_where_it_was() -> None:
    """It has the delete flags of before: over the file in the cold tier it would be damage, not a repair."""
    assert run(1141, 9001, only=1140).failures == []

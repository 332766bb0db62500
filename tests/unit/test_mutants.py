"""Claims about the mutants: each still fits the product, and is found by a broken promise only. `make mutants` has the
bars find them."""

from __future__ import annotations

import ast
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.history.bar import Violation
from tests.mutants import hunt
from tests.mutants.catalogue import MUTANTS, ROOT, Edit, Mutant
from tests.support.service import until
from topics_history import violations


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_edit_of_a_mutant_fits_and_is_python(mutant: Mutant) -> None:
    for edit in mutant.edits:
        source = (ROOT / edit.path).read_text()
        changed = edit.applied(source)
        assert changed != source
        ast.parse(changed)


def test_each_promise_of_a_mutant_is_one_of_the_checker_or_of_its_bar() -> None:
    own = {
        name
        for path in (ROOT / "tests/history").glob("*.py")
        for name in re.findall(r'"([A-Z]\w+)", ', path.read_text())
    }
    known = own | {name for name, kind in vars(violations).items() if isinstance(kind, type)}
    assert {promise for mutant in MUTANTS for promise in mutant.promises} <= known
    assert all(mutant.promises for mutant in MUTANTS)


class Ended:
    """A run that ended with a report."""

    def __init__(self, **counts: int) -> None:
        self.report, self.counts = self, counts


class Ticking:
    """A clock on which each look takes a second."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 1
        return self._now


def fails(error: Exception) -> Callable[..., Any]:
    def run(*_: Any, **__: Any) -> Any:
        raise error

    return run


@pytest.mark.parametrize(
    ("run", "found", "told"),
    [
        (lambda *_, **__: Ended(), False, "no violation"),
        (lambda *_, **__: Ended(Lost=2), True, "2 Lost"),
        (lambda *_, **__: Ended(Doubled=2), False, "Doubled"),
        (fails(Violation("Lost", "seq 1")), True, "1 Lost"),
        (fails(Violation("Health", "it is slow")), False, "Health"),
        (fails(AssertionError("waited 60 s in vain\nlog")), False, "AssertionError: waited 60 s in vain"),
        (fails(KeyError("first_seq")), False, "KeyError"),
    ],
    ids=[
        "nothing",
        "its promise",
        "another one",
        "its promise, by the bar",
        "another one, by the bar",
        "no service",
        "a bug",
    ],
)
def test_only_a_broken_promise_of_the_mutant_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any], found: bool, told: str
) -> None:
    monkeypatch.setattr(hunt, "run", run)
    monkeypatch.setattr(hunt, "made", lambda *_: tmp_path)
    mutant = Mutant("m", 1, ("Lost",), (Edit("p", "a", "b"),))
    monkeypatch.setattr(hunt, "time", Ticking())
    was_found, runs = hunt.hunted(mutant, tmp_path, 5)
    assert was_found == found
    assert told in str(runs)
    assert (runs.runs > 1) != found, "it is tried again until the time is up"


def test_what_is_found_too_late_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: Any, **__: Any) -> Ended:
        ends = time.monotonic() + 0.06
        until(lambda: time.monotonic() > ends, "the end of the hunt")
        return Ended(Lost=1)

    monkeypatch.setattr(hunt, "made", lambda *_: tmp_path)
    monkeypatch.setattr(hunt, "run", late)
    found, runs = hunt.hunted(Mutant("m", 1, ("Lost",), (Edit("p", "a", "b"),)), tmp_path, 0.05)
    assert (found, runs.runs, runs.broken["Lost"]) == (False, 1, 1)


@pytest.mark.parametrize(("counts", "sound"), [({}, True), ({"Lost": 1}, False)], ids=["sound", "broken"])
def test_a_control_that_finds_something_keeps_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: dict[str, int], sound: bool
) -> None:
    def run(directory: Path, *_: Any, **__: Any) -> Any:
        (directory / "history.jsonl").touch()
        return Ended(**counts)

    monkeypatch.setattr(hunt, "run", run)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert hunt.control(1) == sound
    assert bool(list(tmp_path.rglob("history.jsonl"))) != sound

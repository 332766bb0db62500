"""Claims about the bar of several machines: its schedules break no promise, have all faults, and leave enough machines;
and a run that proved nothing says so."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.history import bars
from tests.history.clusters import FEWEST, KINDS, LEAST, NAMES, SPARE, STEPS, Clusters, Fault, missing
from tests.support.cluster import changes
from tests.support.network import NetworkError
from tests.support.programs import leave_out

SCHEDULES = 3


@pytest.mark.long
def test_a_few_schedules_break_no_promise(tmp_path: Path) -> None:
    first, counts = random.SystemRandom().randrange(1, 1 << 32), Counter[str]()
    for seed in range(first, first + SCHEDULES):
        (directory := tmp_path / str(seed)).mkdir()
        print(f"seed {seed}")  # noqa: T201 - shown when the test fails
        try:
            outcome = bars.run(directory, 13, 0, seed, faults=STEPS)
        except NetworkError as error:
            leave_out(f"the right to make networks ({error})")
        report = outcome.report
        assert (report.counts, report.unread) == ({}, []), [str(each) for each in report.violations[:5]]
        counts += outcome.counts
    assert missing(counts, SCHEDULES) == []


def test_a_change_of_the_holder_is_a_move_if_it_was_given_and_a_restart_is_none() -> None:
    terms = dict(enumerate(["one", "one", "two", "three", "one", "two"], 1))
    assert changes(terms, {2: "two", 3: "one", 5: "two"}) == {"moves": 2, "takeovers": 2}
    assert changes({1: "one"}, {1: "two"}) == {}


def test_a_run_without_faults_or_with_too_few_checks_proves_nothing() -> None:
    enough = {what: int(20 * share) for what, share in LEAST.items()}
    assert missing(enough, 20) == []
    for what in LEAST:
        (text,) = missing({**enough, what: enough[what] - 1}, 20)
        assert f" {what}," in text
    assert missing({**enough, **dict.fromkeys(KINDS, 0)}, 1) == ["no fault"]


class Drawn(Clusters):
    """Its faults only note whom they meet."""

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed, 1.0)
        self._cluster: Any = self
        self.machines = {name: object() for name in (*NAMES, *SPARE)}
        self.members = tuple(self.machines[name] for name in NAMES)
        self.met: set[str] = set()

    def _faults(self) -> dict[str, Any]:
        return {kind: lambda name, kind=kind: self._note(kind, name) for kind in KINDS}

    def _note(self, kind: str, name: str) -> Fault:
        machine = self.machines[name]
        assert name not in self.met, "two faults of a machine"
        assert (machine in self.members) == (kind != "join")
        self.met.add(name)
        if kind == "join":
            self.members = (*self.members, machine)
        yield 0.0
        self.met.remove(name)
        if kind == "leave":
            self.members = tuple(each for each in self.members if each is not machine)
        assert len(self.members) >= FEWEST


def test_schedules_have_all_faults_each_of_another_machine_and_leave_enough_machines(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in range(50):
        drawn = Drawn(tmp_path, seed)
        for _ in range(STEPS):
            drawn.strike(drawn)  # type: ignore[arg-type]
        counts += drawn.counts
    assert missing(counts + Counter({what: 5000 for what in LEAST if what not in KINDS}), 50) == []


def test_a_seed_draws_the_same_schedule_again(tmp_path: Path) -> None:
    told = [[Drawn(tmp_path, seed).strike(None)[0] for _ in range(2)] for seed in range(9)]  # type: ignore[arg-type]
    assert all(first == second for first, second in told)
    assert len({first for first, _ in told}) > 3

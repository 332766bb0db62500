"""Stories: a schedule that fails, without the steps that it does not need, in plain words."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.whole import cluster_runs, runs
from tests.simulation.whole.runs import Run, without
from tests.simulation.whole.schedule import Schedule

MOST_RUNS = 300
"""Runs in which steps are left out."""
Fails = Callable[[Schedule], bool]


def run(schedule: Schedule) -> Run:
    """Carry a schedule out, of one machine or several."""
    return cluster_runs.run(schedule) if schedule.skews_s else runs.run(schedule)


def shrunk(schedule: Schedule, fails: Fails) -> Schedule:
    """A schedule with as few steps as a greedy search finds, for which `fails` is true: halves, quarters and so on are
    left out, then single steps."""
    left, size = MOST_RUNS, max(len(schedule.steps) // 2, 1)
    while True:
        before, at = len(schedule.steps), 0
        while at < len(schedule.steps) and left:
            left -= 1
            fewer = without(schedule, {step.number for step in schedule.steps[at : at + size]})
            if fails(fewer):
                schedule = fewer
            else:
                at += size
        if not left or (size == 1 and len(schedule.steps) == before):
            return schedule
        size = max(size // 2, 1)


def told(found: Run) -> str:
    """The story of a run that failed, shrunk: it fails in the same way, but for its numbers."""
    kinds = {_kind(each) for each in found.found}
    schedule = shrunk(found.schedule, lambda each: bool(kinds & {_kind(one) for one in run(each).found}))
    again = run(schedule)
    return "\n".join(
        [
            f"TOPICS_TEST_SEED={schedule.seed}: {again.found[0]}",
            f"  topics {', '.join(f'{name} {schedule.config(name)}' for name in schedule.topics)}",
            *(f"  {step}" for step in schedule.steps),
            "and the end of what happened:",
            *(f"  {line}" for line in again.trace[-40:]),
            *(f"  {each}" for each in again.found),
        ]
    )


def _kind(text: str) -> str:
    """The first words of a violation, which stay when its numbers change."""
    return text.split(":")[0]

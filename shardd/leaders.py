"""Leaders: which machine held a shard, and from when on. Each term has the leaders so far, so the newest one has all.

Their number does not depend on topics. A list covers all time: its first leader leads from time 0 on, and consecutive
terms of one machine are one leader. A time is that of the machine's wall clock when it created its term. Commit times
of its records are later, and those of earlier leaders are before it, as far as clocks agree. "" is an unknown machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

KEPT = 64


class Leader(NamedTuple):
    from_ms: int
    machine: str


def followed_by(earlier: Sequence[Leader], machine: str, made_ms: int) -> list[Leader]:
    """The leaders of the term that `machine` made after one with the leaders `earlier`, of which the last ones are
    kept. What an earlier list lacks is not known."""
    known = list(earlier) or [Leader(0, "")]
    if known[-1].machine != machine:
        known.append(Leader(made_ms, machine))
    return known if len(known) <= KEPT else [Leader(0, ""), *known[1 - KEPT :]]


def runs(leaders: Sequence[Leader], first_since: Callable[[int], int], oldest: int) -> tuple[tuple[int, str], ...]:
    """From which seq of a topic on each machine led. `first_since` returns the first seq that was committed at a time
    or later. `oldest` is the first seq that has a commit time: before it, the leader is known if there was only one."""
    found: list[tuple[int, str]] = []
    before: set[str] = set()
    for from_ms, machine in leaders:
        first = first_since(from_ms)
        if first <= oldest:
            before.add(machine)
        while found and found[-1][0] >= first:  # it led while nothing was written, or its clock was ahead
            found.pop()
        found.append((first, machine))
    if not found:
        return ((1, ""),)
    if found[0][0] > 1:
        found.insert(0, (1, before.pop() if len(before) == 1 else ""))
    return tuple(found)

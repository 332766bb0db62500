"""Losses of a topic and their reasons: records that the server removed by caps or age, reported as tombstones.

Records are lost from the front, so losses are runs `(upto, reason)`: the live records up to `upto`, from the end of the
previous run, were lost for that reason. Deletions are not losses. There are also inner ranges of seqs without records:
a router's source had lost the records to copy, or an ephemeral topic was stopped. The latter has reason `cap`, as in
the server's answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_TOLD = {"restart": "cap"}


@dataclass(slots=True)
class Losses:
    """Losses as in a catalog: `runs` of `(upto, reason)` and `inner` of `(first, last, reason)`, both in seq order."""

    runs: list[tuple[int, str]] = field(default_factory=list)
    inner: Sequence[tuple[int, int, str]] = ()

    def __post_init__(self) -> None:
        self.runs = [(upto, _TOLD.get(reason, reason)) for upto, reason in self.runs]
        self.inner = [(first, last, _TOLD.get(reason, reason)) for first, last, reason in self.inner]

    def tail(self, first: int, last: int) -> None:
        """Add a loss by a stop, after all records."""
        self.inner = [*self.inner, (first, last, "cap")]

    @property
    def floor(self) -> int:
        """One past the highest seq lost from the front; 0 if there is no loss."""
        return self.runs[-1][0] + 1 if self.runs else 0

    def add(self, upto: int, reason: str) -> None:
        if self.floor > upto:
            return
        if self.runs and self.runs[-1][1] == reason:
            self.runs.pop()
        self.runs.append((upto, reason))

    def between(self, low: int, high: int, earliest: int) -> list[tuple[int, int, str]]:
        """Gaps for a reader of seqs `low` to `high`: first and last seq, reason. `earliest` is the topic's first live
        record. No gap begins before `low`, as in a tombstone, and a range without a seq has none."""
        if low > high:
            return []
        found = []
        # An inner range before the first live record counts as lost from the front.
        front = [(last, reason) for _, last, reason in self.inner if last < earliest]
        if low < max([self.floor, *(last + 1 for last, _ in front)]):
            reasons = {reason for upto, reason in [*self.runs, *front] if upto >= low}
            reason = reasons.pop() if len(reasons) == 1 else "mixed"
            found.append((low, min(max(earliest - 1, low), high), reason))
            low = earliest
        for first, last, reason in self.inner:
            if last >= low and first <= high and last >= earliest:
                found.append((max(first, low), min(last, high), reason))
        return found

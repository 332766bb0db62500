"""What a topic lost against its writers' will, and why: what the server tells its readers as tombstones.

Records are lost from the front, so losses are runs `(upto, reason)`: everything live up to `upto`, from where the run
before it ended, went for that reason. Deletions are no losses. Besides these there are ranges of seqs, between records,
that have none: a router's source had lost what was to be copied, or an ephemeral topic was stopped. The latter is told
as `cap`, as the server does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_TOLD = {"restart": "cap"}


@dataclass(slots=True)
class Losses:
    """As in a catalog: `runs` of `(upto, reason)`, `inner` of `(first, last, reason)`, both in seq order."""

    runs: list[tuple[int, str]] = field(default_factory=list)
    inner: Sequence[tuple[int, int, str]] = ()

    def __post_init__(self) -> None:
        self.runs = [(upto, _TOLD.get(reason, reason)) for upto, reason in self.runs]
        self.inner = [(first, last, _TOLD.get(reason, reason)) for first, last, reason in self.inner]

    def tail(self, first: int, last: int) -> None:
        """A stop took these, behind all that there is."""
        self.inner = [*self.inner, (first, last, "cap")]

    @property
    def floor(self) -> int:
        """One past the highest seq lost from the front; 0 if nothing ever was."""
        return self.runs[-1][0] + 1 if self.runs else 0

    def add(self, upto: int, reason: str) -> None:
        if self.floor > upto:
            return
        if self.runs and self.runs[-1][1] == reason:
            self.runs.pop()
        self.runs.append((upto, reason))

    def between(self, low: int, high: int, earliest: int) -> list[tuple[int, int, str]]:
        """What a reader who wants seqs `low` to `high` is told: first and last seq, reason. The topic's first live
        record is `earliest`. The first gap begins at `low` at the earliest, as a tombstone does."""
        found = []
        # A range that nothing is left before is lost from the front.
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

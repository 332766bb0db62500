"""What a topic lost against its will, and why: the memory behind tombstones.

Reasons are those of the API, and `RESTART`: what an ephemeral topic had in memory when its shard stopped. The API's
list of reasons has none for that and is closed, so readers are told `cap`, which is the nearest, and besides it the
`cause`, a field of its own.

Records leave in seq order, so the losses of a topic are runs `(upto, reason)`: everything live up to `upto`, from
where the run before it ended, went for that reason. Deletions are no losses and leave no trace here.
"""

from __future__ import annotations

MAX_RUNS = 64
RESTART = "restart"


class Losses:
    __slots__ = ("runs",)

    def __init__(self, runs: list[tuple[int, str]] | None = None) -> None:
        self.runs = runs if runs is not None else []

    @property
    def evict_floor(self) -> int:
        """One past the highest seq lost; 0 if nothing ever was."""
        return self.runs[-1][0] + 1 if self.runs else 0

    def add(self, upto: int, reason: str) -> None:
        """The record `upto` was lost, and every live one before it."""
        runs = self.runs
        if self.evict_floor > upto:
            return
        if runs and runs[-1][1] == reason:
            runs[-1] = (upto, reason)
            return
        runs.append((upto, reason))
        if len(runs) > MAX_RUNS:
            # The oldest gaps keep their range and lose their reason: nothing remembers that far back exactly.
            runs[:2] = [(runs[1][0], "mixed")]

    def reason(self, gap_from: int) -> str:
        """Why records from `gap_from` on are missing."""
        reasons = {reason for upto, reason in self.runs if upto >= gap_from}
        if len(reasons) > 1:
            reasons = {told(reason)[0] for reason in reasons}
        return reasons.pop() if len(reasons) == 1 else "mixed"


def told(reason: str) -> tuple[str, str | None]:
    """What readers are told: the reason, and the cause if there is more to say."""
    return ("cap", RESTART) if reason == RESTART else (reason, None)

"""The losses of a topic: records that expired, were evicted or vanished at a restart. Readers get them as tombstones.

Reasons are those of the API, and `RESTART` for records that an ephemeral topic had in memory when its shard stopped.
The API's list of reasons is closed and has none for that. So readers get `cap`, the nearest one, and a separate field
`cause`.

Records leave in seq order, so the losses are runs `(upto, reason)`. All live records up to `upto`, from the end of the
run before, were lost for that reason. Deletions are not losses and are not stored here.
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
        """One past the highest seq lost; 0 if no record was ever lost."""
        return self.runs[-1][0] + 1 if self.runs else 0

    def add(self, upto: int, reason: str) -> None:
        """Add the loss of record `upto` and of every live record before it."""
        runs = self.runs
        if self.evict_floor > upto:
            return
        if runs and runs[-1][1] == reason:
            runs[-1] = (upto, reason)
            return
        runs.append((upto, reason))
        if len(runs) > MAX_RUNS:
            # The two oldest runs become one without a reason of its own, so that memory stays bounded.
            runs[:2] = [(runs[1][0], "mixed")]

    def reason(self, gap_from: int) -> str:
        """The reason why records from `gap_from` on are missing; `mixed` if there are several."""
        reasons = {reason for upto, reason in self.runs if upto >= gap_from}
        if len(reasons) > 1:
            reasons = {told(reason)[0] for reason in reasons}
        return reasons.pop() if len(reasons) == 1 else "mixed"


def told(reason: str) -> tuple[str, str | None]:
    """Reason and cause for readers; the cause is None for the reasons of the API."""
    return ("cap", RESTART) if reason == RESTART else (reason, None)

"""Patience: answers requests whose changes wait too long for the bucket, and refuses new ones meanwhile.

A request that was staged gets `503` with `outcome: "unknown"`: its frame is in the log, and it commits when the bucket
has it. Its later answer is dropped. A request that comes while the bucket is that late is refused before anything of it
is staged, with `outcome: "not_done"`.

A parked request is not late: it waits for something else. It is watched again when its answer depends on a change.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from proto.ipc.message import Message, Reply
from proto.model.errors import TopicsError, not_ready
from shardd.changes.containment import Respond
from shardd.clock import Clock
from shardd.storage.group_commit import Commits

REASON = "bucket_away"


@dataclass(slots=True, eq=False, repr=False)
class _Open:
    """A request that is not answered yet."""

    ident: int
    respond: Respond
    due: float
    waits: bool = True
    """False once it was answered, or is parked: then it waits for something else."""
    expired: bool = False

    def __call__(self, message: Message) -> None:
        self.waits = False
        if not self.expired:
            self.respond(message)

    def expire(self, error: TopicsError) -> None:
        self(Reply(self.ident, error=error))
        self.expired = True


class Patience:
    def __init__(self, clock: Clock, commits: Commits, patience_ms: int) -> None:
        self._clock = clock
        self._commits = commits
        self._patience_s = patience_ms / 1000
        self._open: deque[_Open] = deque()

    def check(self) -> None:
        """Raises `503` if the bucket is late. Call it before anything is staged that requires a sync."""
        if self._commits.oldest_wait_s >= self._patience_s:
            raise self._error("nothing was written", "not_done")

    def watch(self, ident: int, respond: Respond) -> Respond:
        """The `respond` of a request that is called in time, from now on."""
        watched = _Open(ident, respond, self._clock.monotonic() + self._patience_s)
        self._open.append(watched)
        return watched

    def expire(self) -> None:
        """Answer the requests that waited too long. Called now and then."""
        now = self._clock.monotonic()
        while self._open and (not self._open[0].waits or self._open[0].due <= now):
            late = self._open.popleft()
            if late.waits:
                late.expire(self._error("the change is logged here and may count", "unknown"))

    def _error(self, what: str, outcome: str) -> TopicsError:
        return not_ready(
            f"the bucket has not confirmed a change for {self._patience_s:g} s, so this machine's loss would lose it; "
            f"{what}. Retry with an idempotency key",
            reason=REASON,
            outcome=outcome,
        )

"""The hand-over of one shard, on the machine that gives it away. No I/O, no clock.

    offering    the entry of the move is being created (`shardd.roster.moves`)
    saving      a checkpoint is being made and uploaded, so that the next holder replays little; requests are answered
    refusing    requests get `moving`, and were not done; what was staged is being shipped
    ending      the end of the term is being created; there is no way back, since it may exist before its answer is here
    given       the term has ended; the target claims
    void        given up: the shard is served as before
    lost        the shard has no term of this process any more

The giver gives up before the end when the target may be lost, is leaving, or was started again; when the entry is not
ours; when two thirds of the time have passed after which others take the entry for void; and when requests were refused
for as long as gateways hold them.
"""

from __future__ import annotations

from enum import StrEnum

from shardd.roster.members import Member, RosterTiming
from shardd.roster.moves import Move


class HandOverState(StrEnum):
    OFFERING = "offering"
    SAVING = "saving"
    REFUSING = "refusing"
    ENDING = "ending"
    GIVEN = "given"
    VOID = "void"
    LOST = "lost"


class HandOverEvent(StrEnum):
    OURS = "ours"
    """A look that began after the entry's creation shows that it is the last one."""
    SAVED = "saved"
    """The checkpoint is in the bucket."""
    SHIPPED = "shipped"
    """All that was staged is in the bucket."""
    ENDED = "ended"
    """The end of the term is in the log."""
    GIVEN_UP = "given up"
    LOST = "lost"
    """Another process has the term's shard, or this one has no term of it any more."""


_BACK = {HandOverEvent.GIVEN_UP: HandOverState.VOID, HandOverEvent.LOST: HandOverState.LOST}
TRANSITIONS: dict[HandOverState, dict[HandOverEvent, HandOverState]] = {
    HandOverState.OFFERING: {HandOverEvent.OURS: HandOverState.SAVING, **_BACK},
    HandOverState.SAVING: {HandOverEvent.SAVED: HandOverState.REFUSING, **_BACK},
    HandOverState.REFUSING: {HandOverEvent.SHIPPED: HandOverState.ENDING, **_BACK},
    HandOverState.ENDING: {HandOverEvent.ENDED: HandOverState.GIVEN, HandOverEvent.LOST: HandOverState.LOST},
    HandOverState.GIVEN: {},
    HandOverState.VOID: {},
    HandOverState.LOST: {},
}
OVER = frozenset({HandOverState.GIVEN, HandOverState.VOID, HandOverState.LOST})


class HandOver:
    def __init__(self, move: Move, target_nonce: str, timing: RosterTiming, now: float) -> None:
        self.state = HandOverState.OFFERING
        self.move = move
        self.creates = True
        """Whether the entry is to be created. A look comes after that."""
        self._target_nonce = target_nonce
        self._timing = timing
        self._began = now
        self._refused_at: float | None = None

    @property
    def over(self) -> bool:
        return self.state in OVER

    def meet(self, event: HandOverEvent, now: float) -> None:
        """Late and repeated events change nothing."""
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            return
        self.state = following
        if following is HandOverState.REFUSING:
            self._refused_at = now

    def tick(self, now: float, target: Member | None) -> None:
        """Give up what takes too long, or leads nowhere. `target` is the member; None if it may be lost."""
        late = now - self._began >= self._timing.void * 2 / 3
        late = late or (self._refused_at is not None and now - self._refused_at >= self._timing.patience)
        if late or target is None or target.leaving or target.nonce != self._target_nonce:
            self.meet(HandOverEvent.GIVEN_UP, now)

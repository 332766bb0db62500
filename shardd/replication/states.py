"""State machine of a shard's replica, as data: state → event → state.

    STANDBY   claim → CLAIMING
    CLAIMING  ours → FENCING · lost → STANDBY
    FENCING   fenced → CHECKING · lost → STANDBY
    CHECKING  placed → HOLDING · misplaced → FENCING · lost → STANDBY
    HOLDING   drain → DRAINING · lost → DEPOSED
    DRAINING  drain → DRAINING · ended → DRAINED · lost → DEPOSED

    standby    another machine holds the shard, or none does yet; the replica follows the log
    claiming   the present term is over; the next one is being created
    fencing    the term is this replica's; parts of earlier terms are applied until a fence could be created
    checking   a fence was created; is its number really the first free one?
    holding    the shard's writes and reads are answered here
    draining   no new writes; what is left is shipped, then the end of the term
    drained    the term ended in order
    deposed    a later term exists: nothing may be answered any more

`drained` and `deposed` end the replica. Its process makes another one, which begins as `standby`. Whether a holder may
answer is not a state but a question of time: `Replica.serving` of `shardd.replication.protocol`.
"""

from __future__ import annotations

from enum import StrEnum


class ReplicaState(StrEnum):
    STANDBY = "standby"
    CLAIMING = "claiming"
    FENCING = "fencing"
    CHECKING = "checking"
    HOLDING = "holding"
    DRAINING = "draining"
    DRAINED = "drained"
    DEPOSED = "deposed"


class ReplicaEvent(StrEnum):
    CLAIM = "claim"
    """The present term is over."""
    OURS = "ours"
    """A look shows that the newest term is this replica's."""
    FENCED = "fenced"
    """The fence is in the log."""
    PLACED = "placed"
    """No part with the fence's number was ever there before it."""
    MISPLACED = "misplaced"
    """Retention has passed the fence's number, so the log ends further on."""
    DRAIN = "drain"
    """The process is to end, or gives the shard up."""
    ENDED = "ended"
    """The end of the term is in the log."""
    LOST = "lost"
    """A later term, or another replica's part, is where this replica's would be."""


TRANSITIONS: dict[ReplicaState, dict[ReplicaEvent, ReplicaState]] = {
    ReplicaState.STANDBY: {ReplicaEvent.CLAIM: ReplicaState.CLAIMING},
    ReplicaState.CLAIMING: {ReplicaEvent.OURS: ReplicaState.FENCING, ReplicaEvent.LOST: ReplicaState.STANDBY},
    ReplicaState.FENCING: {ReplicaEvent.FENCED: ReplicaState.CHECKING, ReplicaEvent.LOST: ReplicaState.STANDBY},
    ReplicaState.CHECKING: {
        ReplicaEvent.PLACED: ReplicaState.HOLDING,
        ReplicaEvent.MISPLACED: ReplicaState.FENCING,
        ReplicaEvent.LOST: ReplicaState.STANDBY,
    },
    ReplicaState.HOLDING: {ReplicaEvent.DRAIN: ReplicaState.DRAINING, ReplicaEvent.LOST: ReplicaState.DEPOSED},
    ReplicaState.DRAINING: {
        ReplicaEvent.DRAIN: ReplicaState.DRAINING,
        ReplicaEvent.ENDED: ReplicaState.DRAINED,
        ReplicaEvent.LOST: ReplicaState.DEPOSED,
    },
    ReplicaState.DRAINED: {},
    ReplicaState.DEPOSED: {},
}
OWNING = frozenset({ReplicaState.FENCING, ReplicaState.CHECKING, ReplicaState.HOLDING, ReplicaState.DRAINING})
"""States in which the newest term is, as far as is known, this replica's. It is renewed."""
HOLDERS = frozenset({ReplicaState.HOLDING, ReplicaState.DRAINING})
"""States in which requests may be answered, as long as the term could be renewed."""
FINAL = frozenset({ReplicaState.DRAINED, ReplicaState.DEPOSED})


def after(state: ReplicaState, event: ReplicaEvent) -> ReplicaState:
    """The state after `event`. Raises `AssertionError` for an event that is impossible in `state`, which is a bug."""
    following = TRANSITIONS[state].get(event)
    assert following is not None, f"event {event} in state {state}"
    return following

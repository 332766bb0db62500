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


class State(StrEnum):
    STANDBY = "standby"
    CLAIMING = "claiming"
    FENCING = "fencing"
    CHECKING = "checking"
    HOLDING = "holding"
    DRAINING = "draining"
    DRAINED = "drained"
    DEPOSED = "deposed"


class Event(StrEnum):
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


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.STANDBY: {Event.CLAIM: State.CLAIMING},
    State.CLAIMING: {Event.OURS: State.FENCING, Event.LOST: State.STANDBY},
    State.FENCING: {Event.FENCED: State.CHECKING, Event.LOST: State.STANDBY},
    State.CHECKING: {Event.PLACED: State.HOLDING, Event.MISPLACED: State.FENCING, Event.LOST: State.STANDBY},
    State.HOLDING: {Event.DRAIN: State.DRAINING, Event.LOST: State.DEPOSED},
    State.DRAINING: {Event.DRAIN: State.DRAINING, Event.ENDED: State.DRAINED, Event.LOST: State.DEPOSED},
    State.DRAINED: {},
    State.DEPOSED: {},
}
OWNING = frozenset({State.FENCING, State.CHECKING, State.HOLDING, State.DRAINING})
"""States in which the newest term is, as far as is known, this replica's. It is renewed."""
HOLDERS = frozenset({State.HOLDING, State.DRAINING})
"""States in which requests may be answered, as long as the term could be renewed."""
FINAL = frozenset({State.DRAINED, State.DEPOSED})


def after(state: State, event: Event) -> State:
    """The state after `event`. Raises `AssertionError` for an event that is impossible in `state`, which is a bug."""
    following = TRANSITIONS[state].get(event)
    assert following is not None, f"event {event} in state {state}"
    return following

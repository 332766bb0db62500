"""State machine of a job, as data: state → event → state.

    FRESH         claim → LEASED · order → TRANSFERRING · schedule → SCHEDULED
    READY         claim → LEASED · order → TRANSFERRING · ack → DELETING · arrive → ARRIVED
    LEASED        end → READY · release → READY · postpone → DELAYED · ack → DELETING · arrive → ARRIVED
    DELAYED       end → READY · order → TRANSFERRING · arrive → ARRIVED
    SCHEDULED     end → READY · order → TRANSFERRING · arrive → ARRIVED
    TRANSFERRING  order → TRANSFERRING · call_back → READY · arrive → ARRIVED
    DELETING      arrive → DELETING
    ARRIVED       arrive → ARRIVED

A change that is undone, a row of the log or of a catalog, and the time of a delayed record that is replayed set a state
without an event. When a job's record is gone, its entry goes in any state.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class State(IntEnum):
    """The numbers are those of the rows in the log and in catalogs."""

    FRESH = 0
    """Never delivered. The job has no entry in the table."""
    READY = 1
    LEASED = 2
    DELAYED = 3
    """Its last holder sent it back with a delay."""
    TRANSFERRING = 4
    """In the outbox: no claim gets it."""
    DELETING = 5
    """It is acked, and its deletion is staged."""
    SCHEDULED = 6
    """Published with a delay."""
    ARRIVED = 7
    """It is in the other topic, and its deletion here is staged."""


class Event(StrEnum):
    CLAIM = "claim"
    SCHEDULE = "schedule"
    """The record of a delayed job was committed."""
    END = "end"
    """The deadline of its lease has passed, or its delay is over."""
    RELEASE = "release"
    """Its holder sent it back, or disconnected."""
    POSTPONE = "postpone"
    """Its holder sent it back with a delay."""
    ACK = "ack"
    """Its last holder has done it. The lease may have ended."""
    ORDER = "order"
    """It goes to another topic, or from one target to another: a dead letter or a redrive."""
    CALL_BACK = "call_back"
    """It does not go to another topic: the target refused it, or the order failed."""
    ARRIVE = "arrive"
    """It is in the other topic."""


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.FRESH: {Event.CLAIM: State.LEASED, Event.ORDER: State.TRANSFERRING, Event.SCHEDULE: State.SCHEDULED},
    State.READY: {
        Event.CLAIM: State.LEASED,
        Event.ORDER: State.TRANSFERRING,
        Event.ACK: State.DELETING,
        Event.ARRIVE: State.ARRIVED,
    },
    State.LEASED: {
        Event.END: State.READY,
        Event.RELEASE: State.READY,
        Event.POSTPONE: State.DELAYED,
        Event.ACK: State.DELETING,
        Event.ARRIVE: State.ARRIVED,
    },
    State.DELAYED: {Event.END: State.READY, Event.ORDER: State.TRANSFERRING, Event.ARRIVE: State.ARRIVED},
    State.SCHEDULED: {Event.END: State.READY, Event.ORDER: State.TRANSFERRING, Event.ARRIVE: State.ARRIVED},
    State.TRANSFERRING: {
        Event.ORDER: State.TRANSFERRING,
        Event.CALL_BACK: State.READY,
        Event.ARRIVE: State.ARRIVED,
    },
    # A target that is asked again tells of the whole batch that it has, in a restored copy also of jobs that have left.
    State.DELETING: {Event.ARRIVE: State.DELETING},
    State.ARRIVED: {Event.ARRIVE: State.ARRIVED},
}
DELAYS = (State.DELAYED, State.SCHEDULED)
TIMED = (State.LEASED, *DELAYS)
"""States that end by time."""
GOING = (State.DELETING, State.ARRIVED)
"""States of a staged deletion. No row has them: if the deletion's frame is lost, the job comes back."""
LASTING = (State.TRANSFERRING, State.SCHEDULED)
"""States that do not depend on leases: a crash never loses them."""


def following(event: Event) -> dict[State, State]:
    """State → state after `event`. A state that is missing cannot have the event, which is a bug."""
    return {state: row[event] for state, row in TRANSITIONS.items() if event in row}

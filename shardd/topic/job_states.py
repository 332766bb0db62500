"""State machine of a job, as data: event → state → state.

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


class JobState(IntEnum):
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


class JobEvent(StrEnum):
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
    """It does not go to another topic: the target refused it."""
    ARRIVE = "arrive"
    """It is in the other topic."""


DELAYS = (JobState.DELAYED, JobState.SCHEDULED)
TIMED = (JobState.LEASED, *DELAYS)
"""States that end by time."""
GOING = (JobState.DELETING, JobState.ARRIVED)
"""States of a staged deletion. No row has them: if the deletion's frame is lost, the job comes back."""
LASTING = (JobState.TRANSFERRING, JobState.SCHEDULED)
"""States that do not depend on leases: a crash never loses them."""
FOLLOWING: dict[JobEvent, dict[JobState, JobState]] = {
    JobEvent.CLAIM: dict.fromkeys((JobState.FRESH, JobState.READY), JobState.LEASED),
    JobEvent.SCHEDULE: {JobState.FRESH: JobState.SCHEDULED},
    JobEvent.END: dict.fromkeys(TIMED, JobState.READY),
    JobEvent.RELEASE: {JobState.LEASED: JobState.READY},
    JobEvent.POSTPONE: {JobState.LEASED: JobState.DELAYED},
    JobEvent.ACK: dict.fromkeys((JobState.READY, JobState.LEASED), JobState.DELETING),
    JobEvent.ORDER: dict.fromkeys(
        (JobState.FRESH, JobState.READY, *DELAYS, JobState.TRANSFERRING), JobState.TRANSFERRING
    ),
    JobEvent.CALL_BACK: {JobState.TRANSFERRING: JobState.READY},
    # A target that is asked again tells of the whole batch that it has, in a restored copy also of jobs that have left.
    JobEvent.ARRIVE: dict.fromkeys((JobState.READY, *TIMED, JobState.TRANSFERRING, JobState.ARRIVED), JobState.ARRIVED)
    | {JobState.DELETING: JobState.DELETING},
}
"""Event → state → state after it. A state that is missing cannot have the event, which is a bug."""

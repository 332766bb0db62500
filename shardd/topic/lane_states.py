"""State machine of a lane that copies, as data: event → state → state.

    COPYING   fits → COPYING · short → WAITING · empty → WAITING
    WAITING   fits → COPYING · short → WAITING · empty → WAITING · log_wait → STOPPED
    STOPPED   fits → COPYING · short → WAITING · empty → STOPPED · log_wait → STOPPED

The first wait of a lane is not logged, because mostly there is room at once. `log_wait` and leaving STOPPED are logged
with the lane's position: a restart copies nothing that there was no room for.
"""

from __future__ import annotations

from enum import StrEnum


class LaneState(StrEnum):
    COPYING = "copying"
    WAITING = "waiting"
    """The cap over all topics had no room for the last copies."""
    STOPPED = "stopped"
    """It waits, and the log has this."""


class LaneEvent(StrEnum):
    FITS = "fits"
    """There is room for all copies."""
    SHORT = "short"
    """There is room for some copies."""
    EMPTY = "empty"
    """There is room for no copy."""
    LOG_WAIT = "log_wait"
    """The lane waits again and nothing was copied; its topic is logged."""


FOLLOWING: dict[LaneEvent, dict[LaneState, LaneState]] = {
    LaneEvent.FITS: dict.fromkeys(LaneState, LaneState.COPYING),
    LaneEvent.SHORT: dict.fromkeys(LaneState, LaneState.WAITING),
    LaneEvent.EMPTY: {**dict.fromkeys(LaneState, LaneState.WAITING), LaneState.STOPPED: LaneState.STOPPED},
    LaneEvent.LOG_WAIT: dict.fromkeys((LaneState.WAITING, LaneState.STOPPED), LaneState.STOPPED),
}
"""Event → state → state after it. A state that is missing cannot have the event, which is a bug."""

"""State machine of a lane that copies, as data: state → event → state.

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


TRANSITIONS: dict[LaneState, dict[LaneEvent, LaneState]] = {
    LaneState.COPYING: {
        LaneEvent.FITS: LaneState.COPYING,
        LaneEvent.SHORT: LaneState.WAITING,
        LaneEvent.EMPTY: LaneState.WAITING,
    },
    LaneState.WAITING: {
        LaneEvent.FITS: LaneState.COPYING,
        LaneEvent.SHORT: LaneState.WAITING,
        LaneEvent.EMPTY: LaneState.WAITING,
        LaneEvent.LOG_WAIT: LaneState.STOPPED,
    },
    LaneState.STOPPED: {
        LaneEvent.FITS: LaneState.COPYING,
        LaneEvent.SHORT: LaneState.WAITING,
        LaneEvent.EMPTY: LaneState.STOPPED,
        LaneEvent.LOG_WAIT: LaneState.STOPPED,
    },
}

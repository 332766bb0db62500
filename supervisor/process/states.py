"""State machine of a child, as data: state → event → state.

idle      not started yet
starting  the process runs and prepares
serving   the child sent `Ready`
leaving   the child hands its work over; the next process of it is started then
waiting   the child died and is restarted after a pause
held      the child cannot start, or died too often; it is restarted after a long pause
elsewhere no process is wanted: another machine sees to the shard
stopping  the child was asked to end
ended     the child is gone, as requested
failed    the child is gone and is not restarted

A state is the supervisor's alone. The gateway and the shards get a phase (`proto.ipc.control`). Its `failed` has
another meaning: the child cannot start, and is in state waiting or held.
"""

from __future__ import annotations

from enum import StrEnum


class ChildState(StrEnum):
    IDLE = "idle"
    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"
    WAITING = "waiting"
    HELD = "held"
    ELSEWHERE = "elsewhere"
    STOPPING = "stopping"
    ENDED = "ended"
    FAILED = "failed"


class ChildEvent(StrEnum):
    SPAWN = "spawn"
    """A process was started, or could not be started."""
    READY = "ready"
    """The child sent `Ready`."""
    REPLACE = "replace"
    """The process is to end, and another one to be started when one is wanted."""
    DIED = "died"
    """The process is gone."""
    STOP = "stop"
    """The service asked the child to end."""
    REST = "rest"
    """No process is wanted."""
    HOLD = "hold"
    """A child that is not vital died too often or sent `Failed`."""
    GIVE_UP = "give_up"
    """A vital child died too often or sent `Failed`."""


TRANSITIONS: dict[ChildState, dict[ChildEvent, ChildState]] = {
    ChildState.IDLE: {
        ChildEvent.SPAWN: ChildState.STARTING,
        ChildEvent.REST: ChildState.ELSEWHERE,
        ChildEvent.STOP: ChildState.ENDED,
    },
    ChildState.STARTING: {
        ChildEvent.READY: ChildState.SERVING,
        ChildEvent.REPLACE: ChildState.LEAVING,
        ChildEvent.DIED: ChildState.WAITING,
        ChildEvent.STOP: ChildState.STOPPING,
    },
    ChildState.SERVING: {
        ChildEvent.READY: ChildState.SERVING,
        ChildEvent.REPLACE: ChildState.LEAVING,
        ChildEvent.DIED: ChildState.WAITING,
        ChildEvent.STOP: ChildState.STOPPING,
    },
    ChildState.LEAVING: {
        ChildEvent.READY: ChildState.LEAVING,
        ChildEvent.DIED: ChildState.WAITING,
        ChildEvent.STOP: ChildState.STOPPING,
    },
    ChildState.WAITING: {
        ChildEvent.SPAWN: ChildState.STARTING,
        ChildEvent.STOP: ChildState.ENDED,
        ChildEvent.REST: ChildState.ELSEWHERE,
        ChildEvent.HOLD: ChildState.HELD,
        ChildEvent.GIVE_UP: ChildState.FAILED,
    },
    ChildState.HELD: {
        ChildEvent.SPAWN: ChildState.STARTING,
        ChildEvent.REST: ChildState.ELSEWHERE,
        ChildEvent.STOP: ChildState.ENDED,
    },
    ChildState.ELSEWHERE: {ChildEvent.SPAWN: ChildState.STARTING, ChildEvent.STOP: ChildState.ENDED},
    # A child may send `Ready` just before it reads `Stop`.
    ChildState.STOPPING: {
        ChildEvent.READY: ChildState.STOPPING,
        ChildEvent.STOP: ChildState.STOPPING,
        ChildEvent.DIED: ChildState.ENDED,
    },
    ChildState.ENDED: {ChildEvent.STOP: ChildState.ENDED},
    ChildState.FAILED: {ChildEvent.STOP: ChildState.FAILED},
}
FINAL = frozenset({ChildState.ENDED, ChildState.FAILED})


def after(state: ChildState, event: ChildEvent) -> ChildState:
    """The state after `event`. Raises `AssertionError` for an event that is impossible in `state`, which is a bug."""
    following = TRANSITIONS[state].get(event)
    assert following is not None, f"event {event} in state {state}"
    return following

"""State machine of a child, as data: state → event → state.

idle      not started yet
starting  the process runs and prepares
serving   the child sent `Ready`
waiting   the child died and is restarted after a pause
held      the child cannot start, or died too often; it is restarted after a long pause
stopping  the child was asked to end
ended     the child is gone, as requested
failed    the child is gone and is not restarted

A state is the supervisor's alone. The gateway and the shards get a phase (`proto.ipc.control`). Its `failed` has
another meaning: the child cannot start, and is in state waiting or held.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    IDLE = "idle"
    STARTING = "starting"
    SERVING = "serving"
    WAITING = "waiting"
    HELD = "held"
    STOPPING = "stopping"
    ENDED = "ended"
    FAILED = "failed"


class Event(StrEnum):
    SPAWN = "spawn"
    """A process was started, or could not be started."""
    READY = "ready"
    """The child sent `Ready`."""
    DIED = "died"
    """The process is gone."""
    STOP = "stop"
    """The service asked the child to end."""
    HOLD = "hold"
    """A child that is not vital died too often or sent `Failed`."""
    GIVE_UP = "give_up"
    """A vital child died too often or sent `Failed`."""


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.IDLE: {Event.SPAWN: State.STARTING, Event.STOP: State.ENDED},
    State.STARTING: {
        Event.READY: State.SERVING,
        Event.DIED: State.WAITING,
        Event.STOP: State.STOPPING,
    },
    State.SERVING: {
        Event.READY: State.SERVING,
        Event.DIED: State.WAITING,
        Event.STOP: State.STOPPING,
    },
    State.WAITING: {
        Event.SPAWN: State.STARTING,
        Event.STOP: State.ENDED,
        Event.HOLD: State.HELD,
        Event.GIVE_UP: State.FAILED,
    },
    State.HELD: {Event.SPAWN: State.STARTING, Event.STOP: State.ENDED},
    # A child may send `Ready` just before it reads `Stop`.
    State.STOPPING: {Event.READY: State.STOPPING, Event.STOP: State.STOPPING, Event.DIED: State.ENDED},
    State.ENDED: {Event.STOP: State.ENDED},
    State.FAILED: {Event.STOP: State.FAILED},
}
ALIVE = frozenset({State.STARTING, State.SERVING, State.STOPPING})
"""States in which a process exists."""
FINAL = frozenset({State.ENDED, State.FAILED})


def after(state: State, event: Event) -> State:
    """The state after `event`. Raises `AssertionError` for an event that is impossible in `state`, which is a bug."""
    following = TRANSITIONS[state].get(event)
    assert following is not None, f"event {event} in state {state}"
    return following

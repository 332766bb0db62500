"""The life of a child, as data: state → event → state.

idle      not started yet
starting  the process runs and prepares
serving   it said that it is ready
waiting   it died; the next one is started after a pause
held      it cannot start, or died too often; the next one is started after a long pause
stopping  it was asked to end
ended     it is gone, as asked
failed    it is gone, and starting it again is pointless
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
    """a process was started"""
    READY = "ready"
    """it said so"""
    DIED = "died"
    """it is gone"""
    STOP = "stop"
    """the service wants it to end"""
    HOLD = "hold"
    """it died too often, or said itself that it cannot go on; the service can do without it for a while"""
    GIVE_UP = "give_up"
    """the same, and the service cannot do without it"""


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
    # A child may say that it is ready just before it reads that it shall stop.
    State.STOPPING: {Event.READY: State.STOPPING, Event.STOP: State.STOPPING, Event.DIED: State.ENDED},
    State.ENDED: {Event.STOP: State.ENDED},
    State.FAILED: {Event.STOP: State.FAILED},
}
ALIVE = frozenset({State.STARTING, State.SERVING, State.STOPPING})
"""States in which there is a process."""
FINAL = frozenset({State.ENDED, State.FAILED})


def after(state: State, event: Event) -> State:
    """Raises `AssertionError` for an event that cannot happen in `state`: a mistake of ours."""
    following = TRANSITIONS[state].get(event)
    assert following is not None, f"event {event} in state {state}"
    return following

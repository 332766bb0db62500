"""State machines of a stream and of a subscription, as data: state → event → state.

A stream is one connection:

    serving ── stalled ──► dropped
    dropped ── sent ──► serving
    serving, dropped ── end ──► ending
    serving, dropped, ending ── leave ──► gone

    serving   its frames are sent
    dropped   the client has read nothing for a while, so the queue was dropped; its records can be read again
    ending    a last frame is sent, then the stream is over
    gone      the client left, or the stream is ended without a last frame

A subscription is one topic of a stream:

    behind ── catch_up ──► live
    live ── fall_behind ──► behind
    behind, live ── end ──► over

    behind    reads batches by itself
    live      gets the batches of the feed
    over      the topic was deleted, or the client does not watch it any more

Events that leave the state as it is are in the tables, and not drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar


class StreamState(StrEnum):
    SERVING = "serving"
    DROPPED = "dropped"
    ENDING = "ending"
    GONE = "gone"


class StreamEvent(StrEnum):
    SENT = "sent"
    """The connection took a frame."""
    STALLED = "stalled"
    """It has taken none for `buffer_grace_ms`."""
    END = "end"
    """The stream got its last frame."""
    LEAVE = "leave"
    """The client left, or the service gives it up."""


class SubscriptionState(StrEnum):
    BEHIND = "behind"
    LIVE = "live"
    OVER = "over"


class SubscriptionEvent(StrEnum):
    CATCH_UP = "catch_up"
    """The subscription has read up to the head and joined the feed."""
    FALL_BEHIND = "fall_behind"
    """The queue is full, the feed ended, or the positions do not fit."""
    END = "end"


STREAM: dict[StreamState, dict[StreamEvent, StreamState]] = {
    StreamState.SERVING: {
        StreamEvent.SENT: StreamState.SERVING,
        StreamEvent.STALLED: StreamState.DROPPED,
        StreamEvent.END: StreamState.ENDING,
        StreamEvent.LEAVE: StreamState.GONE,
    },
    StreamState.DROPPED: {
        StreamEvent.SENT: StreamState.SERVING,
        StreamEvent.STALLED: StreamState.DROPPED,
        StreamEvent.END: StreamState.ENDING,
        StreamEvent.LEAVE: StreamState.GONE,
    },
    # The frame that was being sent when the last one came may still be taken.
    StreamState.ENDING: {
        StreamEvent.SENT: StreamState.ENDING,
        StreamEvent.END: StreamState.ENDING,
        StreamEvent.LEAVE: StreamState.GONE,
    },
    StreamState.GONE: {
        StreamEvent.SENT: StreamState.GONE,
        StreamEvent.END: StreamState.GONE,
        StreamEvent.LEAVE: StreamState.GONE,
    },
}
SUBSCRIPTION: dict[SubscriptionState, dict[SubscriptionEvent, SubscriptionState]] = {
    SubscriptionState.BEHIND: {
        SubscriptionEvent.CATCH_UP: SubscriptionState.LIVE,
        SubscriptionEvent.FALL_BEHIND: SubscriptionState.BEHIND,
        SubscriptionEvent.END: SubscriptionState.OVER,
    },
    SubscriptionState.LIVE: {
        SubscriptionEvent.FALL_BEHIND: SubscriptionState.BEHIND,
        SubscriptionEvent.END: SubscriptionState.OVER,
    },
    # A feed or a read that ends may still call a subscription that is over.
    SubscriptionState.OVER: {
        SubscriptionEvent.FALL_BEHIND: SubscriptionState.OVER,
        SubscriptionEvent.END: SubscriptionState.OVER,
    },
}
OPEN = frozenset({StreamState.SERVING, StreamState.DROPPED})
"""States in which a stream takes frames."""

S = TypeVar("S", StreamState, SubscriptionState)
E = TypeVar("E", StreamEvent, SubscriptionEvent)


def after(table: Mapping[S, Mapping[E, S]], state: S, event: E) -> S:
    """The state after `event`. Raises `AssertionError` for an event that is impossible in `state`, which is a bug."""
    following = table[state].get(event)
    assert following is not None, f"event {event} in state {state}"
    return following

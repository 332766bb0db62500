"""The states of a lane that copies: the table is what the docstring draws, and a lane follows it."""

from __future__ import annotations

import pytest

from shardd.topic import lane_states
from shardd.topic.lane import Lane, load
from shardd.topic.lane_states import FOLLOWING, LaneEvent, LaneState
from tests.support.state_tables import by_state, drawn

TRANSITIONS = by_state(FOLLOWING, LaneState)


def test_the_docstring_draws_the_table() -> None:
    assert drawn(lane_states.__doc__, LaneState, LaneEvent) == TRANSITIONS


@pytest.mark.parametrize("event", LaneEvent)
@pytest.mark.parametrize("state", LaneState)
def test_a_lane_follows_the_table(state: LaneState, event: LaneEvent) -> None:
    lane = Lane("source", 1, 0, 0, 1, state=state)
    if event in TRANSITIONS[state]:
        lane.happens(event)
        assert lane.state is TRANSITIONS[state][event]
    else:
        with pytest.raises(KeyError):
            lane.happens(event)


@pytest.mark.parametrize("state", LaneState)
def test_the_log_has_whether_a_lane_is_stopped(state: LaneState) -> None:
    lane = Lane("source", 1, 0, 0, 1, state=state)
    assert (lane.waits, lane.stopped) == (state is not LaneState.COPYING, state is LaneState.STOPPED)
    assert load(lane.dump(0)).state is (LaneState.STOPPED if lane.stopped else LaneState.COPYING)


def test_only_a_lane_that_waits_already_logs_it() -> None:
    assert [state for state in LaneState if LaneEvent.LOG_WAIT in TRANSITIONS[state]] == [
        LaneState.WAITING,
        LaneState.STOPPED,
    ]

"""State machine of a child."""

from __future__ import annotations

import itertools

import pytest

from supervisor.process.states import FINAL, TRANSITIONS, ChildEvent, ChildState, after

ALIVE = {ChildState.STARTING, ChildState.SERVING, ChildState.LEAVING, ChildState.STOPPING}
"""States in which a process exists."""


def test_every_state_is_in_the_table_and_reachable() -> None:
    assert set(TRANSITIONS) == set(ChildState)
    reached = {ChildState.IDLE}
    for _ in ChildState:
        reached |= {following for state in reached for following in TRANSITIONS[state].values()}
    assert reached == set(ChildState)


def test_final_states_are_left_by_nothing() -> None:
    assert all(set(TRANSITIONS[state].values()) <= {state} for state in FINAL)


def test_stopping_is_possible_always_and_leads_to_no_new_process() -> None:
    for state in ChildState:
        stopped = after(state, ChildEvent.STOP)
        assert stopped in {ChildState.STOPPING} | FINAL
        assert (stopped is ChildState.STOPPING) == (state in ALIVE)
    assert ChildEvent.SPAWN not in TRANSITIONS[ChildState.STOPPING]


def test_a_process_can_die_whenever_there_is_one() -> None:
    assert {state for state in ChildState if ChildEvent.DIED in TRANSITIONS[state]} == ALIVE


def test_what_the_table_does_not_name_is_a_mistake() -> None:
    for state, event in itertools.product(ChildState, ChildEvent):
        if event not in TRANSITIONS[state]:
            with pytest.raises(AssertionError):
                after(state, event)

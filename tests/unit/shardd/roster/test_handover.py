"""Claims about the hand-over of one shard, on the machine that gives it away."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from shardd.roster.handover import OVER, TRANSITIONS, HandOver, HandOverEvent, HandOverState
from shardd.roster.members import Member, RosterTiming
from shardd.roster.moves import Move

TIMING = RosterTiming(void=60.0, patience=5.0)
TARGET = Member("b", "start 1")
STEPS = (HandOverEvent.OURS, HandOverEvent.SAVED, HandOverEvent.SHIPPED, HandOverEvent.ENDED)


def begun(steps: int) -> HandOver:
    handover = HandOver(Move(1, 0, 4, "a", "nonce", "b"), TARGET.nonce, TIMING, 100.0)
    for event in STEPS[:steps]:
        handover.meet(event, 100.0)
    return handover


def test_the_steps_lead_to_the_end() -> None:
    states = [begun(steps).state.value for steps in range(5)]
    assert states == ["offering", "saving", "refusing", "ending", "given"]


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize(
    "target",
    [None, replace(TARGET, leaving=True), replace(TARGET, nonce="start 2")],
    ids=["away", "leaving", "started again"],
)
def test_before_the_end_a_target_that_is_not_what_it_was_ends_it(steps: int, target: Member | None) -> None:
    handover = begun(steps)
    handover.tick(101.0, TARGET)
    assert not handover.over
    handover.tick(102.0, target)
    assert handover.state is HandOverState.VOID


@pytest.mark.parametrize("steps", [0, 1])
def test_it_is_given_up_before_others_take_it_for_void(steps: int) -> None:
    handover = begun(steps)
    handover.tick(139.9, TARGET)
    assert not handover.over
    handover.tick(140.0, TARGET)
    assert handover.state is HandOverState.VOID


def test_requests_are_refused_no_longer_than_gateways_hold_them() -> None:
    handover = begun(2)
    handover.tick(104.9, TARGET)
    assert not handover.over
    handover.tick(105.0, TARGET)
    assert handover.state is HandOverState.VOID


def test_once_the_end_may_exist_there_is_no_way_back() -> None:
    handover = begun(3)
    handover.tick(1000.0, None)
    assert handover.state is HandOverState.ENDING


@pytest.mark.parametrize("steps", range(4))
def test_a_giver_that_lost_the_shard_gives_nothing(steps: int) -> None:
    handover = begun(steps)
    handover.meet(HandOverEvent.LOST, 101.0)
    for event in STEPS:
        handover.meet(event, 102.0)
    assert handover.state is HandOverState.LOST


@pytest.mark.parametrize("state", HandOverState)
def test_late_and_repeated_events_change_nothing(state: HandOverState) -> None:
    for event in set(HandOverEvent) - TRANSITIONS[state].keys():
        handover = begun(0)
        handover.state = state
        handover.meet(event, 101.0)
        assert handover.state is state
    assert (state in OVER) == (not TRANSITIONS[state])

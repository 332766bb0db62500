"""The role's table: each event has one answer in each state, and what holds whatever the row."""

from __future__ import annotations

from itertools import product

import pytest

from shardd.replication.role_table import TABLE, Act, RoleEvent, RoleState, act_on

PAIRS = list(product(RoleState, RoleEvent))
OPEN = {RoleState.HOLDING, RoleState.ALONE}
"""The shard may be open."""


def acts(*events: RoleEvent, states: set[RoleState]) -> set[Act]:
    return {row.act for row in TABLE if row.event in events and row.states & states}


def test_exactly_one_row_matches_each_event_in_each_state() -> None:
    matching = {pair: [row for row in TABLE if row.event is pair[1] and pair[0] in row.states] for pair in PAIRS}
    assert {pair: rows for pair, rows in matching.items() if len(rows) != 1} == {}
    assert sum(len(row.states) for row in TABLE) == len(PAIRS)


def test_what_is_told_is_the_matching_rows_act_and_an_impossible_pair_is_a_bug() -> None:
    for state, event in PAIRS:
        (row,) = [row for row in TABLE if row.event is event and state in row.states]
        if row.act is Act.NEVER:
            with pytest.raises(AssertionError, match=f"event {event} in state {state}"):
                act_on(state, event)
        else:
            assert act_on(state, event) is row.act


def test_a_role_that_is_over_does_nothing_more() -> None:
    assert acts(*RoleEvent, states={RoleState.OVER}) == {Act.NOTHING, Act.END}
    assert acts(*set(RoleEvent) - {RoleEvent.ENDED}, states={RoleState.OVER}) == {Act.NOTHING}


def test_the_files_of_an_open_shard_are_not_touched() -> None:
    assert not acts(*RoleEvent, states=OPEN | {RoleState.TAKING}) & {Act.MAKE_AGAIN, Act.FOLD, Act.OPEN_ALONE}


def test_only_a_shard_that_may_be_open_gives_up_by_its_own() -> None:
    givers = {state for state, event in PAIRS if event is not RoleEvent.ENDED for row in TABLE if row.event is event
              and state in row.states and row.act in (Act.LEAVE, Act.END_TERM, Act.END)}  # fmt: skip
    assert givers == OPEN


def test_an_operators_word_and_shard_0s_are_the_same_to_a_shard_that_is_closed() -> None:
    for state in (RoleState.LOOKING, RoleState.FOLLOWING, RoleState.CLAIMING):
        assert act_on(state, RoleEvent.TAKE_OVER) is act_on(state, RoleEvent.LED)

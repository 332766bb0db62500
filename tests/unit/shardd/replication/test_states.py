"""The states of a replica: the table is what the docstring draws, and its design page has a row for each transition."""

from __future__ import annotations

import re
from pathlib import Path

from shardd.replication import states
from shardd.replication.states import FINAL, HOLDERS, OWNING, TRANSITIONS, ReplicaEvent, ReplicaState
from tests.support.state_tables import drawn

PAGE = Path(__file__).parents[4] / "docs" / "design" / "replication.md"


def test_the_docstring_draws_the_table() -> None:
    assert drawn(states.__doc__, ReplicaState, ReplicaEvent) | {state: {} for state in FINAL} == TRANSITIONS


def test_the_page_has_a_row_for_each_transition_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    told = {(ReplicaState(state), ReplicaEvent(event)): ReplicaState(after) for state, event, after in rows}
    assert told == {(state, event): after for state, row in TRANSITIONS.items() for event, after in row.items()}


def test_only_final_states_have_no_way_out_and_holders_own_their_term() -> None:
    assert {state for state, row in TRANSITIONS.items() if not row} == FINAL
    assert HOLDERS < OWNING

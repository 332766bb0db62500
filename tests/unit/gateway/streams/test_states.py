"""State machines of a stream and of a subscription."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from gateway.streams import states
from gateway.streams.states import (
    OPEN,
    STREAM,
    SUBSCRIPTION,
    StreamEvent,
    StreamState,
    SubscriptionEvent,
    SubscriptionState,
    after,
)

MACHINES: list[Any] = [
    pytest.param(STREAM, StreamState, StreamEvent, id="stream"),
    pytest.param(SUBSCRIPTION, SubscriptionState, SubscriptionEvent, id="subscription"),
]
ARROW = re.compile(r"^    ([a-z, ]+) ── (\w+) ──► (\w+)$", re.MULTILINE)


def drawn(text: str) -> set[tuple[str, str, str]]:
    return {(state, event, to) for froms, event, to in ARROW.findall(text) for state in froms.split(", ")}


def test_the_drawing_is_the_tables() -> None:
    changes = {
        (str(state), str(event), str(to))
        for table in (STREAM, SUBSCRIPTION)
        for state, row in table.items()
        for event, to in row.items()
        if to != state
    }
    assert drawn(states.__doc__ or "") == changes


@pytest.mark.parametrize(("table", "kind", "events"), MACHINES)
def test_every_state_is_in_the_table_explained_and_reachable(table: Any, kind: Any, events: Any) -> None:
    assert set(table) == set(kind)
    reached = {next(iter(kind))}
    for state in kind:
        assert re.search(rf"^    {state} {{2,}}\w", states.__doc__ or "", re.MULTILINE), state
        reached |= {to for each in reached for to in table[each].values()}
    assert reached == set(kind)


@pytest.mark.parametrize(("table", "kind", "events"), MACHINES)
def test_what_the_table_does_not_name_is_a_mistake(table: Any, kind: Any, events: Any) -> None:
    for state, event in itertools.product(kind, events):
        if event not in table[state]:
            with pytest.raises(AssertionError):
                after(table, state, event)


def test_what_is_over_stays_over() -> None:
    assert set(STREAM[StreamState.GONE].values()) == {StreamState.GONE}
    assert set(SUBSCRIPTION[SubscriptionState.OVER].values()) == {SubscriptionState.OVER}
    assert not OPEN & set(STREAM[StreamState.ENDING].values())


def test_a_stream_can_end_and_its_client_leave_at_any_time() -> None:
    for state in StreamState:
        assert after(STREAM, state, StreamEvent.LEAVE) is StreamState.GONE
        assert after(STREAM, state, StreamEvent.END) not in OPEN

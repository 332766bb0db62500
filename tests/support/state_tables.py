"""State tables as docstrings draw them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=StrEnum)


def by_state(following: Mapping[E, Mapping[S, S]], states: type[S]) -> dict[S, dict[E, S]]:
    """State → event → state, of a table that begins with the events."""
    return {state: {event: row[state] for event, row in following.items() if state in row} for state in states}


def drawn(text: str | None, states: type[S], events: type[E]) -> dict[S, dict[E, S]]:
    """The table that a docstring draws, in lines as `    LEASED  end → READY · ack → DELETING`."""
    table: dict[S, dict[E, S]] = {}
    for name, cells in re.findall(r"^ {4}([A-Z]+) +(\S.*→.*)$", text or "", re.MULTILINE):
        pairs = (cell.split(" → ") for cell in cells.split(" · "))
        table[states[name]] = {events(event): states[state] for event, state in pairs}
    return table

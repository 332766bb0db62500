"""The role's table: who follows, who holds and who gives up. One row for each event in each state, as data.

What a state is follows from the protocol's (`states`) and from what the role has let happen: `Role.state`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class RoleState(StrEnum):
    LOOKING = "looking"
    """The files are looked at. The protocol has not begun."""
    FOLLOWING = "following"
    """The shard is closed, and follows the log of the bucket."""
    CLAIMING = "claiming"
    """The shard is closed; this process creates a term and its fence."""
    TAKING = "taking"
    """The term is this process's; its files are being made so."""
    HOLDING = "holding"
    """The shard may be open, in a term of this process."""
    ALONE = "alone"
    """The shard may be open, without a term."""
    OVER = "over"


class RoleEvent(StrEnum):
    TAKE_OVER = "take over"
    """An operator's word."""
    LED = "led"
    """Shard 0 is this machine's, and this shard may not be opened yet."""
    LEFT = "left"
    """Shard 0 is another machine's."""
    UNLED = "unled"
    """Shard 0 is no machine's, as far as is known. It may have been this machine's until now."""
    SILENT = "silent"
    """The bucket has not answered since the start, and no other holder is known. Only with `async`."""
    DIFFERS = "differs"
    """The bucket has another log than the files."""
    APPLIED = "applied"
    """A part was compared with the files or appended to them, or they were made again."""
    HELD = "held"
    """The protocol holds the shard, in a term of this process."""
    REPLACED = "replaced"
    """A look showed another machine's term, and the shard was opened without one."""
    DRAIN = "drain"
    """The process is to end, and all that it synced is in the bucket."""
    ENDED = "ended"
    """The term has ended, or a later one is in its place."""


class Act(StrEnum):
    NOTHING = "nothing"
    NEVER = "never"
    """The pair is impossible: a bug."""
    CLAIM = "claim"
    """Claim the shard as if the newest term were over, once the protocol has begun."""
    STAND_BACK = "stand back"
    """Claim the shard by the protocol's rules only."""
    OPEN_ALONE = "open alone"
    MAKE_AGAIN = "make again"
    """Set the files aside, and make them from the bucket."""
    FOLD = "fold"
    """Make a checkpoint of the closed shard if its log is long."""
    HOLD = "hold"
    """Make the files this process's, and let the shard be opened."""
    LEAVE = "leave"
    """With `sync` `END_TERM`, so that the next holder need not wait, else `END`."""
    END_TERM = "end term"
    """Ship what was offered, and end the term. The role is over then."""
    END = "end"
    """The role is over."""


class Row(NamedTuple):
    event: RoleEvent
    states: frozenset[RoleState]
    act: Act


def _row(event: RoleEvent, states: str, act: Act) -> Row:
    return Row(event, frozenset(map(RoleState, states.split())), act)


TABLE = (
    _row(RoleEvent.TAKE_OVER, "looking following claiming alone", Act.CLAIM),
    _row(RoleEvent.TAKE_OVER, "taking holding over", Act.NOTHING),
    _row(RoleEvent.LED, "looking following claiming", Act.CLAIM),
    _row(RoleEvent.LED, "taking over", Act.NOTHING),
    _row(RoleEvent.LED, "holding alone", Act.NEVER),
    _row(RoleEvent.LEFT, "looking following claiming taking", Act.STAND_BACK),
    _row(RoleEvent.LEFT, "holding alone", Act.LEAVE),
    _row(RoleEvent.LEFT, "over", Act.NOTHING),
    _row(RoleEvent.UNLED, "looking following claiming", Act.STAND_BACK),
    _row(RoleEvent.UNLED, "taking holding alone over", Act.NOTHING),
    _row(RoleEvent.SILENT, "following", Act.OPEN_ALONE),
    _row(RoleEvent.SILENT, "claiming taking holding over", Act.NOTHING),
    _row(RoleEvent.SILENT, "looking alone", Act.NEVER),
    _row(RoleEvent.DIFFERS, "following claiming", Act.MAKE_AGAIN),
    _row(RoleEvent.DIFFERS, "alone", Act.END),
    _row(RoleEvent.DIFFERS, "over", Act.NOTHING),
    _row(RoleEvent.DIFFERS, "looking taking holding", Act.NEVER),
    _row(RoleEvent.APPLIED, "following", Act.FOLD),
    _row(RoleEvent.APPLIED, "claiming taking holding alone over", Act.NOTHING),
    _row(RoleEvent.APPLIED, "looking", Act.NEVER),
    _row(RoleEvent.HELD, "taking holding", Act.HOLD),
    _row(RoleEvent.HELD, "over", Act.NOTHING),
    _row(RoleEvent.HELD, "looking following claiming alone", Act.NEVER),
    _row(RoleEvent.REPLACED, "alone holding", Act.END),
    _row(RoleEvent.REPLACED, "over", Act.NOTHING),
    _row(RoleEvent.REPLACED, "looking following claiming taking", Act.NEVER),
    _row(RoleEvent.DRAIN, "holding", Act.END_TERM),
    _row(RoleEvent.DRAIN, "looking following claiming taking alone over", Act.NOTHING),
    _row(RoleEvent.ENDED, "looking following claiming taking holding alone over", Act.END),
)
_ACTS = {(state, row.event): row.act for row in TABLE for state in row.states}


def act_on(state: RoleState, event: RoleEvent) -> Act:
    """What the role does. Raises `AssertionError` for an event that is impossible in `state`, which is a bug."""
    act = _ACTS[state, event]
    assert act is not Act.NEVER, f"event {event} in state {state}"
    return act

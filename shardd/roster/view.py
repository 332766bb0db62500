"""The service as one machine sees it: its members, the newest terms of its shards, and the moves. No I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set

from msgspec import Struct

from shardd.roster.members import Member, Members, RosterTiming, Standing
from shardd.roster.moves import Move, Moves


class Held(Struct, frozen=True):
    """The newest term of a shard, and the machine that created it; 0 and "" if there is none."""

    term: int = 0
    machine: str = ""
    alive: int | None = None
    """Its last sign of life, of a shard that has no process here."""
    ttl_s: float = 0.0
    address: str = ""
    endpoint: str = ""
    key: str = ""
    """As in `shardd.replication.attach.Term`."""


class Found(Struct, frozen=True):
    """The findings of a look. Each value was true at a moment between the request and its answer."""

    members: Sequence[Member]
    holders: Sequence[Held]
    """In the order of shards."""
    moves: Sequence[Move]


class View:
    def __init__(self, shards: int, timing: RosterTiming) -> None:
        self.members = Members(timing)
        self.standings: dict[str, Standing] = {}
        """Of the members, as of the last look."""
        self.moves = Moves(timing.void)
        self.holders: Sequence[Held] = [Held()] * shards
        self.over: Set[int] = frozenset()
        """Shards without a process here whose newest term gave no sign of life for the time to live."""
        self._unchanged_since = [math.inf] * shards
        """End of the look that first showed each shard's term and sign of life as they are."""
        self._timing = timing

    def looked(
        self, found: Found, runs: Set[int], began: float, now: float, began_wall_s: float, now_wall_s: float
    ) -> None:
        """Take in a look, which began and ended at these times. The shards `runs` have a process here."""
        self.members.looked(found.members, began, now, began_wall_s, now_wall_s)
        self.standings = self.members.standings(now)
        for shard, held in enumerate(found.holders):
            if held != self.holders[shard] or shard in runs:
                self._unchanged_since[shard] = now
        self.holders = found.holders
        silence = (began - since for since in self._unchanged_since)
        longest = (max(self._timing.time_to_live, held.ttl_s) for held in found.holders)
        self.over = {shard for shard, (silent, ttl) in enumerate(zip(silence, longest, strict=True)) if silent >= ttl}
        for move in self.moves.looked(found.moves, began, now):
            self.members.placed(move.target, now)

    @property
    def move(self) -> Move | None:
        """The move that is pending."""
        return self.moves.pending(lambda shard: self.holders[shard].term)

    @property
    def coming(self) -> dict[int, str]:
        """The shards that their holders mean for other machines, and these machines."""
        givers = ((shard, self.members.member(held.machine)) for shard, held in enumerate(self.holders))
        return {shard: giver.gives[shard] for shard, giver in givers if giver and shard in giver.gives}

    def fails(self, shard: int, machine: str) -> bool:
        """Whether the machine says that it cannot run the shard."""
        member = self.members.member(machine)
        return member is not None and shard in member.fails

"""The members: which machines are there, as one of them sees it. No I/O, no clock.

Each machine rewrites an object of its own every third of its time to live. An observer looks at all of them, and goes
by what it saw change, on its own monotonic clock: no two clocks are compared to say that a machine is away. So two
machines may see different members, and each member's word counts for itself only.

    standing     seen                                                    claims         gets shards by moves
    PLACEABLE    it changed within twice the time to live                by its rank    yes
    UNPROVEN     it has not changed since it was found, or for two       by its rank    no
                 thirds of the time to live: it may be lost
    HELD_BACK    its wall clock is certainly wrong by more than a        last           only of a machine that leaves,
                 second, or it comes and goes and got a shard within                    if none is placeable
                 the hour
    LEAVING      it says so                                              never          no: it gives all of them away
    (none)       unchanged for twice the time to live: it is away        never          no

A time to live is the observer's or the member's, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

Number = Annotated[int, Meta(ge=0, lt=1 << 53)]
"""Of milliseconds, or rewrites. Others may have written the object: a larger one would be no float of seconds."""
SKEW_S = 1.0
"""Seconds by which a wall clock may be wrong."""


class RosterTiming(Struct, frozen=True):
    """Seconds."""

    time_to_live: float = 10.0
    void: float = 60.0
    """A move that is not over counts as void after this long without a change."""
    patience: float = 5.0
    """For so long a shard refuses requests at most before it is given away: gateways hold them no longer."""
    calm: float = 3600.0
    """A member that was away more than once within this long gets one shard in as long, at most."""
    keep: float = 60.0
    """For so long a machine runs a shard that it need not run any more."""
    spare: float = 86_400.0
    """For so long it keeps the files of a shard that it does not run."""

    @property
    def renewal(self) -> float:
        return self.time_to_live / 3


class Member(Struct, frozen=True, omit_defaults=True):
    """The object of a machine of the service. Fields are appended: an older release ignores those that it does not
    know, and its own objects lack them."""

    machine: str
    """Id of the data directory."""
    nonce: str
    """New at each start of the machine. It begins the names of its askers, see `proto.ipc.askers`."""
    address: str = ""
    """Where its clients reach it."""
    key: str = ""
    """The public key of its askers."""
    endpoint: str = ""
    """Where its first shard hears other machines, the others at the ports after it; port 0 if each has any."""
    at_ms: Number = 0
    """Its wall clock when it began to write this, after its write before was over."""
    place: str = ""
    """The running system and the directory in it: a copy of the directory has another one."""
    beat: Number = 0
    """Counts the rewrites of a nonce."""
    ttl_ms: Number = 0
    """Its time to live."""
    leaving: bool = False
    lags: dict[int, float] = {}
    """Shard that is followed → seconds by which it is behind."""
    gives: dict[int, str] = {}
    """Shard that is held → the machine that is to have it, once it follows."""
    fails: list[int] = []
    """Shards that cannot run there, as far as is known."""


class Standing(StrEnum):
    PLACEABLE = "placeable"
    UNPROVEN = "unproven"
    HELD_BACK = "held back"
    LEAVING = "leaving"


class Sighting(Struct):
    """What an observer remembers of a machine."""

    member: Member
    changed_at: float
    """End of the look that first showed the object as it is."""
    after_s: float | None = None
    """The observer's wall clock before the object was written as it is; None if it was there at the first look."""
    proven: bool = False
    """Whether it changed lately."""
    away: bool = False
    returned_at: list[float] = []
    skewed: bool = False


class Members:
    def __init__(self, timing: RosterTiming) -> None:
        self._timing = timing
        self._sightings: dict[str, Sighting] = {}
        self._looked_wall_s: float | None = None
        """Wall clock at the begin of the last look."""
        self._placed_at: dict[str, float] = {}
        """When each machine was last given a shard by a move."""

    def looked(self, found: Iterable[Member], began: float, now: float, began_wall_s: float, now_wall_s: float) -> None:
        """Take in a look at all objects, which began and ended at these times of the monotonic and the wall clock."""
        before_s, self._looked_wall_s = self._looked_wall_s, began_wall_s
        objects = {member.machine: member for member in found}
        for machine, member in objects.items():
            sighting = self._sightings.get(machine)
            if sighting is None:
                self._sightings[machine] = Sighting(member, now, before_s)
            elif (sighting.member.nonce, sighting.member.beat) != (member.nonce, member.beat):
                if sighting.away:
                    sighting.returned_at.append(now)
                sighting.skewed = _skewed(member, sighting.after_s, now_wall_s)
                sighting.member, sighting.changed_at, sighting.after_s = member, now, before_s
                sighting.proven, sighting.away = True, False
        for machine, sighting in self._sightings.items():
            unchanged_s = began - sighting.changed_at
            time_to_live = max(self._timing.time_to_live, sighting.member.ttl_ms / 1000)
            if machine not in objects or unchanged_s >= 2 * time_to_live:
                sighting.away = True
            if unchanged_s >= time_to_live * 2 / 3:
                sighting.proven = False

    def placed(self, machine: str, now: float) -> None:
        """A move to this machine was seen."""
        self._placed_at[machine] = now

    def member(self, machine: str) -> Member | None:
        """What the machine's object last said; None if it is away."""
        sighting = self._sightings.get(machine)
        return None if sighting is None or sighting.away else sighting.member

    def standings(self, now: float) -> dict[str, Standing]:
        """Machines that are there."""
        return {
            machine: self._standing(machine, sighting, now)
            for machine, sighting in self._sightings.items()
            if not sighting.away
        }

    def _standing(self, machine: str, sighting: Sighting, now: float) -> Standing:
        if sighting.member.leaving:
            return Standing.LEAVING
        calm = self._timing.calm
        flaps = sum(now - at < calm for at in sighting.returned_at) > 1
        placed_at = self._placed_at.get(machine)
        if sighting.skewed or (flaps and placed_at is not None and now - placed_at < calm):
            return Standing.HELD_BACK
        return Standing.PLACEABLE if sighting.proven else Standing.UNPROVEN


def _skewed(member: Member, after_s: float | None, before_s: float) -> bool:
    """Whether a wall clock is certainly wrong: it was read between these times of the observer's clock. It is read
    after the write of the object that was seen before, and before the next one, which may take long."""
    wall_s = member.at_ms / 1000
    return wall_s - before_s > SKEW_S or (after_s is not None and after_s - wall_s > SKEW_S)

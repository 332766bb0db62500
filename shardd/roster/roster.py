"""The roster of one machine: who is there, what this machine is to run, and what it gives away. No I/O, no clock.

A `Roster` gets answers and the time, and returns the request to make next:

    tick(now, wall_s)                → a request, if one is due and none is open
    answered(request, found, now…)   the answer; None if there was none in time
    held, lags, runs, failed         set by the caller: the shards that this machine holds, follows, has a process of,
                                     and those whose process dies again and again
    wanted(now), rank(shard)         which shards it is to run, and when it may claim each of them
    moving                           whose next holders are to be looked for often
    spare(now)                       the shards whose files it needs no more
    handover                         what it is giving away; the caller reports how far it is
    leave()                          give all shards away

Nothing is concluded from the answer to a write: the look that follows tells whether an entry is ours, and whether this
machine is taken for a member. A late answer is passed over.

    JOINING    admitted → ADMITTED · refused → REFUSED
    ADMITTED   refused → REFUSED
    REFUSED    –

A data directory has one name, so a copy of it that runs meets the object of the original. A machine that starts writes
its object only if there is none, or if the one there was written at the same place (the lock of the directory proves
that its process is gone), or if it did not change for the time to live. If it changes, the other one lives, and this
one is refused. If two of them have begun at the same moment, the one with the smaller nonce stays.
"""

from __future__ import annotations

import math
from collections.abc import Set
from enum import StrEnum

from msgspec import Struct

from shardd.roster.handover import HandOver, HandOverEvent, HandOverState
from shardd.roster.members import Member, RosterTiming, Standing
from shardd.roster.moves import Move
from shardd.roster.needs import Needs
from shardd.roster.placement import next_transfer, ranks
from shardd.roster.view import Found, View

READY_S = 1.0
"""A shard is given to a machine that follows it and is behind by less, in seconds."""


class RosterRequest(Struct, frozen=True, eq=False):
    """Base of requests. Two are the same only if they are one object."""


class LookAround(RosterRequest, frozen=True):
    """Read all members, the newest term of each shard, and the moves from number `from_move` on. Answer: `Found`."""

    from_move: int


class Publish(RosterRequest, frozen=True):
    """Write this machine's object."""

    member: Member


class CreateMove(RosterRequest, frozen=True):
    """Create the entry, if absent."""

    move: Move


class RosterState(StrEnum):
    JOINING = "joining"
    ADMITTED = "admitted"
    REFUSED = "refused"
    """Another machine runs on a copy of this directory. This one is to end."""


class Roster:
    def __init__(
        self, machine: str, nonce: str, place: str, shards: int, timing: RosterTiming, *, seconds: int = 1
    ) -> None:
        """`machine` is the id of the data directory, `place` the running system and the directory in it. `seconds` is
        how many machines follow each shard besides its holder."""
        self.state = RosterState.JOINING
        self.machine = machine
        self.nonce = nonce
        self._place = place
        self._timing = timing
        self._seconds = seconds
        self.view = View(shards, timing)
        self.held: dict[int, int] = {}
        """Shards that a process of this machine holds, with its terms."""
        self.lags: dict[int, float] = {}
        """Shards that a process of this machine follows, with the seconds by which it is behind."""
        self.runs: Set[int] = frozenset()
        """Shards that have a process on this machine."""
        self.failed: Set[int] = frozenset()
        """Shards whose process cannot run on this machine, at this moment."""
        self._needs = Needs(timing)
        self._meant_since: dict[tuple[int, str], float] = {}
        """When each of these was first seen to be coming, or given. Catching up may take hours, and who is in a hurry
        asks the bucket often, so no machine is for long before that."""
        self.handover: HandOver | None = None
        self.given_up: Move | None = None
        """The move of this process that it gave up last. While its entry is pending, others create none."""
        self._gives_again_at = 0.0
        self._leaving = False
        self._beat = 0
        self._open: RosterRequest | None = None
        self._asked_at = self._asked_wall_s = self._look_at = 0.0
        self._gives: dict[int, str] = {}
        """The shard that this machine gives away next, and the machine that is to have it."""
        self._published: object = None
        """What this machine's object says besides figures; None if it is to be written anyway, after a look: it would
        hide what another machine has written under this name."""
        self._other: tuple[Member, float] | None = None
        """The object under this machine's name that another process wrote, and the end of the look that showed it."""

    # What the caller does

    def wanted(self, now: float) -> Set[int]:
        """The shards that this machine is to run: those that it holds, those that it is to follow as one of the first
        to claim them, and those that their holders mean for it. It runs a shard on for a while when that is over."""
        if self.state is not RosterState.ADMITTED:
            return self.runs
        kept = {shard for shard in self.runs if self._needs.idle_s(shard, now) < self._timing.keep}
        return self._needs.shards | self.held.keys() | kept

    def spare(self, now: float) -> Set[int]:
        """The shards that another machine holds, and that this one did not need for long: their files may go."""
        if self.state is not RosterState.ADMITTED:
            return frozenset()
        away = {shard for shard, held in enumerate(self.view.holders) if held.machine not in ("", self.machine)}
        old = {shard for shard in away if self._needs.idle_s(shard, now) >= self._timing.spare}
        return old - self.runs - self.wanted(now)

    def _need(self, now: float) -> None:
        shards = range(len(self.view.holders))
        needed = {shard for shard in shards if self.view.holders[shard].machine == self.machine}
        needed |= {shard for shard in shards if self.rank(shard) < self._seconds}
        needed |= {shard for shard, target in self.view.coming.items() if target == self.machine}
        self._needs.looked(needed, len(shards), now)
        self._needs.failed(self.failed, self.lags.keys() | self.held.keys(), now)

    def rank(self, shard: int) -> float:
        """How many machines are to claim the shard before this one; infinite if it is not to claim it."""
        if self.state is not RosterState.ADMITTED:
            return math.inf
        move = self.view.move
        target = move.target if move is not None and move.shard == shard else ""
        ranked = ranks(shard, self.view.standings, self.view.holders[shard].machine, target)
        return ranked.index(self.machine) if self.machine in ranked else math.inf

    @property
    def moving(self) -> Set[int]:
        """The shards that are moved, or are to be at once: who has caught up with one, or has just been chosen."""
        return self._moved.keys()

    @property
    def _moved(self) -> dict[int, str]:
        recently = self._asked_at - self._timing.time_to_live
        at_once = (each for each, since in self._meant_since.items() if since > recently or self._follows(*each))
        move = self.view.move
        return {**dict(at_once), **({} if move is None else {move.shard: move.target})}

    @property
    def _gets(self) -> bool:
        """Whether a shard is moved to this machine, or is to be at once."""
        return self.machine in self._moved.values()

    def leave(self) -> None:
        """Hold nothing any more, as soon as others have taken it."""
        self._leaving = True

    def look_again(self) -> None:
        """A shard has a later term than the last look showed."""
        self._look_at = 0.0

    # Requests

    def tick(self, now: float, wall_s: float) -> RosterRequest | None:
        """The request that is due. Call it a few times in a second."""
        self._see_to_handover(now)
        if self._open is None and self.state is not RosterState.REFUSED:
            self._open = self._next(now, wall_s)
            self._asked_at, self._asked_wall_s = now, wall_s
            return self._open
        return None

    def _next(self, now: float, wall_s: float) -> RosterRequest | None:
        news = self.state is RosterState.ADMITTED and self._published != self._to_publish()
        if news:
            self._beat += 1
            self._published = self._to_publish()
            return Publish(
                Member(
                    self.machine,
                    self.nonce,
                    at_ms=round(1000 * wall_s),
                    place=self._place,
                    beat=self._beat,
                    ttl_ms=round(1000 * self._timing.time_to_live),
                    leaving=self._leaving,
                    lags=self._offered,
                    gives=dict(self._gives),
                    fails=self._needs.fails,
                )
            )
        if self.handover is not None and self.handover.creates:
            self.handover.creates = False
            return CreateMove(self.handover.move)
        if now >= self._look_at:
            last = self.view.moves.last
            return LookAround(0 if last is None else last.number)
        return None

    @property
    def _offered(self) -> dict[int, float]:
        """What may be given to this machine. A shard that it only runs on for a while may not: it would learn of the
        move late, and may end that process meanwhile. Once it sees that the shard is meant for it, it needs it."""
        return {shard: lag for shard, lag in self.lags.items() if shard in self._needs.shards}

    def _to_publish(self) -> object:
        followed = frozenset(shard for shard, lag in self._offered.items() if lag < READY_S)
        return self._leaving, followed, tuple(self._gives.items()), self._needs.fails

    def answered(self, request: RosterRequest, found: Found | None, now: float, wall_s: float) -> None:
        if request is not self._open:
            return
        self._open = None
        if isinstance(request, CreateMove) or (isinstance(request, Publish) and self._beat == 1):
            self._look_at = now  # this machine has a rank once it has seen itself
        elif isinstance(request, LookAround) and found is None:
            self._look_at = now + self._timing.renewal / 4
        elif isinstance(request, LookAround) and found is not None:
            self._looked(found, now, wall_s)
            self._look_at = self._asked_at + self._timing.renewal / (4 if self._gets else 1)

    def _looked(self, found: Found, now: float, wall_s: float) -> None:
        own = next((each for each in found.members if each.machine == self.machine), None)
        self._admit(own, now)
        if self.state is not RosterState.ADMITTED:
            return
        self._published = None
        self.view.looked(found, self.runs, self._asked_at, now, self._asked_wall_s, wall_s)
        self._need(now)
        self._offer(now)
        meant = {**self.view.coming, **self._gives}.items()
        self._meant_since = {each: self._meant_since.get(each, now) for each in meant}

    # Being a member

    def _admit(self, own: Member | None, now: float) -> None:
        joins = self.state is RosterState.JOINING
        if own is None or own.nonce == self.nonce or own.place == self._place:
            self.state = RosterState.ADMITTED
            return
        before, since = self._other or (own, now)
        same = before.nonce == own.nonce
        if same and before.beat != own.beat and (joins or self.nonce > own.nonce):
            self.state = RosterState.REFUSED
            return
        self._other = own, since if same else now
        longer = max(self._timing.time_to_live, own.ttl_ms / 1000)
        if same and self._asked_at - since >= longer:
            self.state = RosterState.ADMITTED

    # Giving away

    def _offer(self, now: float) -> None:
        """Only its holder gives a shard away, to a machine that has followed it to its end. It says to which one."""
        handover = self.handover
        if handover is not None and handover.state is HandOverState.OFFERING:
            self._look_for_entry(handover, now)
        elif handover is None:
            view, meant = self.view, next(iter(self._gives.values()), "")
            holders = [held.machine for held in view.holders]
            transfer = next_transfer(view.standings, holders, self._follows, meant, view.fails)
            gives = transfer is not None and self.held.get(transfer.shard) == view.holders[transfer.shard].term
            self._gives = {transfer.shard: transfer.target} if transfer is not None and gives else {}
            free = view.move in (None, self.given_up) and now >= self._gives_again_at
            if transfer is not None and gives and free and self._follows(transfer.shard, transfer.target):
                member = view.members.member(transfer.target)
                assert member is not None
                move = Move(
                    view.moves.next_number,
                    transfer.shard,
                    self.held[transfer.shard],
                    self.machine,
                    self.nonce,
                    transfer.target,
                )
                self.handover = HandOver(move, member.nonce, self._timing, now)

    def _follows(self, shard: int, machine: str) -> bool:
        member = self.view.members.member(machine)
        lags = self.lags if machine == self.machine else member.lags if member is not None else {}
        return lags.get(shard, math.inf) < READY_S

    def _look_for_entry(self, handover: HandOver, now: float) -> None:
        last = self.view.moves.last
        if last == handover.move:
            handover.meet(HandOverEvent.OURS, now)
        elif last is not None and last.number >= handover.move.number:
            handover.meet(HandOverEvent.GIVEN_UP, now)
        else:
            handover.creates = True

    def _see_to_handover(self, now: float) -> None:
        handover = self.handover
        if handover is None:
            return
        if self.held.get(handover.move.shard) != handover.move.term:
            handover.meet(HandOverEvent.LOST, now)
        target = handover.move.target
        lost = self.view.standings.get(target) is Standing.UNPROVEN
        handover.tick(now, None if lost else self.view.members.member(target))
        if handover.over:
            self.handover = None
        if handover.state is HandOverState.VOID and handover.move == self.view.moves.last:
            self.given_up, self._gives_again_at = handover.move, now + self._timing.time_to_live

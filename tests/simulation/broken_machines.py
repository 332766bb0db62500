"""Rosters, replicas and allowances that break a rule of several machines each. The simulation catches every one."""

from __future__ import annotations

from msgspec.structs import replace

from proto.ipc.operations import Mark
from shardd.changes.allowance import Allowance
from shardd.replication.messages import Answer, CreatePart, Kind, Output, Part, Request, Seen
from shardd.replication.protocol import Replica
from shardd.replication.states import HOLDERS, ReplicaState
from shardd.roster.members import Member
from shardd.roster.roster import Roster, RosterState


class GivesWhatItFollows(Roster):
    """Gives a shard away that another machine holds, if this one runs a process of it."""

    def _offer(self, now: float) -> None:
        self.held = {**{shard: self.view.holders[shard].term for shard in self.lags}, **self.held}
        super()._offer(now)

    def _see_to_handover(self, now: float) -> None:
        handover = self.handover
        if handover is not None and handover.move.shard in self.lags:
            self.held = {**self.held, handover.move.shard: handover.move.term}
        super()._see_to_handover(now)


class EndsAnyTerm(Replica):
    """Creates the end of the newest term when it is to drain, whether or not that is its own."""

    drains = False

    def drain(self) -> None:
        super().drain()
        self.drains = self.state not in HOLDERS

    def _next(self, now: float) -> Request | None:
        seen = self.newest.seen
        if self.drains and self.state is ReplicaState.STANDBY and seen is not None and not self._restore:
            self.drains = False
            number, last = self.position.part + 1, self.position.frame_no
            return CreatePart(Part(number, Kind.END, seen.term, seen.nonce, last + 1, last))
        return super()._next(now)

    def _log_answered(self, request: Request, answer: Answer, now: float) -> list[Output]:
        ends = isinstance(request, CreatePart) and self.state is ReplicaState.STANDBY
        return [] if ends else super()._log_answered(request, answer, now)


class OwnTimeToLive(Replica):
    """Goes by its own time to live, whatever the holder's is."""

    def _looked(self, seen: Seen, now: float) -> list[Output]:
        return super()._looked(replace(seen, time_to_live=0.0), now)


class ObeysOldEpochs(Allowance):
    """Obeys any order of another treasurer than the last one's."""

    def newer(self, at: Mark) -> bool:
        return at[:3] != self.report.at[:3] or super().newer(at)


class AdmitsCopies(Roster):
    """Takes any object under its name for that of its own past."""

    def _admit(self, own: Member | None, now: float) -> None:
        self.state = RosterState.ADMITTED

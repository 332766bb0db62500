"""Replicas that break one rule each. The simulation catches every one of them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from shardd.replication.messages import (
    Answer,
    CreatePart,
    Look,
    Output,
    Part,
    Position,
    ReadPart,
    Renew,
    Request,
    Result,
    Seen,
)
from shardd.replication.protocol import Replica
from shardd.replication.states import ReplicaEvent, ReplicaState


class NoFence(Replica):
    """Reads the log to its end and goes on behind it."""

    def _absent(self, request: ReadPart, now: float) -> list[Output]:
        outputs = super()._absent(request, now)
        if self.state is ReplicaState.FENCING and not self._restore:
            self._move(ReplicaEvent.FENCED)
        return outputs

    def _checked(self, seen: Seen, now: float) -> list[Output]:
        before = self.position
        outputs = super()._checked(seen, now)
        self.position = before
        return outputs


class NoCheck(Replica):
    """Looks at the newest manifest before it creates its fence, but not again after that."""

    def _checked(self, seen: Seen, now: float) -> list[Output]:
        return super()._checked(replace(seen, manifest=Position()), now)


class GuessesDone(Replica):
    """Takes a creation without a clear answer for done."""

    def _log_answered(self, request: Request, answer: Answer, now: float) -> list[Output]:
        if isinstance(request, CreatePart) and answer is Result.UNKNOWN:
            answer = Result.DONE
        return super()._log_answered(request, answer, now)


class GuessesFailed(Replica):
    """Takes a creation without a clear answer for not done, and creates a part with what there is by then."""

    def _log_answered(self, request: Request, answer: Answer, now: float) -> list[Output]:
        outputs = super()._log_answered(request, answer, now)
        if isinstance(request, CreatePart) and answer is Result.UNKNOWN:
            self._part, self._doubt = None, False
        return outputs


class ForgetsWhatItSent(Replica):
    """Reads after a creation without a clear answer, but creates again with what there is by then; what it reads under
    its nonce counts as what it would create."""

    def _next(self, now: float) -> Request | None:
        if self.state is ReplicaState.HOLDING:
            self._part = None
        return super()._next(now)


class NeverSilent(Replica):
    """Answers as long as it knows of no later term."""

    def serving(self, now: float) -> bool:
        return self._answers_until is not None


class RenewsBlindly(Replica):
    """Takes a renewal that was written for proof that the term is the newest."""

    def _life_answered(self, request: Request, answer: Answer, now: float) -> list[Output]:
        outputs = super()._life_answered(request, answer, now)
        if isinstance(request, Renew) and isinstance(self._life, Look):
            return super()._life_answered(self._life, Seen(self.term, self.nonce, None, Position()), now)
        return outputs


class TakesAnyPart(Replica):
    """Takes whatever is in its part's number for its own."""

    def _read(self, part: Part) -> list[Output]:
        return self._created() if self.state is ReplicaState.HOLDING else super()._read(part)


class NoWait(Replica):
    """Creates its fence at once, also in the place of a holder that may still answer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.newest.may_answer = lambda now: False

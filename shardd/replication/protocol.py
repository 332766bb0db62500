"""The replication protocol of one shard: no I/O, no clock. Design and failure tables: docs/design/replication.md.

A `Replica` gets answers and the time, and returns what to do:

    tick(now)                            → requests to begin
    answered(request, answer, now)       → requests to begin, and notices
    offer(upto_no)                       frames up to this number are synced and may be shipped
    pass_hole(upto_no)                   frames up to this number are gone, and are in no part
    drain()                              the end of the process asks for it
    newest                               what is known of the newest term; an operator may take it over
    serving(now)                         may a request be answered at this moment?

The caller carries each request out, once, and answers it with the request itself. A request that gets no answer in time
is answered `Result.UNKNOWN`; an answer to a request that is not open any more is passed over. So answers may be lost,
late or repeated. Times are seconds of a monotonic clock of the machine that also runs while the machine is suspended.

Rules on which safety rests. Each has a variant in `tests/simulation` that breaks it and is caught:

1. An object is ours only if it was created in answer to our request, or was read and carries our term and nonce.
2. A part whose creation got no clear answer is read; if it is absent, the same bytes are created again.
3. A new holder's first object is a fence, in the first part number that never existed. Fences are never removed.
4. A part is removed only after a manifest is there whose files have its frames; of manifests, the one with the most
   frames is the newest. So a fence is in a number that never existed before if a look that begins after its creation
   finds no manifest that reaches it. A fence that fails this stays where it is, in a gap of the log. A reader that took
   it for part of the log lacks frames of that manifest, or of those before the next part: it is restored.
5. Frames count as shipped, and are acknowledged, only when their part is ours by rule 1.
6. A holder answers only within two thirds of the time to live after it began a renewal that was followed by a look
   which showed no later term.
7. Where terms are taken over automatically, a candidate creates its fence only when the holder that it replaces is
   silent by rule 6. The renewals of that holder fail from the creation of the candidate's term on; if none was written
   between the first look that showed its last counter and a look after that creation, its silence counts from the
   former. A term that ended, and one of the same directory, has no holder any more: a holder is silent from the moment
   on at which it creates its end.
"""

from __future__ import annotations

import math

from shardd.replication.messages import (
    Answer,
    Apply,
    CreatePart,
    CreateTerm,
    Ended,
    Hold,
    Kind,
    Look,
    Output,
    Part,
    Position,
    ReadPart,
    Renew,
    Request,
    Restore,
    Result,
    Seen,
    Shipped,
)
from shardd.replication.newest_term import NewestTerm
from shardd.replication.states import FINAL, HOLDERS, OWNING, ReplicaEvent, ReplicaState, after


class Replica:
    """One shard's replica on one machine. At most two requests are open: one about the log, one about being alive."""

    hurries = False
    """Whether the shard is moved: its log gets a fence or an end soon. The caller may change it at any time."""

    def __init__(self, newest: NewestTerm, position: Position) -> None:
        """`position` is as far as the local shard is known to equal the bucket's log."""
        self.state = ReplicaState.STANDBY
        self.newest = newest
        self.nonce = newest.nonce
        self.position = position
        self.term = 0
        """This replica's term; 0 if it has none."""
        self._timing = timing = newest.timing
        self._log: Request | None = None
        self._life: Request | None = None
        self._log_at = self._life_at = self._read_at = 0.0
        self._asked_at = self._renewed_at = 0.0
        self._answers_until: float | None = None
        self._pause = timing.retry
        self._renewals = 0
        self._gives_way = False
        """Whether this replica was a holder when it saw a later term."""
        self._offered = 0
        self._part: Part | None = None
        """The part that is being created. It stays the same until it is ours or lost."""
        self._doubt = False
        """Whether `_part` may have been created by a request without a clear answer."""
        self._found: Part | None = None
        """A part that was read and is to be applied."""
        self._restore = False
        self._look_for_end = True
        """Whether the next part is to be read with a look for later ones."""
        self._damaged = False
        """Whether the log cannot be read to its end, as far as is known: such a replica claims nothing."""

    def serving(self, now: float) -> bool:
        """Whether requests may be answered. Ask immediately before each answer: the process may have been stopped."""
        ends = self._part is not None and self._part.kind is Kind.END  # it may be there before its answer is
        return self.state in HOLDERS and not ends and self._answers_until is not None and now < self._answers_until

    def offer(self, upto_no: int) -> None:
        """Frames up to `upto_no` are synced. The next part may have all of them; the caller bounds a part by offering
        no more."""
        self._offered = max(self._offered, upto_no)

    def pass_hole(self, upto_no: int) -> None:
        """Frames up to `upto_no` are in no part, and never will be: the next part begins after them. For a holder that
        has offered nothing yet."""
        assert self.state in HOLDERS
        self.position = Position(self.position.part, max(upto_no, self.position.frame_no))

    def drain(self) -> None:
        """Ship what was offered, then end the term. A replica that does not hold the shard may simply be dropped."""
        if self.state in HOLDERS:
            self._move(ReplicaEvent.DRAIN)

    def tick(self, now: float) -> list[Output]:
        """Begin what is due. Call it after `offer` and `drain`, and at least a few times in a second."""
        outputs: list[Output] = []
        if self._life is None and self.state in OWNING and now >= self._life_at:
            self._renewals += 1
            self._renewed_at = now
            self._life = Renew(self.term, self._renewals)
            outputs.append(self._life)
        if self._log is None and self.state not in FINAL and now >= self._log_at:
            self._log = self._next(now)
            self._asked_at = now
            if self._log is not None:
                outputs.append(self._log)
        return outputs

    def answered(self, request: Request, answer: Answer, now: float) -> list[Output]:
        if request is self._life:
            outputs = self._life_answered(request, answer, now)
        elif request is self._log:
            self._log = None
            outputs = self._log_answered(request, answer, now)
        else:
            return []
        return outputs + self.tick(now)

    # What to ask next

    def _next(self, now: float) -> Request | None:
        if self._restore:
            return Restore()
        if self._found is not None:
            return Apply(self._found)
        if self.state is ReplicaState.STANDBY:
            return self._next_of_standby(now)
        if self.state is ReplicaState.CLAIMING:
            return self.newest.look()
        if self.state is ReplicaState.CHECKING:
            return Look()
        if self._part is None:
            self._part = self._wanted()
            if self._part is None:
                return None
            self._doubt = self._part.kind is Kind.FENCE  # first the parts of earlier terms are read
        fencing = self.state is ReplicaState.FENCING
        return ReadPart(self._part.number, fencing) if self._doubt else CreatePart(self._part)

    def _next_of_standby(self, now: float) -> Request | None:
        if self.newest.over and not self._damaged:
            self._move(ReplicaEvent.CLAIM)
            return self.newest.claim()
        if now >= self.newest.look_at:
            self.newest.look_at = now + self._timing.renewal
            return Look()
        if now >= self._read_at:
            ends, self._look_for_end = self._look_for_end or self._damaged, False
            return ReadPart(self.position.part + 1, ends)
        return None

    def _wanted(self) -> Part | None:
        """The part to create next."""
        if self.state is ReplicaState.FENCING:
            return self._new(Kind.FENCE, self.position.frame_no)
        if self._offered > self.position.frame_no:
            return self._new(Kind.FRAMES, self._offered)
        return self._new(Kind.END, self.position.frame_no) if self.state is ReplicaState.DRAINING else None

    def _new(self, kind: Kind, last_no: int) -> Part:
        return Part(self.position.part + 1, kind, self.term, self.nonce, self.position.frame_no + 1, last_no)

    # Answers about the log

    def _log_answered(self, request: Request, answer: Answer, now: float) -> list[Output]:
        if answer is Result.UNKNOWN:
            self._doubt = self._doubt or isinstance(request, CreatePart)
            self._log_at = now + self._pause
            self._pause = min(2 * self._pause, self._timing.retry_most)
            return []
        self._pause = self._timing.retry
        match request, answer:
            case Look(), Seen():
                return self._looked(answer, now)
            case CreatePart(), Result.DONE:
                return self._created()
            case CreatePart(), Result.TAKEN:
                self._doubt = True
            case ReadPart(), Part():
                self._damaged = False
                return self._read(answer)
            case ReadPart(), Result.ABSENT:
                return self._absent(request, now)
            case ReadPart(), Result.DAMAGED:
                return self._unreadable(now)
            case Apply(), Result.DONE:
                self._passed(request.part)
            case Apply(), Result.DIFFERS:
                self._restore = True
            case Restore(), Position():
                self._restored(answer)
            case CreateTerm(), _:
                pass  # the look that follows says whose the term is
        return []

    def _looked(self, seen: Seen, now: float) -> list[Output]:
        ours = self.state is ReplicaState.CLAIMING and seen.nonce == self.nonce
        if ours:
            self.newest.claimed(seen, now)
        self.newest.looked(seen, self._asked_at, now)
        if ours:
            self.term = seen.term
            self._life_at = now
            self._move(ReplicaEvent.OURS)
        elif self.state is ReplicaState.CHECKING:
            return self._checked(seen, now)
        else:
            self._look_for_end = True
            self.newest.note_holder(seen)
            if self.state is ReplicaState.CLAIMING:
                return self._lost(over=self.newest.over)
        return []

    def _checked(self, seen: Seen, now: float) -> list[Output]:
        fence, self._part = self._part, None
        assert fence is not None
        if not self._ours(seen.term, seen.nonce):
            return self._lost()
        if seen.unread >= fence.number:
            return self._unreadable(now)
        if self._outdated(seen, fence.number):
            self._restore = True
            self._move(ReplicaEvent.MISPLACED)
            return []
        self._passed(fence)
        self._move(ReplicaEvent.PLACED)
        return [Hold(self.term)]

    def _outdated(self, seen: Seen, number: int) -> bool:
        """Whether retention may have removed part `number`, which is the next one, or parts that were passed unseen."""
        return seen.manifest.part >= number or seen.manifest.frame_no > self.position.frame_no

    def _ours(self, term: int, nonce: str) -> bool:
        return (term, nonce) == (self.term, self.nonce)

    def _read(self, part: Part) -> list[Output]:
        if self.state is ReplicaState.STANDBY:
            self._take(part)
        elif self._ours(part.term, part.nonce):
            return self._created()
        elif self.state is ReplicaState.FENCING and part.term < self.term:
            self._part = None
            self._take(part)
        else:
            return self._lost()
        return []

    def _take(self, part: Part) -> None:
        """Apply a part of another replica, or of this machine's own past."""
        self._doubt = False
        if part.kind is not Kind.FRAMES:
            self._passed(part)
        elif part.first_no <= self.position.frame_no + 1:
            self._found = part
        else:
            self._restore = True

    def _passed(self, part: Part) -> None:
        self._found = None
        frames_end = part.last_no if part.kind is Kind.FRAMES else 0
        self.position = Position(part.number, max(frames_end, self.position.frame_no))
        self.newest.passed(part)

    def _unreadable(self, now: float) -> list[Output]:
        """The log is damaged before its end. A holder reads again. A candidate gives its term up: another machine may
        have what this one lacks. Until the object is back, this replica claims nothing."""
        self._log_at = self._read_at = now + self._timing.retry_most
        if self.state in HOLDERS:
            return []
        self._damaged = True
        return self._lost(over=True) if self.state in OWNING else []

    def _absent(self, request: ReadPart, now: float) -> list[Output]:
        """The log ends here, or retention has passed the replica. A part of a holder can be created again."""
        if self.state in HOLDERS:
            self._doubt = False
            return []
        seen = self.newest.seen
        if seen is not None and seen.unread > self.position.part:
            return self._unreadable(now)  # retention may have passed it, and nothing tells how far
        self._doubt = False
        if request.ends:
            self._damaged = False
        self._read_at = now + (self._timing.hurry if self.hurries else self._timing.follow)
        self._restore = seen is not None and self._outdated(seen, self.position.part + 1)
        if self.state is ReplicaState.FENCING and self.newest.may_answer(now):
            self._doubt = True
            self._log_at = self._read_at
        return []

    def _restored(self, position: Position) -> None:
        self.position = position
        self._read_at = 0.0
        self._restore = self._doubt = False
        self._look_for_end = True
        self._found = self._part = None

    def _created(self) -> list[Output]:
        """The part is in the log, and it is ours."""
        part = self._part
        assert part is not None
        self._doubt = False
        if part.kind is Kind.FENCE:
            self._move(ReplicaEvent.FENCED)  # `_part` stays, to be checked
            return []
        self._part = None
        self._passed(part)
        if part.kind is Kind.END:
            self._move(ReplicaEvent.ENDED)
            self._log = self._life = None
            return [Ended(deposed=self._gives_way)]
        return [Shipped(part)]

    # Answers about being alive

    def _life_answered(self, request: Request, answer: Answer, now: float) -> list[Output]:
        self._life = None
        if answer is Result.UNKNOWN:
            self._life_at = now + self._timing.retry
        elif isinstance(request, Renew):
            self._life = Look()
            return [self._life]
        elif isinstance(answer, Seen):
            self.newest.observe(answer, now)
            if not self._ours(answer.term, answer.nonce):
                return self._give_way(answer)
            self._answers_until = self._renewed_at + self._timing.silence
            self._life_at = self._renewed_at + self._timing.renewal
        return []

    def _give_way(self, seen: Seen) -> list[Output]:
        """Another replica has the term. A holder that is replaced answers nothing any more. It ships what was offered
        and ends its own term, so that the candidate need not wait; the fence may come first. A holder that answers
        without a term ends at once."""
        if self.state not in HOLDERS or seen.term < self.term or not self.newest.waits:
            return self._lost()
        self._answers_until = None
        self._life_at = math.inf
        self._gives_way = True
        self.drain()
        return []

    def _lost(self, *, over: bool = False) -> list[Output]:
        """The term is another replica's. `over`: that one is over, too."""
        self._move(ReplicaEvent.LOST)
        self.newest.over = over
        self._life = self._part = None
        if not isinstance(self._log, Apply | Restore):  # what the local shard does is waited for in any state
            self._log = self._found = None
        self._doubt = False
        self.term = 0
        self._answers_until = None
        if self.state is ReplicaState.DEPOSED:
            return [Ended(deposed=True)]
        return []

    def _move(self, event: ReplicaEvent) -> None:
        """The only place where the state changes."""
        self.state = after(self.state, event)

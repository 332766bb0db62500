"""The role: runs the replication protocol of one shard in its process's event loop, from the first moment to the last.

The protocol (`protocol.Replica`) decides about the term. `Role` gives it the time and the answers, and has its requests
carried out in worker threads: `objects` for the store, `local` for the files of a shard that is not open. `role_table`
says who follows, who holds and who gives up. When the shard is held and open, the role is the sink of its log
(`shipper.Sink`).

    shard        who holds it
    0            decided by terms; each shard with a roster, by its rank
    1 and up     the machine that holds shard 0: they never claim by themselves, and take over when shard 0 was

Where changes do not wait for the bucket (`async`), neither does the start of a machine that held the shard last: after
`ALONE_AFTER_S` it opens the shard **alone**, without a term. The protocol continues meanwhile, and the shard is claimed
when the bucket is back. If another machine has a term then, the role is over.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import structlog
import trio

from proto.ipc.control import ShardState
from proto.model.replication import Replication
from shardd.replication.attach import Term
from shardd.replication.folding import Folding
from shardd.replication.local_files import Local
from shardd.replication.log_reader import Frames
from shardd.replication.messages import (
    Answer,
    Apply,
    CreateTerm,
    Ended,
    Hold,
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
    Timing,
)
from shardd.replication.newest_term import NewestTerm
from shardd.replication.objects import Objects
from shardd.replication.protocol import Replica
from shardd.replication.read_ahead import BEHIND_S, ReadAhead
from shardd.replication.role_table import Act, RoleEvent, RoleState, act_on
from shardd.replication.states import HOLDERS, ReplicaState
from shardd.replication.store import StoreError

TURN_S = 0.1
"""Seconds between two looks of the protocol at the time."""
HURRY_S = 0.025
"""The same, of a shard that is moved."""
RETRY_S = 1.0
DRAIN_TIMEOUT = 5.0
ALONE_AFTER_S = 5.0
RESTORE_S = 3600.0
"""By so much a shard that has to be restored is behind at least: a restore may take hours."""
REPLACED = "another machine has taken the shard over"
LED = frozenset({"replay", "derive", "ready"})
"""Phases of shard 0 in which this machine holds it."""
_log: Any = structlog.get_logger()


class Role:
    """A shard's part in the replication. `run` returns when it is over: drained, deposed, or failed with `error`."""

    def __init__(
        self,
        objects: Objects,
        local: Local,
        timing: Timing,
        check: Callable[[], None],
        *,
        leads: bool,
        rank: float = 0,
        replication: Replication = Replication.SYNC,
        now: Callable[[], float] | None = None,
    ) -> None:
        """`check` asks whether the bucket is this service's. `leads`: the shard follows no other one. `rank` as in
        `NewestTerm`."""
        self.objects = objects
        self.local = local
        self._check = check
        self._leads = leads
        self.waits = replication.awaited
        """Whether changes wait for the bucket."""
        self._now = now or partial(time.clock_gettime, time.CLOCK_BOOTTIME)
        self._held_last = False
        self.newest = NewestTerm(objects.own.nonce, timing, automatic=self.waits, follows=not leads)
        self.newest.rank = rank
        self.replica: Replica | None = None
        self._fitting: str | None = None
        """Nonce of the term whose settings were found to be this machine's."""
        self._ahead = ReadAhead(objects, self._now)
        self.folding = Folding(local, self._now)
        self.held = trio.Event()
        """Set when the shard may be opened, or will never be."""
        self.claimed = trio.Event()
        """Set when the shard has a term of this process, or the role is over."""
        self.over = trio.Event()
        self.error: Exception | None = None
        self.reason = ""
        """Why the role is over, if this process did not end it."""
        self.holder: Term | None = None
        """The term of the machine that holds the shard, as far as is known, if it is another one."""
        self.damage = ""
        """The known damage in the bucket."""
        self.changed: Callable[[], None] = lambda: None
        """Called when `holder` or `damage` has changed."""
        self.taken: Callable[[Part, Frames], None] = lambda part, frames: None
        """Called when the part with these frames is in the bucket."""
        self._wake = trio.Event()
        self._arrived = trio.Event()
        self._frames: Frames | None = None
        self._nursery: trio.Nursery | None = None
        objects.frames_of = self._frames_of

    # What others ask

    def serving(self) -> bool:
        """Whether requests may be answered at this moment."""
        return self.replica is not None and self.replica.serving(self._now())

    @property
    def position(self) -> Position:
        return Position() if self.replica is None else self.replica.position

    def kept_no(self) -> int:
        """Keep the position, and return its frame: the log may be trimmed up to it. Blocks. Raises OSError."""
        position = self.position
        self.local.keep(position)
        return position.frame_no

    def take_over(self) -> None:
        """Take the shard over, also from a machine that holds it."""
        self._meet(RoleEvent.TAKE_OVER)

    def ranked(self, rank: float) -> None:
        if rank != self.newest.rank:
            self.newest.rank = rank
            self.newest.look_again()
            self._wake.set()

    def hurry(self, hurries: bool) -> None:
        """Whether the shard is moved, so that its next holder is looked for often."""
        changed, self.folding.moved = hurries != self.folding.moved, hurries
        if changed and self.replica is not None:
            self.replica.hurries = hurries
            self._wake.set()

    @property
    def lag_s(self) -> float:
        """By how many seconds a shard that is followed may be behind."""
        return self._now() - self._ahead.end_read_at

    def follow(self, states: Sequence[ShardState]) -> None:
        """Do as shard 0 of this machine does."""
        if self._leads or not states:
            return
        if states[0].phase in LED and (states[0].term or self.waits) and not self.held.is_set():
            self._meet(RoleEvent.LED)
        elif states[0].holder:
            self._meet(RoleEvent.LEFT, f"shard 0 is held by {states[0].holder}, which takes the other shards too")
        else:
            self._meet(RoleEvent.UNLED)

    # What happens, and what is done then

    @property
    def state(self) -> RoleState:
        if self.over.is_set():
            return RoleState.OVER
        if self.replica is None:
            return RoleState.LOOKING
        if self.replica.state in HOLDERS:
            return RoleState.HOLDING if self.held.is_set() else RoleState.TAKING
        if self.held.is_set():
            return RoleState.ALONE
        return RoleState.FOLLOWING if self.replica.state is ReplicaState.STANDBY else RoleState.CLAIMING

    def _meet(self, event: RoleEvent, reason: str = "") -> Act:
        """Do what the table says; what takes long is left to the caller. `reason`: why the role is over, if it is."""
        act = act_on(self.state, event)
        if act is Act.LEAVE:
            act = Act.END_TERM if self.waits else Act.END
        if act is Act.END:
            self._end(reason)
        elif act is Act.CLAIM:
            self.newest.take_over()
            self._wake.set()
        elif act is Act.STAND_BACK:
            self.newest.stand_back()
        elif act is Act.END_TERM:
            self.reason = self.reason or reason
            self._protocol.drain()
            self._wake.set()
        return act

    @property
    def _protocol(self) -> Replica:
        assert self.replica is not None
        return self.replica

    # The protocol

    async def run(self) -> None:
        try:
            await self._open_local()
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._turns)
                if self._held_last:
                    nursery.start_soon(self._open_alone)
                await self.over.wait()
                nursery.cancel_scope.cancel()
        except* Exception as errors:  # also one that comes with a cancellation, when the process is ended
            self.error = errors
            while isinstance(self.error, ExceptionGroup):
                self.error = self.error.exceptions[0]
        self._end("")
        self.held.set()
        self.claimed.set()

    async def _open_local(self) -> None:
        """Look at the files. Those of a machine that may continue alone are read without the bucket."""
        self._held_last = not self.waits and await in_thread(lambda: self.local.held)
        if not self._held_last:
            await self._patiently(self._check)
        position = await self._patiently(self.local.open)
        self.newest.previous = self.local.previous
        if self._leads and self.local.from_backup:
            self.newest.take_over()
        self.replica = Replica(self.newest, position)
        self.replica.hurries = self.folding.moved

    async def _patiently(self, call: Callable[[], Any]) -> Any:
        """Call until the store answers. Raises its errors that are lasting, unless the machine continues alone."""
        while True:
            try:
                return await in_thread(call)
            except StoreError as error:
                if error.lasting and not self._held_last:
                    raise
                self.objects.outage.failed(error)
                await trio.sleep(RETRY_S)

    async def _open_alone(self) -> None:
        """Let the shard be opened without a term, if the bucket does not answer for long."""
        with trio.move_on_after(ALONE_AFTER_S):
            await self.held.wait()
        alone = not self._replaced and self._meet(RoleEvent.SILENT) is Act.OPEN_ALONE
        if alone and await in_thread(self.local.freeze):
            _log.warning("opened_alone", reason="the bucket does not answer; what is logged is shipped when it does")
            self.held.set()

    @property
    def _replaced(self) -> bool:
        """Whether the last look showed a term of another machine, which is not over."""
        seen = self.newest.seen
        if self.replica is None or self.replica.state is not ReplicaState.STANDBY or not self.newest.waits_for_another:
            return False
        return seen is not None and seen.nonce not in self._own_nonces

    @property
    def _own_nonces(self) -> tuple[str, ...]:
        return self.newest.nonce, *self.newest.previous

    async def _turns(self) -> None:
        if self._held_last:
            await self._patiently(self._check)
        while True:
            self._do(self._protocol.tick(self._now()))
            self._look_for_holder()
            with trio.move_on_after(HURRY_S if self.folding.moved else TURN_S):
                await self._wake.wait()
            self._wake = trio.Event()

    def _look_for_holder(self) -> None:
        waits = self._protocol.state is ReplicaState.STANDBY and self.newest.waits_for_another
        holder = self.objects.holder if waits else None
        damage = str(self.objects.damage)
        if (holder, damage) != (self.holder, self.damage):
            self.holder, self.damage = holder, damage
            self.changed()

    def _do(self, outputs: Sequence[Output]) -> None:
        assert self._nursery is not None
        for each in outputs:
            if isinstance(each, Restore):  # before anything else may ask for the lag
                end_read_at = min(self._ahead.end_read_at, self._now() - RESTORE_S)
                self._ahead = ReadAhead(self.objects, self._now, end_read_at)  # what was absent may have been removed
            if isinstance(each, Request):
                self._nursery.start_soon(self._carry, each)
            elif isinstance(each, Hold):
                if self._meet(RoleEvent.HELD) is Act.HOLD:
                    self._nursery.start_soon(self._hold)
            elif isinstance(each, Shipped):
                self._shipped(each.part)
            elif isinstance(each, Ended):
                self._meet(RoleEvent.ENDED, REPLACED if each.deposed else "")

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.over.set()
        self._arrived.set()

    async def _carry(self, request: Request) -> None:
        answer: Answer = Result.UNKNOWN
        if isinstance(request, Apply | Restore):
            if isinstance(request, Restore) and self._meet(RoleEvent.DIFFERS, REPLACED) is not Act.MAKE_AGAIN:
                return
            answer = await trio.to_thread.run_sync(self.local.carry, request)
            if self._meet(RoleEvent.APPLIED) is Act.FOLD and isinstance(request, Apply):  # a restored log is short
                await self.folding.fold(self.lag_s)
        else:
            patience = self.newest.timing.time_to_live  # as long as a part may take on a slow line
            if isinstance(request, Renew) or (isinstance(request, Look) and self._protocol.state in HOLDERS):
                patience = self.newest.timing.renewal  # what a holder asks later says as much
            if isinstance(request, CreateTerm):
                await trio.to_thread.run_sync(self._note_claim, request)
            with trio.move_on_after(patience):
                if isinstance(request, ReadPart):
                    await self._ahead.fetched(request.number)
                found = await in_thread(partial(self.objects.carry, request))
                if not isinstance(found, Seen) or await self._fits(found):
                    answer = found  # not before: the comparison may take longer than there is patience
                if isinstance(request, ReadPart) and answer is Result.ABSENT:
                    self._ahead.end_read_at = self._now()
                elif isinstance(answer, Part) and self.lag_s >= BEHIND_S and self._nursery is not None:
                    self._ahead.behind(answer.number, self._nursery)
            if answer is Result.ABSENT and self.folding.due and self._meet(RoleEvent.APPLIED) is Act.FOLD:
                await self.folding.fold(self.lag_s)  # the log was long already when this process began to follow it
        self._do(self._protocol.answered(request, answer, self._now()))
        self._look_for_holder()
        if isinstance(answer, Seen) and self._replaced:
            await trio.to_thread.run_sync(self.local.follow)
            if self.held.is_set():
                self._meet(RoleEvent.REPLACED, REPLACED)

    async def _fits(self, seen: Seen) -> bool:
        """Compare the settings of a term that was not seen before, while this machine does not hold the shard. Returns
        False if the store does not answer. Raises `Mismatch`."""
        if self._protocol.state not in (ReplicaState.STANDBY, ReplicaState.CLAIMING) or self._fitting == seen.nonce:
            return True
        try:
            await in_thread(partial(self.objects.check_settings, self._own_nonces))
        except StoreError as error:
            self.objects.outage.failed(error)
            return False
        self._fitting = seen.nonce
        return True

    def _note_claim(self, request: CreateTerm) -> None:
        # A holder that waits for the bucket has acknowledged and shown nothing that the bucket lacks.
        self.local.claim("" if request.living else self.newest.nonce, skips=request.abrupt and not self.waits)

    async def _hold(self) -> None:
        """Make the directory this process's before the shard is opened."""
        await in_thread(self.local.close)
        await in_thread(partial(self.local.hold, self.position, self.newest.nonce))
        if self._leads:
            await in_thread(self.objects.note_settings)
        _log.info("term_begun", term=self._protocol.term, part=self.position.part)
        self.held.set()
        self.claimed.set()

    # The sink of the log, see `shipper.Sink`

    def begin(self, upto_no: int, ship: Callable[[], Awaitable[None]]) -> None:
        """Frames up to `upto_no` are in the bucket, or in no part. `ship` runs until the role is over."""
        if self._nursery is not None and not self.over.is_set():
            self._protocol.pass_hole(upto_no)
            self._nursery.start_soon(ship)

    async def put(self, frames: Frames) -> None:
        """Create the part with these frames. Returns when it is in the bucket, or the role is over."""
        self._frames = frames
        self._protocol.offer(frames.last_no)
        self._do(self._protocol.tick(self._now()))
        while self.position.frame_no < frames.last_no and not self.over.is_set():
            await self.arrived()

    async def arrived(self) -> None:
        """Returns when the next part is in the bucket, or the role is over."""
        await self._arrived.wait()

    def _frames_of(self, part: Part) -> Frames:
        frames = self._frames
        assert frames is not None
        assert (part.first_no, part.last_no) == (frames.first_no, frames.last_no)
        return frames

    def _shipped(self, part: Part) -> None:
        self.taken(part, self._frames_of(part))
        self._arrived.set()
        self._arrived = trio.Event()

    async def finish(self, caught_up: Callable[[], Awaitable[None]]) -> None:
        """End the term when `caught_up` returns. Gives up after `DRAIN_TIMEOUT`."""
        if self.claimed.is_set():
            with trio.move_on_after(DRAIN_TIMEOUT):
                await caught_up()
                if self._meet(RoleEvent.DRAIN) is Act.END_TERM:
                    self._do(self._protocol.tick(self._now()))
                    await self.over.wait()
                if self.replica is not None and self.replica.state is ReplicaState.DRAINED:
                    try:
                        await in_thread(self.local.ended)
                    except OSError as error:  # the next process takes the term for its own, and may be the next holder
                        _log.error("end_not_kept", reason=str(error))
                    return
        _log.error("term_not_ended", reason=self.reason or "the bucket did not answer in time")


async def in_thread(call: Callable[[], Any]) -> Any:
    """Run a blocking call. A cancelled one is left to itself: it ends with the process, at the latest."""
    return await trio.to_thread.run_sync(call, abandon_on_cancel=True)

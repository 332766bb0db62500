"""The role: runs the replication protocol of one shard in its process's event loop, from the first moment to the last.

The protocol (`protocol.Replica`) decides. `Role` gives it the time and the answers, and has its requests carried out in
worker threads: `objects` for the store, `local` for the files of a shard that is not open. When the shard is held and
open, `ship` offers what is synced, a part at a time.

    shard        who holds it
    0            decided by terms
    1 and up     the machine that holds shard 0: they never claim by themselves, and take over when shard 0 was

Where changes do not wait for the bucket (`async`), neither does the start of a machine that held the shard last: after
`ALONE_AFTER_S` it opens the shard **alone**, without a term. The protocol continues meanwhile, and the shard is claimed
when the bucket is back. If another machine has a term then, the role is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import structlog
import trio

from proto.ipc.control import ShardState
from proto.model.replication import Replication
from shardd.replication.attach import Log
from shardd.replication.log_reader import Frames, LogReader
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
    Renew,
    Request,
    Restore,
    Result,
    Seen,
    Shipped,
    Timing,
)
from shardd.replication.objects import Objects
from shardd.replication.pace import PART_BYTES, Pace
from shardd.replication.protocol import Replica
from shardd.replication.states import HOLDERS, State
from shardd.replication.store import StoreError

TURN_S = 0.1
"""Seconds between two looks of the protocol at the time."""
RETRY_S = 1.0
READ_AT_ONCE = 256 << 10
"""Bytes of a log that were synced last and are still in memory: reading them takes less time than a thread."""
DRAIN_TIMEOUT = 5.0
ALONE_AFTER_S = 5.0
REPLACED = "another machine has taken the shard over"
LED = frozenset({"replay", "derive", "ready"})
"""Phases of shard 0 in which this machine holds it."""
_log: Any = structlog.get_logger()


class Local(Protocol):
    """The files of a shard that is not open. All block."""

    from_backup: bool

    @property
    def unshipped(self) -> bool: ...

    def all_shipped(self) -> None: ...

    @property
    def previous(self) -> tuple[str, ...]: ...

    @property
    def held(self) -> bool: ...

    @property
    def lineage(self) -> str: ...

    @property
    def skips(self) -> bool: ...

    def skipped(self) -> None: ...

    def open(self) -> Position: ...

    def carry(self, request: Request) -> Answer: ...

    def keep(self, position: Position) -> None: ...

    def claim(self, nonce: str, *, skips: bool) -> None: ...

    def hold(self, position: Position, nonce: str) -> None: ...

    def follow(self) -> None: ...

    def freeze(self) -> bool: ...

    def fold(self) -> None: ...

    def close(self) -> None: ...


class Role:
    """A shard's part in the replication. `run` returns when it is over: drained, deposed, or failed with `error`."""

    def __init__(
        self,
        nonce: str,
        objects: Objects,
        local: Local,
        timing: Timing,
        check: Callable[[], None],
        *,
        leads: bool,
        replication: Replication = Replication.SYNC,
        interval_s: float = 0.0,
        now: Callable[[], float] | None = None,
    ) -> None:
        """`check` asks whether the bucket is this service's. `leads`: the shard is number 0. `interval_s`: see
        `Pace`."""
        self.nonce = nonce
        self.objects = objects
        self.local = local
        self._timing = timing
        self._check = check
        self._leads = leads
        self._waits = replication.awaited
        self._waiting_bytes = READ_AT_ONCE + 1
        self._pace = Pace(interval_s, replication.awaited)
        self._now = now or partial(time.clock_gettime, time.CLOCK_BOOTTIME)
        self._by_hand = False
        self._alone = False
        self._ending = False
        self._held_last = False
        self.replica: Replica | None = None
        self._fitting: str | None = None
        """Nonce of the term whose settings were found to be this machine's."""
        self.held = trio.Event()
        """Set when the shard may be opened, or will never be."""
        self.claimed = trio.Event()
        """Set when the shard has a term of this process, or the role is over."""
        self.over = trio.Event()
        self.error: Exception | None = None
        self.reason = ""
        """Why the role is over, if this process did not end it."""
        self.holder = ""
        """Address of the machine that holds the shard, as far as is known, if it is another one."""
        self.damage = ""
        """The known damage in the bucket."""
        self.changed: Callable[[], None] = lambda: None
        """Called when `holder` or `damage` has changed."""
        self.shipped: Callable[[Part, Frames], None] = lambda part, frames: None
        """Called when the part with these frames is in the bucket."""
        self._wake = trio.Event()
        self._news = trio.Event()
        self._full = trio.Event()
        self._arrived = trio.Event()
        self._frames: Frames | None = None
        self._part: Part | None = None
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
        self._by_hand = True
        if self.replica is not None and self.replica.state not in HOLDERS:
            self.replica.take_over()
        self._wake.set()

    def follow(self, states: Sequence[ShardState]) -> None:
        """Do as shard 0 of this machine does."""
        if self._leads or not states:
            return
        claimed = states[0].term > 0 or self._waits
        if states[0].phase in LED and claimed and not self.held.is_set():
            self.take_over()
        elif states[0].holder:
            self._by_hand = False
            if self.replica is not None:
                self.replica.stand_back()
            if self.held.is_set():
                self._leave(f"shard 0 is held by {states[0].holder}, which takes the other shards too")

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
        except Exception as error:
            self.error = _single(error)
        self._end("")
        self.held.set()
        self.claimed.set()

    async def _open_local(self) -> None:
        """Look at the files. Those of a machine that may continue alone are looked at without the bucket."""
        self._held_last = not self._waits and await in_thread(lambda: self.local.held)
        if not self._held_last:
            await self._patiently(self._check)
        position = await self._patiently(self.local.open)
        self.replica = Replica(
            self.nonce,
            position,
            self._timing,
            previous=self.local.previous,
            automatic=self._waits,
            follows=not self._leads,
        )
        if self._by_hand or (self._leads and self.local.from_backup):
            self.replica.take_over()

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
        assert self.replica is not None
        with trio.move_on_after(ALONE_AFTER_S):
            await self.held.wait()
        if not self.held.is_set() and self.replica.state is State.STANDBY and not self._replaced:
            self._alone = await in_thread(self.local.freeze)
        if self._alone:
            _log.warning("opened_alone", reason="the bucket does not answer; what is logged is shipped when it does")
            self.held.set()

    @property
    def _replaced(self) -> bool:
        """Whether the last look showed a term of another machine, which is not over."""
        replica = self.replica
        if replica is None or replica.state is not State.STANDBY or not replica.waits_for_another:
            return False
        return replica.seen is not None and replica.seen.nonce not in (self.nonce, *self.local.previous)

    async def _turns(self) -> None:
        assert self.replica is not None
        if self._held_last:
            await self._patiently(self._check)
        while True:
            self._do(self.replica.tick(self._now()))
            self._look_for_holder()
            with trio.move_on_after(TURN_S):
                await self._wake.wait()
            self._wake = trio.Event()

    def _look_for_holder(self) -> None:
        assert self.replica is not None
        waits = self.replica.state is State.STANDBY and self.replica.waits_for_another
        holder = self.objects.holder if waits else ""
        damage = str(self.objects.damage)
        if (holder, damage) != (self.holder, self.damage):
            self.holder, self.damage = holder, damage
            self.changed()

    def _do(self, outputs: Sequence[Output]) -> None:
        assert self._nursery is not None
        for each in outputs:
            if isinstance(each, Request):
                self._nursery.start_soon(self._carry, each)
            elif isinstance(each, Hold):
                self._nursery.start_soon(self._hold)
            elif isinstance(each, Shipped):
                self._ship_ended(each.upto_no)
            elif isinstance(each, Ended):
                self._end(REPLACED if each.deposed else "")

    def _leave(self, reason: str) -> None:
        """End the role. With `sync`, end the term first if there is one, so that its next owner need not wait."""
        if self.replica is None or self.replica.state not in HOLDERS or not self._waits:
            self._end(reason)
            return
        self.reason = self.reason or reason
        self.replica.drain()
        self._wake.set()

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.over.set()
        self._arrived.set()

    async def _carry(self, request: Request) -> None:
        assert self.replica is not None
        answer: Answer = Result.UNKNOWN
        if isinstance(request, Apply | Restore):
            if self._alone and isinstance(request, Restore):
                self._end(REPLACED)
                return
            answer = await trio.to_thread.run_sync(self.local.carry, request)
            if self.replica.state is State.STANDBY and not self._alone:
                await trio.to_thread.run_sync(self.local.fold)
        else:
            patience = self._timing.time_to_live  # as long as a part may take on a slow line
            if isinstance(request, Renew) or (isinstance(request, Look) and self.replica.state in HOLDERS):
                patience = self._timing.renewal  # what a holder asks later says as much
            if isinstance(request, CreateTerm):
                await trio.to_thread.run_sync(self._note_claim, request)
            with trio.move_on_after(patience):
                answer = await in_thread(partial(self.objects.carry, request))
                if isinstance(answer, Seen) and not await self._fits(answer):
                    answer = Result.UNKNOWN
        self._do(self.replica.answered(request, answer, self._now()))
        self._look_for_holder()
        if isinstance(answer, Seen) and self._replaced:
            await trio.to_thread.run_sync(self.local.follow)
            if self._alone:
                self._end(REPLACED)

    async def _fits(self, seen: Seen) -> bool:
        """Compare the settings of a term that was not seen before, while this machine does not hold the shard. Returns
        False if the store does not answer. Raises `Mismatch`."""
        assert self.replica is not None
        if self.replica.state not in (State.STANDBY, State.CLAIMING) or self._fitting == seen.nonce:
            return True
        try:
            await in_thread(partial(self.objects.check_settings, (self.nonce, *self.local.previous)))
        except StoreError as error:
            self.objects.outage.failed(error)
            return False
        self._fitting = seen.nonce
        return True

    def _note_settings(self) -> None:
        try:
            self.objects.note_settings()
        except StoreError as error:
            self.objects.outage.failed(error)  # each term has them; the next one tries again

    def _note_claim(self, request: CreateTerm) -> None:
        # A holder that waits for the bucket has acknowledged and shown nothing that the bucket lacks.
        self.local.claim("" if request.living else self.nonce, skips=request.abrupt and not self._waits)

    async def _hold(self) -> None:
        """Make the directory this process's before the shard is opened."""
        assert self.replica is not None
        await in_thread(self.local.close)
        await in_thread(partial(self.local.hold, self.replica.position, self.nonce))
        if self._leads:
            await in_thread(self._note_settings)
        _log.info("term_begun", term=self.replica.term, part=self.replica.position.part)
        self.held.set()
        self.claimed.set()

    # Shipping

    def synced(self, waiting_bytes: int) -> None:
        """Called after each sync of the log, with the bytes that are not in the bucket."""
        self._news.set()
        self._waiting_bytes = waiting_bytes
        if self._pace.enough(waiting_bytes):
            self._full.set()

    def ship(self, log: Log, reader: LogReader) -> None:
        """Ship synced frames from now on. `reader` is where the bucket's log ends, or after a hole in it."""
        assert self.replica is not None
        if self._nursery is not None and not self.over.is_set():
            self.replica.pass_hole(reader.next_no - 1)
            self._news.set()
            self._nursery.start_soon(self._ship, log, reader)

    async def _ship(self, log: Log, reader: LogReader) -> None:
        assert self.replica is not None
        while not self.over.is_set():
            await self._news.wait()
            with trio.move_on_at(self._pace.due):
                await self._full.wait()
            self._news = trio.Event()
            if not self._ending:
                self._full = trio.Event()
            self._pace.turn(trio.current_time())
            upto_no = log.synced_no
            while reader.next_no <= upto_no and (frames := await self._read(reader, upto_no)):
                self._frames = frames
                self._pace.begun(trio.current_time(), len(frames.data))
                self.replica.offer(frames.last_no)
                self._do(self.replica.tick(self._now()))
                while self.position.frame_no < frames.last_no and not self.over.is_set():
                    await self._arrived.wait()
                self._pace.ended(trio.current_time())

    async def _read(self, reader: LogReader, upto_no: int) -> Frames | None:
        """The frames of the next part, if there are any up to `upto_no`."""
        while True:
            try:
                if self._waiting_bytes <= READ_AT_ONCE:
                    return reader.take(upto_no, PART_BYTES)
                frames: Frames | None = await in_thread(partial(reader.take, upto_no, PART_BYTES))
                return frames
            except OSError as error:
                _log.error("log_not_read", reason=str(error))
                await trio.sleep(RETRY_S)

    def _frames_of(self, part: Part) -> Frames:
        frames = self._frames
        assert frames is not None
        assert (part.first_no, part.last_no) == (frames.first_no, frames.last_no)
        self._part = part
        return frames

    def _ship_ended(self, upto_no: int) -> None:
        assert self._frames is not None
        assert self._part is not None
        assert self._frames.last_no == upto_no
        self.shipped(self._part, self._frames)
        self._arrived.set()
        self._arrived = trio.Event()

    async def caught_up(self, log: Log) -> None:
        """Return when everything synced is in the bucket, or the role is over."""
        while self.position.frame_no < log.synced_no and not self.over.is_set():
            await self._arrived.wait()

    async def drain(self, log: Log) -> None:
        """Ship all synced frames, and end the term. Gives up after `DRAIN_TIMEOUT`."""
        self._ending = True
        self._news.set()
        self._full.set()
        if self.claimed.is_set():
            with trio.move_on_after(DRAIN_TIMEOUT):
                await self.caught_up(log)
                if self.replica is not None and not self.over.is_set():
                    self.replica.drain()
                    self._do(self.replica.tick(self._now()))
                    await self.over.wait()
                if self.replica is not None and self.replica.state is State.DRAINED:
                    return
        _log.error("term_not_ended", reason=self.reason or "the bucket did not answer in time")


def _single(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


async def in_thread(call: Callable[[], Any]) -> Any:
    """Run a blocking call. A cancelled one is left to itself: it ends with the process, at the latest."""
    return await trio.to_thread.run_sync(call, abandon_on_cancel=True)

"""The shipper: an open shard's log on its way to a sink, and checkpoints beside it, in the shard's event loop.

    attaching ──begin──► holder ──the role is over──► deposed

A `Shipper` reads what is synced and puts it into a `Sink`, a part at a time. A `Holder` joins one to a `Role`, which is
the sink of a bucket, keeps account (`progress`), and copies checkpoints (`checkpoint_copies`). A part's steps, and what
the next start finds if the process dies after each:

1  read     synced frames that follow the last part          the same frames, read again
2  create   the part                                         the part is in the bucket: continue after it. Or not:
                                                             the frames are read again, and shipped in the new term
3  note     the position, which lets the log be trimmed      as after step 2

A fault of the bucket stops none of the shard's work, unless changes wait for the bucket. The log is kept until it is
shipped, as long as the disk has TOPICS_MIN_FREE_BYTES; then writes are refused as on any full disk.

When the next part is created, seen from the part before (`Pace`):

    changes wait for the bucket    as much waits as the part before had, or half of the time has passed that it took
                                   (50 ms at most)
    they do not                    a part of the largest size waits, or the interval has passed

Writers that wait for a part send again when it is there, one a little after the other. Without the pause the first of
them would get a part of its own, and all the others would wait for that one and for the next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog
import trio

from proto.ipc.figures import ReplicaFigures
from proto.model.limits import Limits
from shardd.clock import Clock
from shardd.leaders import Leader
from shardd.replication.browse import patiently
from shardd.replication.checkpoint_copies import CheckpointCopies, Stopped
from shardd.replication.checkpoint_files import Outrun, Uploaded
from shardd.replication.log_reader import Frames, LogGone, LogReader
from shardd.replication.manifests import ManifestError
from shardd.replication.messages import Part, Position
from shardd.replication.progress import Progress
from shardd.replication.role import Role, in_thread
from shardd.replication.store import StoreError
from shardd.storage.catalog import CatalogError
from shardd.storage.disk import Disk
from shardd.storage.wal import Wal

PART_BYTES = 4 << 20
"""A part is created at once when so many bytes wait. It is not larger, unless a frame is."""
LONGEST_PAUSE_S = 0.05
READ_AT_ONCE = 256 << 10
"""Bytes of a log that were synced last and are still in memory: reading them takes less time than a thread."""
READ_AGAIN_S = 1.0
RETRY_S = 5.0
_log: Any = structlog.get_logger()


class Sink(Protocol):
    """Where a log is shipped to. `Role` is the one of a bucket; a shard without a bucket has none, and no shipper."""

    taken: Callable[[Part, Frames], None]
    """Called when the part with these frames is there."""
    over: trio.Event
    """Set when nothing more is taken."""

    @property
    def position(self) -> Position:
        """The last part that is there, and its last frame."""

    def begin(self, upto_no: int, ship: Callable[[], Awaitable[None]]) -> None:
        """The next part begins after frame `upto_no`. Runs `ship` until the sink is over."""

    async def put(self, frames: Frames) -> None:
        """Make a part of the frames. Returns when it is there, or the sink is over."""

    async def arrived(self) -> None:
        """Returns when the next part is there, or the sink is over."""

    async def finish(self, caught_up: Callable[[], Awaitable[None]]) -> None:
        """End the sink in order when `caught_up` returns, if that is in time."""


class Pace:
    """When the next part is created. Times are those of one monotonic clock, in seconds."""

    def __init__(self, interval_s: float, waits: bool) -> None:
        self._interval_s = interval_s
        self._waits = waits
        self._enough = 0 if waits else PART_BYTES
        self._under_way = 0
        self._begun = 0.0
        self.due = float("-inf")
        """When the next part is created, whatever waits."""

    def turn(self, now: float) -> None:
        """What waits is put into parts from now on."""
        self.due = now + self._interval_s

    def begun(self, now: float, length: int) -> None:
        """A part with `length` bytes of frames is under way."""
        self._begun, self._under_way = now, length
        if self._waits:
            self._enough = min(length, PART_BYTES)

    def ended(self, now: float) -> None:
        """It is in the bucket."""
        self._under_way = 0
        if self._waits:
            self.due = now + min((now - self._begun) / 2, LONGEST_PAUSE_S)

    def enough(self, waiting_bytes: int) -> bool:
        """Whether a part is created before it is due. `waiting_bytes` are those that are not in the bucket."""
        return waiting_bytes - self._under_way >= self._enough


class Shipper:
    def __init__(self, sink: Sink, reader: LogReader, log: Wal, clock: Clock, pace: Pace) -> None:
        self.reader = reader
        self.progress = Progress(log, clock)
        self.shipped: Callable[[int], None] = lambda upto_no: None
        """Called with the last frame of each part that was created."""
        self._sink = sink
        self._log = log
        self._clock = clock
        self._pace = pace
        self._waiting_bytes = READ_AT_ONCE + 1
        self._news = trio.Event()
        self._full = trio.Event()
        self._part = trio.Event()
        self._ending = False
        sink.taken = self._taken

    def attach(self) -> bool:
        """Find where shipping continues. Returns True if frames before that are gone. Blocks. Raises OSError."""
        position, hole = self._sink.position, False
        try:
            self.reader.seek(position.frame_no + 1, self._log.synced_no)
        except LogGone as gone:
            self.reader.seek(gone.first_no, self._log.synced_no)
            hole = gone.first_no > position.frame_no + 1
        self.progress.begin(position.part, self.reader.next_no - 1, self.reader.behind())
        return hole

    def begin(self) -> None:
        """Ship what is synced from now on."""
        self._news.set()
        self._sink.begin(self.reader.next_no - 1, self._ship)

    def synced(self) -> None:
        """Called after each sync of the log."""
        self.progress.synced()
        if self._log.synced_no > self.progress.shipped_no:
            self._waiting_bytes = self.progress.lag_bytes
            self._news.set()
            if self._pace.enough(self._waiting_bytes):
                self._full.set()

    async def caught_up(self) -> None:
        """Return when everything synced is in the sink, or that is over."""
        while self._sink.position.frame_no < self._log.synced_no and not self._sink.over.is_set():
            await self._sink.arrived()

    async def next_part(self) -> None:
        """Return when the next part is there."""
        await self._part.wait()

    async def drain(self) -> None:
        """Ship what is synced, and end the sink."""
        self._ending = True
        self._news.set()
        self._full.set()
        await self._sink.finish(self.caught_up)

    async def _ship(self) -> None:
        while not self._sink.over.is_set():
            await self._news.wait()
            with trio.move_on_at(self._pace.due):
                await self._full.wait()
            self._news = trio.Event()
            if not self._ending:
                self._full = trio.Event()
            self._pace.turn(trio.current_time())
            upto_no = self._log.synced_no
            while self.reader.next_no <= upto_no and (frames := await self._read(upto_no)):
                self._pace.begun(trio.current_time(), len(frames.data))
                await self._sink.put(frames)
                self._pace.ended(trio.current_time())

    async def _read(self, upto_no: int) -> Frames | None:
        """The frames of the next part, if there are any up to `upto_no`."""
        while True:
            try:
                if self._waiting_bytes <= READ_AT_ONCE:
                    return self.reader.take(upto_no, PART_BYTES)
                frames: Frames | None = await in_thread(partial(self.reader.take, upto_no, PART_BYTES))
                return frames
            except OSError as error:
                _log.error("log_not_read", reason=str(error))
                await trio.sleep(READ_AGAIN_S)

    def _taken(self, part: Part, frames: Frames) -> None:
        assert frames.first_no == self.progress.shipped_no + 1, "a part has the frames that follow the last one's"
        self.progress.shipped(part.number, part.last_no, len(frames.data), self._clock.monotonic())
        self._part.set()
        self._part = trio.Event()
        self.shipped(self.progress.shipped_no)


class Standing(StrEnum):
    ATTACHING = "attaching"
    HOLDER = "holder"
    DEPOSED = "deposed"


class Holder:
    """The copy of one open shard in a bucket."""

    def __init__(
        self, role: Role, disk: Disk, path: Path, log: Wal, clock: Clock, limits: Limits, interval_s: float = 0.0
    ) -> None:
        """`interval_s`: see `Pace`."""
        self._role = role
        self.shipper = Shipper(role, LogReader(disk, path / "wal"), log, clock, Pace(interval_s, role.waits))
        self.synced = self.shipper.synced
        progress = self.progress = self.shipper.progress
        self.copies = CheckpointCopies(role.objects, disk, path, log, clock, limits, progress)
        role.objects.outage.lag_bytes = lambda: progress.lag_bytes
        self._standing = Standing.ATTACHING
        self._checkpoint = trio.Event()
        self._saved = trio.Event()
        """Set but while a copy of the next checkpoint is wanted, whether or not one is due."""
        self._saved.set()

    # What the shard tells, and asks

    def checkpointed(self) -> None:
        """Called after each checkpoint."""
        self._checkpoint.set()

    async def save(self) -> None:
        """Return when the next checkpoint is in the bucket, or an equal one."""
        saved = self._saved = trio.Event()
        await saved.wait()

    def figures(self) -> ReplicaFigures:
        progress, replica = self.progress, self._role.replica
        return ReplicaFigures(
            role=self._standing,
            term=replica.term if replica is not None else 0,
            lag_bytes=progress.lag_bytes,
            lag_ms=progress.lag_ms,
            parts_total=progress.parts,
            part_bytes_total=progress.part_bytes,
            manifests_total=self.copies.made,
            failures_total=self._role.objects.outage.failures,
            damaged=len(self._role.objects.damage),
            machine=self._role.objects.own.member,
        )

    def leaders(self) -> Sequence[Leader]:
        term = self._role.objects.holder
        return () if term is None else term.leaders

    # The term

    async def begin(self) -> None:
        """When the shard is claimed, ship what the log has more than the bucket, and the newest checkpoint if the
        bucket has no use for the log without it. Returns when it is there, or the role is over. Raises `CatalogError`,
        `ManifestError`, `Outrun`, OSError."""
        await self._role.claimed.wait()
        if self._role.over.is_set():
            return
        await in_thread(self.attach)
        self.shipper.begin()
        await self.shipper.caught_up()
        if self.copies.missing and not self._role.over.is_set():
            await self._copy_checkpoint()

    def attach(self) -> None:
        """Find where shipping continues. Blocks, also while the bucket is away. Raises `ManifestError`, `StoreError`,
        OSError."""
        role = self._role
        assert role.replica is not None
        newest = patiently(role.objects.newest_head)
        hole = self.shipper.attach()
        self.copies.begin(role.replica.term, role.local.mark, newest, hole=hole)
        self._standing = Standing.HOLDER

    async def run(self) -> None:
        """Ship and copy checkpoints until cancelled, or until the role is over."""
        self._checkpoint.set()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._work)
                await self._role.over.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.copies.stopping.set()
        self._standing = Standing.DEPOSED

    async def _work(self) -> None:
        while self._standing is Standing.ATTACHING:
            try:
                await self.begin()
            except (StoreError, ManifestError, CatalogError, Outrun, OSError) as error:
                _log.error("not_attached", reason=str(error))
                await trio.sleep(RETRY_S)
        await self._copy_checkpoints()

    # Checkpoints

    async def _copy_checkpoints(self) -> None:
        while True:
            await self._checkpoint.wait()
            self._checkpoint = trio.Event()
            saved = self._saved
            if not self.copies.due and saved.is_set():
                continue
            try:
                if await self._copy_checkpoint():
                    saved.set()
                    await in_thread(self.copies.retain)
            except (Outrun, CatalogError, ManifestError, OSError) as error:
                _log.error("checkpoint_not_copied", reason=str(error), action="the next one is tried")
            except Stopped:
                return

    async def _copy_checkpoint(self) -> bool:
        """Copy the newest checkpoint. Returns False if there is none."""
        uploaded = await in_thread(self.copies.upload)
        if uploaded is None:
            return False
        while not self.copies.covers(uploaded):
            await self.shipper.next_part()
        await in_thread(partial(self._create_manifest, uploaded))
        return True

    def _create_manifest(self, uploaded: Uploaded) -> None:
        self.copies.create_manifest(uploaded)
        if self._role.local.mark.unshipped and not self.copies.missing:
            self._role.local.all_shipped()

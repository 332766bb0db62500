"""The holder: an open shard and its copy in a bucket, in the shard's event loop.

    attaching ──begin──► holder ──the role is over──► deposed

`role` ships the parts; a `Holder` tells it of syncs, keeps account (`progress`), and copies checkpoints beside them
(`checkpoint_copies`). A part's steps, and what the next start finds if the process dies after each:

1  read     synced frames that follow the last part          the same frames, read again
2  create   the part                                         the part is in the bucket: continue after it. Or it is not:
                                                             the frames are read again, and shipped in the new term
3  note     the position, which lets the log be trimmed      as after step 2

A fault of the bucket stops none of the shard's work, unless changes wait for the bucket. The log is kept until it is
shipped, as long as the disk has TOPICS_MIN_FREE_BYTES; then writes are refused as on any full disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio

from proto.model.limits import Limits
from shardd.clock import Clock
from shardd.replication.attach import Log
from shardd.replication.browse import patiently
from shardd.replication.checkpoint_copies import CheckpointCopies, Stopped
from shardd.replication.checkpoint_files import Outrun, Uploaded
from shardd.replication.log_reader import Frames, LogGone, LogReader
from shardd.replication.manifests import ManifestError
from shardd.replication.messages import Part
from shardd.replication.progress import Progress
from shardd.replication.role import Role, in_thread
from shardd.replication.store import StoreError
from shardd.storage.catalog import CatalogError
from shardd.storage.disk import Disk

RETRY_S = 5.0
_log: Any = structlog.get_logger()


class Standing(StrEnum):
    ATTACHING = "attaching"
    HOLDER = "holder"
    DEPOSED = "deposed"


@dataclass(frozen=True, slots=True)
class ReplicaStatistics:
    role: str
    term: int
    lag_bytes: int
    lag_ms: int
    parts_total: int
    part_bytes_total: int
    manifests_total: int
    failures_total: int
    damaged: int
    """Objects of the bucket that are known to be damaged or missing."""


class Holder:
    """The copy of one open shard."""

    def __init__(self, role: Role, disk: Disk, path: Path, log: Log, clock: Clock, limits: Limits) -> None:
        self._role = role
        self._log = log
        self._clock = clock
        self._reader = LogReader(disk, path / "wal")
        objects = role.objects
        self._outage = objects.outage
        self.progress = Progress(log, clock)
        self.copies = CheckpointCopies(
            objects.store, objects.names, disk, path, log, clock, limits, self.progress, self._outage
        )
        self._outage.lag_bytes = lambda: self.progress.lag_bytes
        self._standing = Standing.ATTACHING
        self._checkpoint = trio.Event()
        self._shipped = trio.Event()
        self.shipped: Callable[[int], None] = lambda upto_no: None
        """Called with the last frame of each part that was created."""
        role.shipped = self._part_shipped

    @property
    def shipped_no(self) -> int:
        return self.progress.shipped_no

    @property
    def ended(self) -> str:
        """Why `run` returned."""
        return self._role.reason

    # What the shard tells

    def synced(self) -> None:
        """Called after each sync of the log."""
        self.progress.synced()
        if self._log.synced_no > self.shipped_no:
            self._role.synced(self.progress.lag_bytes)

    def checkpoint_made(self) -> None:
        self._checkpoint.set()

    # The term

    async def begin(self) -> None:
        """When the shard is claimed, ship what the log has more than the bucket, and the newest checkpoint if the
        bucket has no use for the log without it. Returns when it is there, or the role is over. Raises `CatalogError`,
        `ManifestError`, `Outrun`, OSError."""
        await self._role.claimed.wait()
        if self._role.over.is_set():
            return
        await in_thread(self.attach)
        self._role.ship(self._log, self._reader)
        await self._role.caught_up(self._log)
        if self.copies.missing and not self._role.over.is_set():
            await self._copy_checkpoint()

    def attach(self) -> None:
        """Find where shipping continues. Blocks, also while the bucket is away. Raises `ManifestError`, `StoreError`,
        OSError."""
        role, hole = self._role, False
        assert role.replica is not None
        position = role.position
        try:
            self._reader.seek(position.frame_no + 1, self._log.synced_no)
        except LogGone as gone:
            self._reader.seek(gone.first_no, self._log.synced_no)
            hole = gone.first_no > position.frame_no + 1
        newest = patiently(role.objects.newest_head)
        self.progress.begin(position.part, self._reader.next_no - 1, self._reader.behind())
        local = role.local
        self.copies.begin(role.replica.term, role.nonce, local.lineage, newest, hole=hole, unshipped=local.unshipped)
        self._standing = Standing.HOLDER

    def _part_shipped(self, part: Part, frames: Frames) -> None:
        self.progress.shipped(part.number, part.last_no, len(frames.data), self._clock.monotonic())
        self._shipped.set()
        self._shipped = trio.Event()
        self.shipped(self.shipped_no)

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

    async def drain(self) -> None:
        """Ship all synced frames, and end the term."""
        await self._role.drain(self._log)

    async def _copy_checkpoints(self) -> None:
        while True:
            await self._checkpoint.wait()
            self._checkpoint = trio.Event()
            if not self.copies.due:
                continue
            try:
                if await self._copy_checkpoint():
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
            await self._shipped.wait()
        await in_thread(partial(self._create_manifest, uploaded))
        return True

    def _create_manifest(self, uploaded: Uploaded) -> None:
        self.copies.create_manifest(uploaded)
        if self._role.local.unshipped and not self.copies.missing:
            self._role.local.all_shipped()

    def statistics(self) -> ReplicaStatistics:
        progress, replica = self.progress, self._role.replica
        return ReplicaStatistics(
            role=self._standing,
            term=replica.term if replica is not None else 0,
            lag_bytes=progress.lag_bytes,
            lag_ms=progress.lag_ms,
            parts_total=progress.parts,
            part_bytes_total=progress.part_bytes,
            manifests_total=self.copies.made,
            failures_total=self._outage.failures,
            damaged=len(self._role.objects.damage),
        )

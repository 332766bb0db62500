"""A shard without processes that ships to a store, and its copy restored to another disk.

The protocol, the files and the copy are the real ones. `Stepped` has no event loop: it carries out each request where
it is made.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import msgspec

from proto.ipc.figures import ReplicaFigures
from proto.model.replication import Replication
from shardd.offline.fetch import fetch
from shardd.replication import role, shipper
from shardd.replication.attach import FORMAT, Service, Term, check_service
from shardd.replication.checkpoint_copies import CheckpointCopies
from shardd.replication.log_reader import LogReader
from shardd.replication.messages import Apply, CreateTerm, Ended, Hold, Output, Request, Restore, Timing
from shardd.replication.messages import Shipped as PartShipped
from shardd.replication.objects import Objects
from shardd.replication.protocol import Replica
from shardd.replication.role import Role
from shardd.replication.shipper import Holder
from shardd.replication.states import HOLDERS
from shardd.standby.closed_log import ClosedLog
from shardd.storage.disk import Disk
from tests.support.bucket import MemoryStore
from tests.support.fault_disk import FaultDisk
from tests.support.harness import SHARD, Harness

CREATED_MS = 1_600_000_000_000
SMALL = {"wal_segment_bytes": 4096, "segment_max_events": 20, "segment_max_bytes": 1 << 20}
TIMING = Timing(time_to_live=10.0, follow=0.0, retry=0.0, retry_most=0.0)
MANY_STEPS = 1000


class Deposed(Exception):
    """The role is over."""


class Stepped(Role):
    """A role of a shard whose changes do not wait for the bucket. Each request is carried out at once."""

    def __init__(self, objects: Objects, local: ClosedLog, shards: int) -> None:
        check = partial(check_service, objects.store, Service(FORMAT, CREATED_MS, shards), objects.names.prefix)
        self.at = 0.0
        super().__init__(
            objects,
            local,
            TIMING,
            check,
            leads=True,
            replication=Replication.ASYNC,
            now=lambda: self.at,
        )

    def claim(self, by_hand: bool) -> None:
        """Go the way to the term. Raises what a start ends with."""
        self._check()
        position = self.local.open()
        self.newest.previous = self.local.previous
        self.replica = Replica(self.newest, position)
        if self.local.from_backup or by_hand:
            self.replica.newest.take_over()
        self.step_until(self.claimed.is_set)

    def step_until(self, condition: Any) -> None:
        for _ in range(MANY_STEPS):
            if condition() or self.over.is_set():
                return
            assert self.replica is not None
            self._do(self.replica.tick(self.at))
            self.at += 0.1
        raise AssertionError("the protocol does not get there")

    def ship_part(self, log: Any, reader: LogReader) -> bool:
        """Ship the next part. Returns False if there is none."""
        assert self.replica is not None
        if self.over.is_set():
            raise Deposed(self.reason)
        frames = reader.take(log.synced_no, shipper.PART_BYTES)
        if frames is None:
            return False
        self._frames = frames
        self.replica.offer(frames.last_no)
        self.step_until(lambda: self.position.frame_no >= frames.last_no)
        if self.over.is_set():
            raise Deposed(self.reason)
        return True

    def end(self) -> None:
        """Give the term up, as an orderly stop does."""
        assert self.replica is not None
        self.replica.drain()
        self.step_until(self.over.is_set)

    def _do(self, outputs: Any) -> None:
        waiting: list[Output] = list(outputs)
        for _ in range(MANY_STEPS):
            if not waiting:
                return
            each = waiting.pop(0)
            if isinstance(each, Request):
                of = self.local if isinstance(each, Apply | Restore) else self.objects
                assert self.replica is not None
                if isinstance(each, CreateTerm):
                    self._note_claim(each)
                waiting += self.replica.answered(each, of.carry(each), self.at)
            elif isinstance(each, Hold):
                self.local.close()
                self.local.hold(self.position, self.newest.nonce)
                self.claimed.set()
            elif isinstance(each, PartShipped):
                self._shipped(each.part)
            elif isinstance(each, Ended):
                self._end(role.REPLACED if each.deposed else "")
        raise AssertionError("the protocol does not come to rest")


class Shipped(Harness):
    """A `Harness` whose shard ships to `store`, once it is attached."""

    role: Stepped
    holder: Holder

    def __init__(self, store: MemoryStore, disk: Disk | None = None, *, shards: int = 1, **options: Any) -> None:
        super().__init__(disk, **options)
        self.store = store
        self._shards = shards

    def attach(self, *, by_hand: bool = False) -> Shipped:
        """Claim the shard with the files as they are, as a start does, and open it again."""
        objects = Objects(self.store, 0, Term(0, token_hex(16), "machine", 0), self.clock.now_ms)
        self.role = Stepped(objects, ClosedLog(self.disk, self.path, objects, self.limits), self._shards)
        self.role.claim(by_hand)
        super().__init__(self.disk, self.clock, self.path, **_given(self))
        self.shard.checkpoints.inventory.shipped = self.role.kept_no
        self.holder = Holder(self.role, self.disk, self.path, self.shard.log, self.clock, self.limits)
        self.holder.attach()
        assert self.role.replica is not None
        assert self.role.replica.state in HOLDERS
        self.role.replica.pass_hole(self.reader.next_no - 1)
        return self

    @property
    def copies(self) -> CheckpointCopies:
        return self.holder.copies

    @property
    def reader(self) -> LogReader:
        return self.holder.shipper.reader

    @property
    def shipped_no(self) -> int:
        return self.holder.progress.shipped_no

    def figures(self) -> ReplicaFigures:
        return self.holder.figures()

    def ship(self) -> int:
        """Ship everything synced. Returns the number of parts. Raises `Deposed`."""
        parts = 0
        while self.role.ship_part(self.shard.log, self.reader):
            parts += 1
        return parts

    def sync(self) -> None:
        self.shard.flush()
        self.shard.commits.sync_now()
        if hasattr(self, "holder"):
            self.holder.progress.synced()

    def copy(self) -> int:
        """Copy the newest checkpoint. Returns the bytes that were uploaded."""
        uploaded = self.copies.upload()
        assert uploaded is not None
        self.sync()
        self.ship()
        assert self.copies.covers(uploaded)
        self.copies.create_manifest(uploaded)
        return uploaded.uploaded_bytes

    def again(self, disk: Disk | None = None) -> Shipped:
        """A new process on the same disk and store, not attached yet."""
        return Shipped(self.store, disk or self.disk, clock=self.clock, **_given(self))


def _given(harness: Harness) -> dict[str, Any]:
    return msgspec.structs.asdict(harness.limits)


def restored(of: Shipped, until_ms: int | None = None, disk: FaultDisk | None = None) -> Harness:
    """A shard on another disk, made from the store alone."""
    disk = disk or FaultDisk(boot=7)
    for _ in fetch(disk, of.store, Path("/data"), None, of.limits, until_ms):
        pass
    return Harness(disk, of.clock, SHARD, **_given(of))


def contents(harness: Harness) -> dict[str, Any]:
    """Everything that a reader can get of each topic."""
    return {name: harness.everything(name) for name in sorted(harness.shard.directory.visible)}

"""A shard without processes that ships to a store, and its copy restored to another disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardd.offline.fetch import fetch
from shardd.replication.attach import FORMAT, Service
from shardd.replication.shipping import Shipping
from shardd.storage.disk import Disk
from tests.support.bucket import MemoryStore
from tests.support.fault_disk import FaultDisk
from tests.support.harness import SHARD, Harness

CREATED_MS = 1_600_000_000_000
SMALL = {"wal_segment_bytes": 4096, "segment_max_events": 20, "segment_max_bytes": 1 << 20}


class Shipped(Harness):
    """A `Harness` whose shard ships to `store`."""

    def __init__(self, store: MemoryStore, disk: Disk | None = None, *, shards: int = 1, **options: Any) -> None:
        super().__init__(disk, **options)
        self.store = store
        service = Service(FORMAT, CREATED_MS, shards)
        self.shipping = Shipping(store, 0, service, self.disk, self.path, self.shard.log, self.clock, self.limits)
        self.shard.checkpoints.keep_log_for(lambda: self.shipping.shipped_no)

    def attach(self) -> Shipped:
        self.shipping.adopt(self.shipping.attach("machine"))
        self.shipping.bridge()
        return self

    def ship(self) -> int:
        """Ship everything synced. Returns the number of parts."""
        parts = 0
        while self.shipping.ship():
            parts += 1
        return parts

    def sync(self) -> None:
        self.shard.flush()
        self.shard.commits.sync_now()
        self.shipping.synced()

    def copy(self) -> int:
        """Copy the newest checkpoint. Returns the bytes that were uploaded."""
        uploaded = self.shipping.upload()
        assert uploaded is not None
        self.sync()
        self.ship()
        assert self.shipping.covers(uploaded)
        self.shipping.create_manifest(uploaded)
        return uploaded.uploaded_bytes

    def again(self, disk: Disk | None = None) -> Shipped:
        """A new process on the same disk and store, not attached yet."""
        return Shipped(self.store, disk or self.disk, clock=self.clock, **_given(self))


def _given(harness: Harness) -> dict[str, Any]:
    return {name: getattr(harness.limits, name) for name in (*SMALL, "checkpoint_bytes", "bucket_retain_ms")}


def restored(of: Shipped, until_ms: int | None = None, disk: FaultDisk | None = None) -> Harness:
    """A shard on another disk, made from the store alone."""
    disk = disk or FaultDisk(boot=7)
    for _ in fetch(disk, of.store, Path("/data"), None, of.limits, until_ms):
        pass
    return Harness(disk, of.clock, SHARD, **_given(of))


def contents(harness: Harness) -> dict[str, Any]:
    """Everything that a reader can get of each topic."""
    return {name: harness.everything(name) for name in sorted(harness.shard.directory.visible)}

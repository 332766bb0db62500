"""The shard's copy in a bucket: made from the settings, and joined to the shard. Nothing is loaded without one.

With `sync` a shard has a `Role`, which says when the shard may be opened; with `async` it is opened at once.
"""

from __future__ import annotations

import secrets
import socket
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from proto.ipc.control import ShardState, Start
from proto.model.limits import Limits
from proto.model.replication import BY_NAME
from shardd.clock import SystemClock
from shardd.shard import Shard
from shardd.storage.disk import RealDisk

if TYPE_CHECKING:
    from shardd.replication.role import Role
    from shardd.replication.shipping import Replica, Shipping
    from shardd.replication.store import Store


class BucketError(Exception):
    """The bucket cannot be used, and a restart does not help. The message says what to do."""


class TermDisk(RealDisk):
    """A term is a boot of its own: an earlier holder may have used seqs below its ceilings that this log lacks."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce

    def boot_id(self) -> str:
        return self._nonce


class Copy:
    """The copy of one shard, before and after the shard is open."""

    def __init__(self, start: Start, path: Path, limits: Limits) -> None:
        self._start = start
        self._path = path
        self._limits = limits
        self.disk = RealDisk()
        """What the shard is to be opened on."""
        self.role: Role | None = None
        self.replica: Replica | None = None
        self._store: Store | None = None

    def begin(self) -> None:
        """Raises `BucketError`."""
        if not self._limits.bucket:
            return
        from shardd.replication.store import StoreError, open_store

        try:
            self._store = open_store(self._limits.bucket)
        except StoreError as error:
            raise BucketError(str(error)) from None
        if BY_NAME[self._limits.replication].awaited:
            self._begin_role(self._store)

    def _begin_role(self, store: Store) -> None:
        from shardd.replication.attach import FORMAT, Service, check_service
        from shardd.replication.messages import Timing
        from shardd.replication.objects import Objects
        from shardd.replication.role import Role
        from shardd.standby.closed_log import ClosedLog

        start, nonce = self._start, secrets.token_hex(16)
        self.disk = TermDisk(nonce)
        objects = Objects(store, start.index, nonce, socket.gethostname(), start.address, SystemClock().now_ms)
        local = ClosedLog(RealDisk(), self._path, objects, start.index, self._limits)
        service = Service(FORMAT, start.created_ms, start.shards)
        check = partial(check_service, store, service, objects.names.prefix)
        ttl_s = self._limits.term_ttl_ms / 1000
        timing = Timing(ttl_s, follow=min(0.25, ttl_s / 8), retry_most=min(1.0, ttl_s / 8))
        self.role = Role(nonce, objects, local, timing, check, leads=start.index == 0)

    def told(self, states: list[ShardState]) -> None:
        """The supervisor's news of all shards."""
        if self.role is not None:
            self.role.follow(states)

    def take_over(self) -> None:
        """An operator's word."""
        if self.role is not None:
            self.role.take_over()

    def check(self) -> None:
        """Raise what the role ended with. Raises `BucketError`, `RecoveryError`, OSError."""
        from shardd.replication.attach import Mismatch
        from shardd.replication.browse import Damaged
        from shardd.replication.manifests import ManifestError
        from shardd.replication.store import StoreError
        from shardd.storage.catalog import CatalogError

        assert self.role is not None
        error = self.role.error
        if isinstance(error, Mismatch | Damaged | CatalogError | ManifestError | StoreError):
            raise BucketError(str(error)) from None
        if error is not None:
            raise error

    async def join(self, shard: Shard) -> None:
        """Attach the open shard to its copy. Raises `BucketError`, OSError."""
        if self._store is None:
            return
        from shardd.replication.attach import FORMAT, Mismatch, Service
        from shardd.replication.manifests import ManifestError
        from shardd.replication.shipping import Shipping
        from shardd.replication.store import StoreError

        start, limits = self._start, self._limits
        service = Service(FORMAT, start.created_ms, start.shards)
        shipping = Shipping(self._store, start.index, service, RealDisk(), self._path, shard.log, SystemClock(), limits)
        try:
            replica = self.replica = await self._made(shipping, shard)
        except (Mismatch, ManifestError, StoreError) as error:
            raise BucketError(str(error)) from None
        shard.synced = replica.synced
        shard.checkpointed = replica.checkpoint_made
        shard.replica = lambda: asdict(replica.statistics())

    async def _made(self, shipping: Shipping, shard: Shard) -> Replica:
        if self.role is not None:
            return await self._holding(self.role, shipping, shard)
        from shardd.replication.shipping import Replica

        replica = Replica(shipping, socket.gethostname(), self._limits.ship_interval_ms / 1000, shard.log)
        await replica.begin()
        shard.checkpoints.keep_log_for(lambda: replica.shipped_no)
        return replica

    async def _holding(self, role: Role, shipping: Shipping, shard: Shard) -> Replica:
        from shardd.replication.holder import Holder, attached
        from shardd.replication.log_reader import LogReader

        reader = LogReader(RealDisk(), self._path / "wal")
        found = await trio.to_thread.run_sync(attached, role, reader, shard.log)
        shipping.hold(found, self.disk.boot_id())
        holder = Holder(shipping, role, reader, shard.log)
        shard.checkpoints.keep_log_for(role.kept_no)
        await holder.begin()
        self.check()
        shard.await_bucket(holder.shipped_no)
        holder.shipped = shard.commits.shipped
        return holder

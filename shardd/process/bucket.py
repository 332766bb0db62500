"""The shard's copy in a bucket: made from the settings, and joined to the shard. Nothing is loaded without one.

A `Role` says when the shard may be opened, and a `Holder` ships what it logs from then on. With `sync` the shard serves
when the bucket has all of its log, and answers as long as its term is renewed.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from proto.ipc.control import Orders, ShardState, Start
from proto.model.replication import Replication
from shardd.clock import SystemClock
from shardd.errors import ShardError
from shardd.shard import Shard
from shardd.storage.disk import Claim, RealDisk

if TYPE_CHECKING:
    from proto.ipc.remote import RemoteRouter
    from shardd.process.giver import Giver
    from shardd.replication.role import Role
    from shardd.replication.shipper import Holder
    from shardd.replication.store import Store

CLAIM_AGAIN_S = 0.05
"""Pause between two attempts to have a directory that the roster removes files of."""
RENEWED_AGAIN_S = 0.01
"""Pause between two looks whether a new term was renewed."""


class BucketError(ShardError):
    """The bucket cannot be used, and a restart does not help. The message says what to do."""


async def renewed(role: Role) -> None:
    """Return when the shard may be answered for, or the role is over. A new term may be fenced, and the shard be open,
    before its first renewal is answered: what a request asks for would be done then, and its answer be withheld."""
    while not (role.serving() or role.over.is_set()):  # noqa: ASYNC110 - the time decides, too
        await trio.sleep(RENEWED_AGAIN_S)


class TermDisk(RealDisk):
    """With `sync` a term is a boot of its own: an earlier holder may have used seqs below its ceilings that this log
    lacks. (With `async` it may also have used those above them, see `Hold.abrupt`.)"""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce

    def boot_id(self) -> str:
        return self._nonce


class Copy:
    """The copy of one shard, before and after the shard is open."""

    def __init__(self, start: Start, path: Path) -> None:
        self._start = start
        self.path = path
        self._limits = limits = start.limits
        self._mode = Replication(limits.replication)
        self.disk = RealDisk()
        """The state on which the shard is to be opened."""
        self.role: Role | None = None
        self.holder: Holder | None = None
        self.giver: Giver | None = None
        """Set while the shard is open, if there are other machines."""
        self._claim: Claim | None = None

    async def claim(self) -> None:
        """Have the shard's directory to this process, when the roster does not remove its files. Raises OSError."""
        while self._claim is None:
            try:
                self._claim = Claim(self.path)
            except BlockingIOError:
                await trio.sleep(CLAIM_AGAIN_S)

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *_: object) -> None:
        if self._claim is not None:
            self._claim.close()

    def begin(self, remote: RemoteRouter | None = None) -> None:
        """`remote` is where the shard hears other machines. Raises `BucketError`."""
        if not self._limits.bucket:
            return
        from shardd.replication.seal import open_bucket
        from shardd.replication.store import StoreError

        limits = self._limits
        try:
            self._begin_role(open_bucket(limits.bucket, limits.bucket_key_file, limits.bucket_encrypt), remote)
        except StoreError as error:
            raise BucketError(str(error)) from None

    def _begin_role(self, store: Store, remote: RemoteRouter | None) -> None:
        from shardd.replication.attach import FORMAT, Service, Settings, Term, check_service
        from shardd.replication.messages import Timing
        from shardd.replication.objects import Objects
        from shardd.replication.role import Role
        from shardd.standby.closed_log import ClosedLog

        start, limits, nonce = self._start, self._limits, secrets.token_hex(16)
        if self._mode.awaited:
            self.disk = TermDisk(nonce)
        settings = Settings(limits.replication, limits.term_ttl_ms, start.shards, limits.bucket_encrypt)
        cluster = start.cluster
        heard = () if remote is None or cluster is None else (f"{cluster.at}:{remote.port}", remote.key, cluster.member)
        own = Term(0, nonce, socket.gethostname(), 0, start.address, *settings, *heard)
        objects = Objects(store, start.index, own, SystemClock().now_ms)
        local = ClosedLog(RealDisk(), self.path, objects, limits, cluster.place if cluster else "")
        service = Service(FORMAT, start.created_ms, start.shards, *settings[:2], settings.encrypt)
        ttl_s = limits.term_ttl_ms / 1000
        self.role = Role(
            objects,
            local,
            Timing(ttl_s, min(0.25, ttl_s / 8), min(0.05, ttl_s / 8), retry_most=min(1.0, ttl_s / 8)),
            partial(check_service, store, service, objects.names.prefix),
            leads=start.index == 0 or cluster is not None,
            rank=0 if cluster is None else cluster.rank,
            replication=self._mode,
        )

    @property
    def serving(self) -> Callable[[], bool] | None:
        """Whether requests may be answered at a moment; None: always."""
        return self.role.serving if self.role is not None and self._mode.awaited else None

    @property
    def term(self) -> int:
        """The term of this process; 0 if it has none."""
        replica = None if self.role is None else self.role.replica
        return 0 if replica is None else replica.term

    def told(self, states: list[ShardState]) -> None:
        """The supervisor's news of all shards."""
        if self.role is not None:
            self.role.follow(states)

    def ordered(self, orders: Orders) -> None:
        """What the roster has decided about the shard."""
        if self.role is not None:
            self.role.ranked(orders.rank)
            self.role.hurry(orders.moving)
        if self.giver is not None:
            self.giver.ordered(orders.step)

    def leave(self) -> None:
        """Keep how far the files of a shard that was followed equal the bucket's. Blocks."""
        if self.role is not None and self.role.replica is not None and not self.role.held.is_set():
            with suppress(OSError):  # what was kept before stays true
                self.role.kept_no()

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
        """Join the open shard to its copy. Raises `BucketError`, OSError."""
        if self.role is None:
            return
        from shardd.replication.manifests import ManifestError
        from shardd.replication.shipper import Holder
        from shardd.replication.store import StoreError

        role = self.role
        interval_s = 0.0 if self._mode.awaited else self._limits.ship_interval_ms / 1000
        holder = self.holder = Holder(role, RealDisk(), self.path, shard.log, SystemClock(), self._limits, interval_s)
        shard.checkpoints.inventory.shipped = role.kept_no
        if role.local.mark.skips:
            shard.restoring.give_seqs_up(role.local.skipped)
        if self._mode.awaited:
            try:
                await holder.begin()
            except (ManifestError, StoreError) as error:
                raise BucketError(str(error)) from None
            await renewed(role)
            self.check()
            shard.await_bucket(holder.progress.shipped_no)
            holder.shipper.shipped = shard.commits.shipped
        role.changed = lambda: setattr(shard.follower, "damaged", len(role.objects.damage))
        role.changed()
        shard.follower.copy = holder

"""The holder: an open shard that this machine holds, and its copy. `role` ships, `shipping` copies checkpoints."""

from __future__ import annotations

from collections.abc import Callable

import trio

from shardd.replication.attach import Attached, Log
from shardd.replication.browse import patiently
from shardd.replication.log_reader import Frames, LogReader
from shardd.replication.messages import Part
from shardd.replication.role import Role
from shardd.replication.shipping import Replica, Shipping
from shardd.replication.shipping import Role as Standing


class Holder(Replica):
    """As `Replica`, for a shard whose part in the replication a `Role` plays."""

    def __init__(self, shipping: Shipping, role: Role, reader: LogReader, log: Log) -> None:
        super().__init__(shipping, "", 0.0, log)
        self._role = role
        self._reader = reader
        self.shipped: Callable[[int], None] = lambda upto_no: None
        """Called with the last frame of each part that was created."""
        role.shipped = self._part_shipped
        role.objects.failed = shipping.failed

    async def begin(self) -> None:
        """Ship what the log has more than the bucket, and the newest checkpoint if the bucket has no use for the log
        without it. Returns when it is there, or the role is over. Raises `CatalogError`, `ManifestError`, `Outrun`,
        OSError."""
        self._role.ship(self._log, self._reader)
        await self._role.caught_up(self._log)
        if self._shipping.manifest_missing and not self._role.over.is_set():
            await self._copy_checkpoint()

    def synced(self) -> None:
        self._shipping.synced()
        self._role.synced()

    def _part_shipped(self, part: Part, frames: Frames) -> None:
        shipping = self._shipping
        shipping.count(part.number, part.last_no, len(frames.data), shipping.now)
        self._shipped.set()
        self._shipped = trio.Event()
        self.shipped(shipping.shipped_no)

    async def run(self) -> None:
        """Copy checkpoints until cancelled, or until the role is over."""
        shipping = self._shipping
        self._checkpoint.set()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._copy_checkpoints)
                await self._role.over.wait()
                nursery.cancel_scope.cancel()
        finally:
            shipping.stopping.set()
        self.ended = self._role.reason
        shipping.role = Standing.DEPOSED

    async def drain(self) -> None:
        """Ship what is synced, and end the term."""
        await self._role.drain(self._log)


def attached(role: Role, reader: LogReader, log: Log) -> Attached:
    """Where shipping goes on. Blocks, also while the bucket is away. Raises OSError."""
    assert role.replica is not None
    position = role.position
    reader.seek(position.frame_no + 1, log.synced_no)
    head = patiently(role.objects.newest_head)
    return Attached(
        role.replica.term,
        position.part + 1,
        position.frame_no,
        reader,
        reader.behind(),
        False,
        role.local.from_backup,
        head,
        1 if head is None else head.first_part,
    )

"""The shard's copy in a bucket: made from the settings, and joined to the shard. Nothing is loaded without one."""

from __future__ import annotations

import socket
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from proto.ipc.control import Start
from proto.model.limits import Limits
from proto.model.replication import BY_NAME
from shardd.clock import SystemClock
from shardd.shard import Shard
from shardd.storage.disk import RealDisk

if TYPE_CHECKING:
    from shardd.replication.shipping import Replica


class BucketError(Exception):
    """The bucket cannot be used, and a restart does not help. The message says what to do."""


async def attached(start: Start, shard: Shard, path: Path, limits: Limits) -> Replica | None:
    """The replica of a shard, attached to the bucket if that answers in time; None if there is no bucket. Raises
    `BucketError`, OSError."""
    if not limits.bucket:
        return None
    from shardd.replication.attach import FORMAT, Mismatch, Service
    from shardd.replication.shipping import Deposed, Replica, Shipping
    from shardd.replication.store import StoreError, open_store

    try:
        store = open_store(limits.bucket)
        service = Service(FORMAT, start.created_ms, start.shards)
        shipping = Shipping(store, start.index, service, RealDisk(), path, shard.log, SystemClock(), limits)
        replica = Replica(shipping, socket.gethostname(), limits.ship_interval_ms / 1000, shard.log)
        await replica.begin()
        if BY_NAME[limits.replication].awaited:
            await replica.catch_up()
            shard.await_bucket(replica.shipped_no)
            replica.shipped = shard.commits.shipped
    except (Mismatch, StoreError, Deposed) as error:
        raise BucketError(str(error)) from None
    shard.synced = replica.synced
    shard.checkpointed = replica.checkpoint_made
    shard.checkpoints.keep_log_for(lambda: replica.shipped_no)
    shard.replica = lambda: asdict(replica.statistics())
    return replica

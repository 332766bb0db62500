"""The modes of replication, and what each promises: one table, and the questions that are asked of it.

    mode     a part leaves                        what waits for a sync waits for the bucket   the bucket is away
    async    after TOPICS_SHIP_INTERVAL_MS        no                                           the log is kept
    sync     at once, one after the other         yes                                          503 after a deadline

What waits for a sync is told by `requires_sync` of a change: changes of class `fsync`; creating, configuring and
deleting topics; reservations of seqs; and what acts elsewhere next (orders of outboxes, sources of routers). What
follows a sync waits likewise: copies by routers, strong reads, the records of a checkpoint. Changes of class `disk` are
acknowledged without the bucket in both modes.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

ReplicationName = Literal["async", "sync"]


class Replication(Enum):
    ASYNC = "async", False
    SYNC = "sync", True

    def __new__(cls, name: ReplicationName, *promises: object) -> Replication:
        member = object.__new__(cls)
        member._value_ = name
        return member

    def __init__(self, name: ReplicationName, awaited: bool) -> None:
        self.awaited = awaited
        """What waits for a sync waits for the bucket too, so parts leave at once."""


BY_NAME = {replication.value: replication for replication in Replication}

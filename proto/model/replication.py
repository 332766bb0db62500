"""The modes of replication, and what each promises: one table, and the questions that are asked of it.

    mode     a part leaves                    waits for the bucket    the bucket is away        a holder is silent
    async    after TOPICS_SHIP_INTERVAL_MS    nothing                 the log is kept           an operator takes over
    sync     at once, one after the other     what waits for a sync   503 after a deadline      its term ends by itself

`requires_sync` of a change says whether it waits for a sync: changes of class `fsync`; creating, configuring and
deleting topics; reservations of seqs; and what acts elsewhere next (orders of outboxes, sources of routers). What
follows a sync waits likewise: copies by routers, strong reads, the records of a checkpoint. Changes of class `disk` are
acknowledged without the bucket in both modes.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

ReplicationName = Literal["async", "sync"]


class Replication(Enum):
    ASYNC = "async"
    SYNC = "sync"

    @property
    def awaited(self) -> bool:
        """Changes that wait for a sync also wait for the bucket, so parts leave at once, a holder that cannot reach the
        bucket answers nothing, and another machine takes over by itself."""
        return self is Replication.SYNC

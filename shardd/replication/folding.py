"""Folding: when the log of a followed shard is made short by a checkpoint, so that its next holder answers soon.

An opening replays what the log has since the last checkpoint. `Local.fold` makes one after TOPICS_CHECKPOINT_BYTES in
any case. This module says when it is made before that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import trio

from shardd.replication.local_files import Local

FOLD_BYTES = 1 << 20
"""A log of so many bytes is long. It is replayed in about a quarter of a second if each record has a frame of its own,
and other processes need the cores as well."""
PART = 10
"""Checkpoints may take one part in so many of the time: they need the whole shard to be opened, whatever its size."""
NEAR_S = 1.0
"""A shard that is further behind reads on first."""


class Folding:
    def __init__(self, local: Local, now: Callable[[], float]) -> None:
        self._local = local
        self._now = now
        self._from = -math.inf
        """When the next checkpoint may begin."""
        self.moved = False
        """Whether the shard is being moved: a checkpoint would delay that more than the replay of a log that is a
        little longer."""

    @property
    def due(self) -> bool:
        """Whether a checkpoint has to be made before the shard is given to this machine."""
        least = 2 * FOLD_BYTES if self.moved else FOLD_BYTES
        return self._local.foldable >= least and self._now() >= self._from

    async def fold(self, lag_s: float) -> None:
        """Make a checkpoint of a shard that is `lag_s` behind if its log is long. Raises as `Local.fold`."""
        soon, began = self.due and lag_s < NEAR_S, self._now()
        made = await trio.to_thread.run_sync(partial(self._local.fold, soon=soon))
        if soon:
            ended = self._now()
            self._from = ended + PART * (ended - began) if made else math.inf

"""The log follower: passes what the log of a shard tells on to the parts that need it, and to the copy in a bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from proto.ipc.figures import ReplicaFigures
from shardd.delivery.parked_reads import Reads
from shardd.delivery.strong_reads import Unsynced
from shardd.leaders import Leader
from shardd.routers.source import Pulls
from shardd.storage.free_space import Space
from shardd.storage.group_commit import Commits


class BucketCopy(Protocol):
    """The copy of a shard in a bucket, as far as the shard knows it."""

    def synced(self) -> None:
        """Called after each sync of the log."""

    def checkpointed(self) -> None:
        """Called after each checkpoint."""

    def figures(self) -> ReplicaFigures | None:
        """What metrics tell of the copy; None if there is none."""

    def leaders(self) -> Sequence[Leader]:
        """The machines that held the shard, as far as its term has them."""


class NoCopy:
    """For a shard without a bucket, and until its copy has joined it."""

    def synced(self) -> None:
        pass

    def checkpointed(self) -> None:
        pass

    def figures(self) -> None:
        return None

    def leaders(self) -> Sequence[Leader]:
        return ()


class LogFollower:
    """See `shardd.storage.log_events.LogEvents`."""

    commits: Commits
    reads: Reads
    pulls: Pulls
    """Set before anything is logged: they are made with the log, which has its follower before."""

    def __init__(self, space: Space, unsynced: Unsynced, deliver: Callable[[], None]) -> None:
        self.copy: BucketCopy = NoCopy()
        self.damaged = 0
        """Objects of the bucket that are known to be damaged or missing."""
        self.logged = space.logged
        self.full = space.full
        self.out_of_room = space.refusal
        self._unsynced = unsynced
        self._deliver = deliver

    def figures(self) -> ReplicaFigures | None:
        """Those of the copy in a bucket; None if there is none."""
        return self.copy.figures()

    def sync_begins(self) -> None:
        self.pulls.sync_begins()

    def sync_ended(self, good: bool) -> None:
        self.pulls.sync_ended(good)

    def synced(self) -> None:
        self._unsynced.synced(self.commits.safe_no, everything=self.commits.everything_safe)
        self.reads.synced()
        self.copy.synced()
        self._deliver()

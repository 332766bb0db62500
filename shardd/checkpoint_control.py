"""Checkpoint control: when a shard makes a checkpoint, and what it has to do around the steps of one.

`shardd.checkpoint` writes a plan. Before it, router requests that wait for a checkpoint are saved and space is held;
after it, they are answered, and the copy in a bucket learns of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from proto.model.limits import Limits
from shardd.changes.transactions import Staging
from shardd.checkpoint.checkpoint import Checkpoints
from shardd.checkpoint.plan import Plan
from shardd.checkpoint.slices import exhaust
from shardd.log_follower import LogFollower
from shardd.recovery.wal_scan import Outcome
from shardd.restoring import Restoring
from shardd.routers.copier import Copier
from shardd.routers.router_operations import Routing
from shardd.storage.wal import Wal


class CheckpointControl:
    """That of one shard. Its event loop calls `planning`, then `Writer.write` in a worker thread, then `ending`."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        wal: Wal,
        staging: Staging,
        routing: Routing,
        copier: Copier,
        restoring: Restoring,
        follower: LogFollower,
        flush: Callable[[], None],
    ) -> None:
        self._checkpoints = checkpoints
        self._wal = wal
        self._commits = staging.commits
        self._space = staging.space
        self._limits: Limits = staging.limits
        self._directory = staging.directory
        self._routing = routing
        self._copier = copier
        self._restoring = restoring
        self._follower = follower
        self._flush = flush
        self._logged_before = self._logged_earlier = 0
        self._jumps_before = self._jumps_earlier = 0
        """`Directory.jumps` when the last checkpoint was begun, and the one before."""
        self.wanted: Callable[[], None] = lambda: None
        """Called while a checkpoint is due."""

    @property
    def due(self) -> bool:
        """True if a checkpoint should be made: enough has been logged or copied since the last one, it would write
        enough, a router request waits for one, the clock was set ahead, or one may free space that is needed."""
        return self._restoring.restored and (
            self.logged_bytes >= self._limits.checkpoint_bytes
            or self._space.due
            or self._routing.unsaved.due
            or self._directory.jumps != self._jumps_before
            or self.may_free_space
        )

    @property
    def may_free_space(self) -> bool:
        """True if the disk is nearly full and checkpoints would remove files."""
        checkpoints = self._checkpoints
        if self._space.low:
            logged = bool(self.logged_bytes)
            return logged or not checkpoints.adopter.nothing_to_remove or checkpoints.inventory.garbage
        enough = self._limits.min_free_bytes // 8
        return self._space.scarce and (self.logged_bytes >= enough or checkpoints.inventory.garbage)

    @property
    def worth(self) -> bool:
        """True if a checkpoint that is made because time has passed would change a file."""
        return self._restoring.restored and bool(self.logged_bytes or self.due or self._checkpoints.inventory.garbage)

    @property
    def logged_bytes(self) -> int:
        """Bytes logged or copied since the last checkpoint was begun."""
        return self._wal.bytes_written + self._copier.copied_bytes - self._logged_before

    def look(self) -> None:
        """Call for a checkpoint if one is due."""
        if self.due:
            self.wanted()

    def hold_space(self, outcome: Outcome) -> None:
        """Hold space for checkpoints from now on, until `Space.end`. `outcome`: of reading the log."""
        self._space.checkpoint_ended(True, self._checkpoints.inventory.catalog_may_have)
        unstored = sum(any(b.stored is None for b in t.records.batches) for t in self._directory.visible.values())
        self._space.begin(outcome.replayed_bytes, outcome.replayed_records, unstored)

    def begin(self, last: bool = False) -> Plan:
        """`planning` in one call."""
        return exhaust(self.planning(last))

    def planning(self, last: bool = False) -> Generator[None, None, Plan]:
        """Plan a checkpoint in slices, between which requests may be handled. Returns the plan."""
        self._logged_earlier, self._logged_before = self._logged_before, self._logged_before + self.logged_bytes
        self._jumps_earlier, self._jumps_before = self._jumps_before, self._directory.jumps
        yield from self._routing.saving()
        if self._space.low:
            self._wal.rotate()  # only whole log files can be removed
        self._space.checkpoint_begins()
        planner, commits = self._checkpoints.planner, self._commits
        return (yield from planner.planning(lambda: commits.safe_no, last, self._wal.checksum_of))

    def end(self, plan: Plan, error: OSError | None = None) -> None:
        """`ending` in one call."""
        exhaust(self.ending(plan, error))

    def ending(self, plan: Plan, error: OSError | None = None) -> Generator[None, None, None]:
        """End a checkpoint, in slices: adopt the plan, or abandon it if `error` came before the plan was committed."""
        good = error is None or plan.committed
        if good:
            yield from self._checkpoints.adopter.adopting(plan)
            self._follower.copy.checkpointed()
        else:
            self._checkpoints.abandon(plan)
            self._logged_before, self._jumps_before = self._logged_earlier, self._jumps_earlier
        self._space.checkpoint_ended(good, self._checkpoints.inventory.catalog_may_have)
        self._routing.saved(error)
        self._flush()

    def make(self, last: bool = False) -> None:
        """Make a whole checkpoint in this thread. Blocks. Raises OSError, and then nothing has changed."""
        plan = self.begin(last)
        try:
            self._checkpoints.writer.write(plan)
        except OSError as error:
            self.end(plan, error)
            raise
        self.end(plan)

"""Assembly: the parts of a shard, made in the order in which they need each other. `handlers` has which part does which
operation.

A part gets what it calls when it is made. Callables that are bound later, by whom, and why:

    CheckpointControl.wanted      the event loop (`shardd.process.server`), which a shard of a program or a test lacks
    Scheduler.more                the same
    Reads.full                    the same: replies fill a window only where there are sockets
    Routing.changed               the router tasks (`shardd.process.router_tasks`), as the event loop
    Staging.serving               the term in the bucket, as the event loop
    Inventory.shipped             the copy in a bucket joins a shard that is open
    Directory.renamed             `NameReads`, one of the parts: a directory is filled before there are any
    Parts.met                     the quarantine, which has to load topics again through those parts
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from proto.model.limits import Limits
from shardd.changes.allowance import Allowance
from shardd.changes.holdings import Holdings
from shardd.changes.transactions import Staging
from shardd.checkpoint.checkpoint import Checkpoints
from shardd.checkpoint_control import CheckpointControl
from shardd.clock import Clock
from shardd.delivery.name_reads import NameReads
from shardd.delivery.parked_reads import Reads
from shardd.delivery.pressure import Pressure
from shardd.delivery.scheduler import Scheduler
from shardd.delivery.strong_reads import Unsynced
from shardd.log_follower import LogFollower
from shardd.operations.session_streams import SessionStreams
from shardd.operations.tickets import Tickets
from shardd.operations.watch_sessions import SessionControl
from shardd.queues.claims import Claims
from shardd.queues.job_streams import JobStreams
from shardd.queues.leases import Leases
from shardd.queues.transfers import Mover
from shardd.recovery.wal_scan import Outcome
from shardd.restoring import Restoring
from shardd.routers.copier import Copier
from shardd.routers.registrar import Registrar
from shardd.routers.router_operations import Routing
from shardd.routers.source import Pulls
from shardd.storage.disk import Disk
from shardd.storage.free_space import Space
from shardd.storage.group_commit import Commits
from shardd.storage.wal import Wal
from shardd.subscribers import Subscribers
from shardd.topic.directory import Directory
from shardd.topic.promises import Promises


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a start has found: the files, and what is in them."""

    disk: Disk
    path: Path
    clock: Clock
    limits: Limits
    directory: Directory
    checkpoints: Checkpoints
    outcome: Outcome
    """Of reading the log."""


class Assembly:
    """The parts of one shard."""

    def __init__(self, of: Recovered, flush: Callable[[], None], deliver: Callable[[], None]) -> None:
        """`flush` writes what was staged outside of a group of requests, `deliver` wakes what waits for it."""
        clock, limits, directory, promises = of.clock, of.limits, of.directory, Promises()
        self.pressure = Pressure()
        self.scheduler = Scheduler(clock, self.pressure)
        self.unsynced = Unsynced()
        self.names = NameReads(clock, directory)
        self.allowance = Allowance(limits, Holdings(directory, promises))
        self.space = Space(of.disk, of.path, clock, limits, self._space_wanted)
        follower = self.follower = LogFollower(self.space, self.unsynced, deliver)
        self.log = _opened(of, follower)
        self.commits = follower.commits = Commits(self.log, clock, follower, window_ms=limits.wal_sync_window_ms)
        self.reads = follower.reads = Reads(clock, limits, self.scheduler, self.unsynced, self.commits.urge)
        self.pulls = follower.pulls = Pulls(clock, self.commits.urge)
        subscribers = Subscribers(self.scheduler, self.reads, self.pulls)
        boot_id = of.disk.boot_id()
        self.staging = Staging(
            directory, self.commits, subscribers, clock, limits, boot_id, self.space, self.allowance, promises
        )
        self.copier = Copier(self.staging)
        self.routing = Routing(self.staging)
        self.registrar = Registrar(self.staging)
        self.mover = Mover(self.staging, flush)
        self.leases = Leases(self.staging)
        self.claims = subscribers.claims = Claims(self.staging, self.scheduler, self.leases, self.mover.order)
        self.job_streams = JobStreams(self.claims, self.leases)
        self.mover.recovered()
        self.session_streams = SessionStreams(self.staging, self._deliver_earlier)
        self.sessions = SessionControl(self.staging, self.session_streams)
        self.tickets = Tickets(self.staging)
        self.restoring = Restoring(self.staging, self.copier, flush)
        self.control = CheckpointControl(
            of.checkpoints, self.log, self.staging, self.routing, self.copier, self.restoring, self.follower, flush
        )

    def _space_wanted(self) -> None:
        self.control.look()

    def _deliver_earlier(self) -> None:
        self.scheduler.more()


def _opened(of: Recovered, follower: LogFollower) -> Wal:
    """The log, open for writing behind what was replayed. Blocks. Raises OSError."""
    log = Wal(
        of.disk,
        of.path / "wal",
        follower,
        next_no=of.outcome.next_no,
        max_bytes=of.limits.wal_segment_bytes,
        resume=of.outcome.resume,
        unsynced_at=of.outcome.unsynced_at,
        seed=of.checkpoints.inventory.owner.seed,
        tail=of.outcome.tail,
        firsts=of.outcome.firsts,
    )
    of.checkpoints.inventory.log = log
    return log

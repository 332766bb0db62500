"""Assembly: the parts of a shard, made in the order in which they need each other, and which part does which operation.

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

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from proto.ipc import operations
from proto.ipc.message import Reply, Request
from proto.model.errors import topic_not_found
from proto.model.limits import Limits
from shardd.changes.allowance import Allowance
from shardd.changes.holdings import Holdings
from shardd.changes.transactions import Respond, Staging
from shardd.checkpoint.checkpoint import Checkpoints
from shardd.checkpoint_control import CheckpointControl
from shardd.clock import Clock
from shardd.delivery.name_reads import NameReads
from shardd.delivery.parked_reads import Reads
from shardd.delivery.pressure import Pressure
from shardd.delivery.scheduler import Scheduler
from shardd.delivery.strong_reads import Unsynced
from shardd.inspect import Inspect
from shardd.log_follower import LogFollower
from shardd.operations.append import Writes
from shardd.operations.consume import Consume
from shardd.operations.cursors import Cursors
from shardd.operations.deletes import Deletes
from shardd.operations.rog_logs import Logs
from shardd.operations.session_streams import SessionStreams
from shardd.operations.tickets import Tickets
from shardd.operations.topics import Topics
from shardd.operations.watch_sessions import SessionControl
from shardd.queues.claims import Claims
from shardd.queues.job_streams import JobStreams
from shardd.queues.leases import Leases
from shardd.queues.peek import peek
from shardd.queues.redrive import redrive
from shardd.queues.transfers import Mover
from shardd.recovery.wal_scan import Outcome
from shardd.restoring import Restoring
from shardd.routers.copier import Copier
from shardd.routers.copy_recovery import position
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

Operations = dict[type, Callable[[Request, Respond], None]]
WaitingOperations = dict[type, Callable[[Request, Hashable, Respond], None]]
"""By the type of a request's options."""


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
        clock, limits, directory = of.clock, of.limits, of.directory
        self._directory = directory
        self.pressure = Pressure()
        self.scheduler = Scheduler(clock, self.pressure)
        self.unsynced = Unsynced()
        self.names = NameReads(clock, directory)
        promises = Promises()
        self.allowance = Allowance(limits, Holdings(directory, promises))
        self.space = Space(of.disk, of.path, clock, limits, self._space_wanted)
        self.follower = LogFollower(self.space, self.unsynced, deliver)
        self.log = _opened(of, self.follower)
        self.commits = Commits(self.log, clock, self.follower, window_ms=limits.wal_sync_window_ms)
        self.reads = Reads(clock, limits, self.scheduler, self.unsynced, self.commits.urge)
        self.pulls = Pulls(clock, self.commits.urge)
        self.follower.begin(self.commits, self.reads, self.pulls)
        subscribers = Subscribers(self.scheduler, self.reads, self.pulls)
        self.staging = Staging(
            directory,
            self.commits,
            subscribers,
            clock,
            limits,
            of.disk.boot_id(),
            self.space,
            self.allowance,
            promises,
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
        self.operations: Operations = {
            **self._topic_operations(self.staging),
            **self._looking_operations(of),
            **self._router_operations(),
            **self._session_operations(),
            **self._queue_operations(),
            operations.RoomOrder: self.allowance.order,
            operations.RoomWant: self.allowance.wanted,
        }
        self.waiting_operations: WaitingOperations = {
            **self._reading_operations(),
            **self._lease_operations(),
            **self._registrar_operations(),
            **self._session_stream_operations(),
        }

    def _space_wanted(self) -> None:
        self.control.look()

    def _deliver_earlier(self) -> None:
        self.scheduler.more()

    def _topic_operations(self, staging: Staging) -> Operations:
        topics = Topics(staging)
        cursors = Cursors(staging)
        consume = Consume(staging)
        logs = Logs(staging)
        return {
            operations.Append: Writes(staging, topics, self.pressure, self.unsynced).append,
            operations.Configure: topics.configure,
            operations.DeleteTopic: topics.delete,
            operations.DeleteRecords: Deletes(staging, self.scheduler).delete,
            operations.CursorPut: cursors.put,
            operations.CursorGet: cursors.get,
            operations.CursorDelete: cursors.delete,
            operations.CursorList: cursors.list,
            operations.AllCursors: cursors.list_all,
            operations.Take: consume.take,
            operations.Peek: consume.peek,
            operations.Step: consume.step,
            operations.LogCreate: logs.create,
            operations.LogFind: logs.find,
        }

    def _looking_operations(self, of: Recovered) -> Operations:
        inspect = Inspect(
            directory=of.directory,
            clock=of.clock,
            wal=self.log,
            commits=self.commits,
            space=self.space,
            scheduler=self.scheduler,
            pressure=self.pressure,
            reads=self.reads,
            leases=self.leases,
            mover=self.mover,
            routing=self.routing,
            copier=self.copier,
            quarantine=of.checkpoints.quarantine,
            replica=self.follower.figures,
            leaders=self.follower.leaders,
            files_set_apart=lambda: of.checkpoints.inventory.files_apart,
            records_missing=lambda: len(of.checkpoints.inventory.problems()),
        )
        return {**inspect.handlers, operations.WatchNames: self.names.list}

    def _router_operations(self) -> Operations:
        return {
            operations.RouterSource: self.routing.source,
            operations.RouterPut: self.routing.put,
            operations.RouterDelete: self.routing.delete,
            operations.RouterHold: self.routing.hold,
            operations.RouterGet: self.routing.get,
            operations.RouterList: self.routing.list,
            operations.RouterGraph: self.routing.graph,
            operations.RouterPosition: self._router_position,
        }

    def _session_operations(self) -> Operations:
        return {
            operations.WatchResolve: self.sessions.resolve,
            operations.SessionMake: self.sessions.make,
            operations.SessionOpen: self.sessions.open,
            operations.SessionCount: self.sessions.count,
            operations.TicketMake: self.tickets.make,
            operations.TicketUse: self.tickets.use,
        }

    def _queue_operations(self) -> Operations:
        return {
            operations.PeekJobs: partial(peek, self.leases),
            operations.Redrive: partial(redrive, self.mover),
        }

    def _reading_operations(self) -> WaitingOperations:
        return {
            operations.Diff: self._diff,
            operations.Feed: self._feed,
            operations.Pull: self._pull,
            operations.NameChanges: self.names.changes,
        }

    def _lease_operations(self) -> WaitingOperations:
        return {
            operations.Claim: self.claims.claim,
            operations.Ack: self.leases.ack,
            operations.Nack: self.leases.nack,
            operations.Extend: self.leases.extend,
            operations.WorkOpen: self.job_streams.open,
            operations.WorkTake: self.job_streams.take,
            operations.WorkClose: self.job_streams.close,
        }

    def _session_stream_operations(self) -> WaitingOperations:
        return {
            operations.SessionTake: self.sessions.take,
            operations.SessionNews: self.session_streams.listen,
            operations.SessionMove: self.sessions.move,
        }

    def _registrar_operations(self) -> WaitingOperations:
        return {
            operations.RegistrarPut: self.registrar.put,
            operations.RegistrarGet: self.registrar.get,
            operations.RegistrarDelete: self.registrar.delete,
            operations.RegistrarDeleteTopic: self.registrar.delete_topic,
        }

    def _diff(self, request: Request[operations.Diff], caller: Hashable, respond: Respond) -> None:
        self.reads.diff(self._directory.find(request.topic), request, caller, respond)

    def _feed(self, request: Request[operations.Feed], caller: Hashable, respond: Respond) -> None:
        self.reads.feed(self._directory.find(request.topic), request, caller, respond)

    def _pull(self, request: Request[operations.Pull], caller: Hashable, respond: Respond) -> None:
        self.pulls.pull(self._directory.visible.get(request.topic), request, caller, respond)

    def _router_position(self, request: Request[operations.RouterPosition], respond: Respond) -> None:
        """Answer with a topic's position, for the restore of other topics. Options: `epoch`."""
        topic = self._directory.visible.get(request.topic)
        if topic is None or topic.epoch != request.options.epoch:
            raise topic_not_found(request.topic)
        respond(Reply(request.id, extra=position(topic)))


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

"""The shard: recovery, requests, checkpoints and stop. It has no sockets, no event loop and no clock of its own.

`handle` takes a request and answers it by calling `respond`: at once, after the next `flush`, or after a sync. Changes
are assigned when they stage and visible when they commit (see `shardd.storage.group_commit`).

If the process dies before a frame is written, its request was never answered. If it dies after that, the change exists
after the restart, whether or not the answer was sent. A client that repeats the request without an idempotency key may
then write twice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from errno import EIO
from functools import partial
from pathlib import Path
from typing import Any

from proto.ipc import operations
from proto.ipc.message import Message, Reply, Request, Status
from proto.model.errors import TopicsError, not_ready, topic_not_found
from proto.model.limits import Limits
from shardd.changes import seq_reservation
from shardd.changes.allowance import Allowance
from shardd.changes.containment import Answering
from shardd.changes.patience import Patience
from shardd.changes.transactions import Respond, Staging, to_json
from shardd.checkpoint.checkpoint import Checkpoints
from shardd.checkpoint.plan import Plan
from shardd.checkpoint.slices import exhaust
from shardd.clock import Clock
from shardd.delivery.name_reads import NameReads
from shardd.delivery.parked_reads import Reads
from shardd.delivery.pressure import Pressure, Sample, widening_s
from shardd.delivery.scheduler import Scheduler
from shardd.delivery.strong_reads import Unsynced
from shardd.inspect import Inspect
from shardd.operations.append import Writes
from shardd.operations.consume import Consume
from shardd.operations.cursors import Cursors
from shardd.operations.deletes import Deletes
from shardd.operations.rog_logs import Logs
from shardd.operations.topics import Topics
from shardd.operations.watch_sessions import SessionControl
from shardd.queues.claims import Claims
from shardd.queues.leases import Leases
from shardd.queues.peek import Peeking
from shardd.queues.redrive import Redrive
from shardd.queues.transfers import Mover
from shardd.recovery.quarantine import READING, found, refusal
from shardd.recovery.replay import replay, replay_deferred
from shardd.recovery.wal_scan import Found, Outcome, RecoveryError, scan
from shardd.routers.copier import Copier
from shardd.routers.copy_recovery import Restore, position
from shardd.routers.router_operations import Routing
from shardd.routers.source import Pulls
from shardd.storage.catalog import CatalogError
from shardd.storage.disk import Disk
from shardd.storage.errors import SegmentError, damaged
from shardd.storage.free_space import Space
from shardd.storage.group_commit import Commits
from shardd.storage.wal import Wal
from shardd.subscribers import Subscribers
from shardd.topic.directory import Directory
from shardd.topic.topic import Deferred, Topic

Operations = dict[type, Callable[[Request, Respond], None]]
WaitingOperations = dict[type, Callable[[Request, Hashable, Respond], None]]
"""By the type of a request's options."""
_BEFORE_RESTORED = frozenset((operations.Pull, operations.RouterPosition, operations.Stats))
"""Operations that are served while copies are made again."""


def open_shard(
    disk: Disk,
    clock: Clock,
    path: Path,
    limits: Limits,
    *,
    from_files: bool = False,
    to_salvage: str = "",
    restarted: bool = True,
) -> Generator[tuple[int, int], None, Shard]:
    """Recover a shard from its files. Yields (bytes done, bytes in all) after each frame of the log. Returns the shard.
    Blocks. Raises `RecoveryError`, or OSError. `from_files` and `to_salvage` as in `Checkpoints.load`. With `restarted`
    False, another machine continues the shard: the caller only makes a checkpoint.
    """
    directory, outcome = Directory(), Outcome()
    checkpoints = Checkpoints(disk, path, directory, clock, limits)
    disk.make_dir(path / "wal")
    # Also if the directories exist: a process may have been killed after it made them and before this sync.
    disk.sync_dir(path)
    disk.sync_dir(path.parent)
    try:
        after_no = checkpoints.load(from_files=from_files, to_salvage=to_salvage)
    except (CatalogError, SegmentError) as error:
        raise RecoveryError(str(error)) from error
    log_frames = scan(disk, path / "wal", outcome, after_no, seed=checkpoints.owner.seed, tail=checkpoints.tail)
    yield from _read_back(log_frames, directory, checkpoints)
    if outcome.next_no == 1 and not checkpoints.number and checkpoints.strays({}):
        raise RecoveryError(f"{path}: it has files of topics, but no catalog and no log. Put them back from a backup")
    checkpoints.replayed(outcome, directory.next_id)
    directory.recovered(clock.now_ms(), disk.boot_id() if restarted else None)
    if not restarted:
        checkpoints.go_on_elsewhere()
    clock.on_jump(directory.jumped)
    checkpoints.quarantine.recovered()
    return Shard(disk, clock, path, limits, directory, checkpoints, outcome)


def opened_shard(
    disk: Disk, clock: Clock, path: Path, limits: Limits, *, from_files: bool = False, to_salvage: str = ""
) -> Shard:
    """A shard recovered at once. As `open_shard`."""
    return exhaust(open_shard(disk, clock, path, limits, from_files=from_files, to_salvage=to_salvage))


def _read_back(
    log_frames: Iterator[Found], directory: Directory, checkpoints: Checkpoints
) -> Iterator[tuple[int, int]]:
    """Replay the held frames, then those of the log."""
    for frame in checkpoints.held:
        replay(directory, found(frame))
    checkpoints.held.clear()
    for each in log_frames:
        try:
            checkpoints.replaying(each.header)
        except SegmentError as error:
            raise RecoveryError(str(error)) from error
        replay(directory, each)
        yield each.done_bytes, each.total_bytes


class Shard:
    """One shard. `open_shard` makes it from what its files have."""

    patience: Patience | None = None
    """Set if changes wait for the bucket."""
    bucket_damaged: int = 0
    """Objects of the bucket that are known to be damaged or missing."""
    _giving_up: Callable[[], None] | None = None
    """Called when every topic has given seqs up, if they have to."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        path: Path,
        limits: Limits,
        directory: Directory,
        checkpoints: Checkpoints,
        outcome: Outcome,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._path = path
        self._limits = limits
        self.directory = directory
        self.checkpoints = checkpoints
        self.quarantine = checkpoints.quarantine
        self.outcome = outcome
        self.pressure = Pressure()
        self.scheduler = Scheduler(clock, self.pressure)
        self.unsynced = Unsynced()
        self.reads = Reads(clock, limits, self.scheduler, self.unsynced)
        self.names = NameReads(clock, directory)
        self.pulls = Pulls(clock)
        self.restored = not self._unrestored()
        """True when every topic has all copies that it had at the last stop. Before that, only requests of other shards
        are answered, unless `waiting` is set."""
        self.waiting: frozenset[str] | None = None
        """Topics that wait for a source whose shard cannot start. While it is set, all other topics are served."""
        self.allowance = Allowance(limits)
        self.space = Space(disk, path, clock, limits)
        self.space.wanted = self._space_wanted
        self._logged_before = self._logged_earlier = 0
        self.checkpoint_wanted: Callable[[], None] = lambda: None
        """Called while a checkpoint is due."""
        self.synced: Callable[[], None] = lambda: None
        self.checkpointed: Callable[[], None] = lambda: None
        """Called after each sync of the log and after each checkpoint, for the copy in a bucket."""
        self.replica: Callable[[], Mapping[str, Any] | None] = lambda: None
        """Figures of that copy, if there is one."""
        self._open_log()
        subscribers = Subscribers(self.scheduler, self.reads, self.pulls)
        staging = self._staging = Staging(
            directory, self.commits, subscribers, clock, limits, disk.boot_id(), self.space, self.allowance
        )
        self.copier = Copier(staging)
        self.routing = Routing(staging)
        self.mover = Mover(staging, self.flush)
        self.leases = Leases(staging)
        self.claims = subscribers.claims = Claims(staging, self.scheduler, self.leases, self.mover.order)
        self.mover.recovered()
        self._sessions = SessionControl(staging)
        self._operations = {
            **self._topic_operations(staging),
            **self._looking_operations(),
            **self._router_operations(),
            **self._session_operations(),
            **self._queue_operations(staging),
        }
        self._waiting_operations = {**self._reading_operations(), **self._lease_operations()}

    def _open_log(self) -> None:
        """Open the log for writing, after the replayed frames."""
        self._wal = Wal(
            self._disk,
            self._path / "wal",
            next_no=self.outcome.next_no,
            max_bytes=self._limits.wal_segment_bytes,
            resume=self.outcome.resume,
            seed=self.checkpoints.owner.seed,
            tail=self.outcome.tail,
        )
        self.checkpoints.name_tail(self._wal.checksum_of)
        self._wal.full = self.space.full
        self.commits = Commits(self._wal, self._clock, window_ms=self._limits.wal_sync_window_ms)
        self.commits.logged = self.space.logged
        self.commits.out_of_room = self.space.refusal
        self.commits.after_sync = self._synced
        self.commits.sync_begins = self.pulls.sync_begins
        self.commits.sync_ended = self.pulls.sync_ended
        self.pulls.urge = self.reads.urge = self.commits.urge

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

    def _looking_operations(self) -> Operations:
        inspect = Inspect(
            directory=self.directory,
            clock=self._clock,
            wal=self._wal,
            commits=self.commits,
            space=self.space,
            scheduler=self.scheduler,
            pressure=self.pressure,
            reads=self.reads,
            leases=self.leases,
            mover=self.mover,
            routing=self.routing,
            copier=self.copier,
            quarantine=self.quarantine,
            replica=self._replica_figures,
            files_set_apart=self._files_set_apart,
        )
        return {
            operations.State: inspect.state,
            operations.ListTopics: inspect.list,
            operations.Stats: inspect.stats,
            operations.Sample: inspect.sample,
            operations.WatchNames: self.names.list,
        }

    def _files_set_apart(self) -> int:
        return self.checkpoints.files_apart

    def _replica_figures(self) -> Mapping[str, Any] | None:
        return self.replica()

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
            operations.WatchResolve: self._sessions.resolve,
            operations.SessionMake: self._sessions.make,
            operations.SessionOpen: self._sessions.open,
            operations.SessionMove: self._sessions.move,
            operations.SessionCount: self._sessions.count,
        }

    def _queue_operations(self, staging: Staging) -> Operations:
        return {
            operations.PeekJobs: Peeking(staging, self.leases).peek,
            operations.Redrive: Redrive(staging, self.mover).redrive,
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
            operations.WorkOpen: self.claims.work_open,
            operations.WorkTake: self.claims.work_take,
            operations.WorkClose: self.leases.work_close,
            operations.Allowance: self.allowance.lend,
            operations.AllowanceReturn: self.allowance.give_back,
        }

    def close(self, *, checkpoint: bool = True) -> None:
        """Sync, make a checkpoint, close the log. Blocks. Raises OSError if the last sync fails."""
        self.commits.sync_now()
        if self.restored and checkpoint:
            try:
                self.checkpoint_now(last=True)
            except OSError:
                pass  # the log has all changes
        self._wal.close()

    def _unrestored(self) -> list[Topic]:
        """Topics whose copies have to be made again."""
        return [topic for topic in self.directory.visible.values() if topic.unrestored]

    def restores(self) -> list[Restore]:
        """The restores that have to be done before this shard is `restored`."""

        def replay(topic: Topic, deferred: Deferred) -> None:
            replay_deferred(self.directory, topic, *deferred)

        boot_id = self._disk.boot_id()
        return [
            Restore(topic, self.copier, self.directory, self._clock, boot_id, replay) for topic in self._unrestored()
        ]

    def _router_position(self, request: Request[operations.RouterPosition], respond: Respond) -> None:
        """Answer with a topic's position, for the restore of other topics. Options: `epoch`."""
        topic = self.directory.visible.get(request.topic)
        if topic is None or topic.epoch != request.options.epoch:
            raise topic_not_found(request.topic)
        respond(Reply(request.id, extra=position(topic)))

    @property
    def checkpoint_due(self) -> bool:
        """True if a checkpoint should be made: enough has been logged or copied since the last one, it would write
        enough, a router request waits for one, or one may free space that is needed."""
        return self.restored and (
            self.logged_bytes >= self._limits.checkpoint_bytes
            or self.space.due
            or bool(self.routing.unsaved)
            or self.may_free_space
        )

    @property
    def may_free_space(self) -> bool:
        """True if the disk is nearly full and checkpoints would remove files."""
        if self.space.low:
            return bool(self.logged_bytes) or not self.checkpoints.nothing_to_remove or self.checkpoints.garbage
        return self.space.scarce and (self.logged_bytes >= self._limits.min_free_bytes // 8 or self.checkpoints.garbage)

    def _space_wanted(self) -> None:
        if self.checkpoint_due:
            self.checkpoint_wanted()

    def hold_space(self) -> None:
        """Hold space for checkpoints from now on, until `release_space`."""
        self.space.checkpoint_ended(True, self.checkpoints.catalog_may_have)
        unstored = sum(any(b.stored is None for b in t.batches) for t in self.directory.visible.values())
        self.space.begin(self.outcome.replayed_bytes, self.outcome.replayed_records, unstored)

    def release_space(self) -> None:
        """Release the held space. Call it when the shard is closed."""
        self.space.end()

    def give_seqs_up(self, done: Callable[[], None]) -> None:
        """Another machine may have given seqs to records that are lost: count the next ones of each topic as used.
        Topics whose copies are still missing follow when they are restored. Then `done` is called. Raises OSError."""
        self._giving_up = done
        self._give_up(topic for topic in self.directory.visible.values() if not topic.unrestored)

    def _give_up(self, topics: Iterable[Topic]) -> None:
        changes = [seq_reservation.give_up(topic, self._staging) for topic in topics if topic.unloaded is None]
        self.flush()
        self.commits.sync_now()
        if not all(change.done for change in changes):
            raise OSError(EIO, "the log could not be synced")
        if self.restored and self._giving_up is not None:
            self._giving_up()
            self._giving_up = None

    def log_nothing(self) -> None:
        """Log a frame that changes nothing, if there is a topic: the shard was changed without frames."""
        for topic in list(self.directory.visible.values())[:1]:
            seq_reservation.repeat(topic, self._staging)
            self.flush()
            self.commits.sync_now()

    def restore_ended(self, topics: Iterable[str]) -> None:
        """All copies are made again; `topics` had lacked some. Raises OSError."""
        self.restored = True
        if self._giving_up is not None:
            visible = self.directory.visible
            self._give_up(visible[name] for name in topics if name in visible)

    def await_bucket(self, shipped_no: int) -> None:
        """From now on, changes that wait for a sync also wait for the bucket. It has the frames up to `shipped_no`."""
        self.commits.await_bucket(shipped_no)
        self.patience = Patience(self._clock, self.commits, self._limits.bucket_timeout_ms)
        self._staging.check_bucket = self.patience.check

    @property
    def log(self) -> Wal:
        return self._wal

    @property
    def logged_bytes(self) -> int:
        """Bytes logged or copied since the last checkpoint was begun."""
        return self._grown_bytes() - self._logged_before

    def _grown_bytes(self) -> int:
        return self._wal.bytes_written + self.copier.copied_bytes

    def begin_checkpoint(self, last: bool = False) -> Plan:
        """`planning` in one call."""
        return exhaust(self.planning(last))

    def planning(self, last: bool = False) -> Generator[None, None, Plan]:
        """Plan a checkpoint in slices, between which requests may be handled. Returns the plan. Then call
        `checkpoints.write` in a worker thread, then `ending`."""
        self._logged_earlier, self._logged_before = self._logged_before, self._grown_bytes()
        yield from self.routing.saving()
        if self.space.low:
            self.commits.rotate()  # only whole log files can be removed
        self.space.checkpoint_begins()
        return (yield from self.checkpoints.planning(lambda: self.commits.safe_no, last))

    def end_checkpoint(self, plan: Plan, error: OSError | None = None) -> None:
        """`ending` in one call."""
        exhaust(self.ending(plan, error))

    def ending(self, plan: Plan, error: OSError | None = None) -> Generator[None, None, None]:
        """End a checkpoint, in slices: adopt the plan, or abandon it if `error` came before the plan was committed."""
        good = error is None or plan.committed
        if good:
            yield from self.checkpoints.adopting(plan)
            self.checkpointed()
        else:
            self.checkpoints.abandon(plan)
            self._logged_before = self._logged_earlier
        self.space.checkpoint_ended(good, self.checkpoints.catalog_may_have)
        self.routing.saved(error)
        self.flush()

    def checkpoint_now(self, last: bool = False) -> None:
        """Make a whole checkpoint in this thread. Blocks. Raises OSError, and then nothing has changed."""
        plan = self.begin_checkpoint(last)
        try:
            self.checkpoints.write(plan)
        except OSError as error:
            self.end_checkpoint(plan, error)
            raise
        self.end_checkpoint(plan)

    def handle(self, request: Request, caller: Hashable, respond: Respond) -> None:
        """Handle one request. `caller` names the peer; with the request's id it identifies a parked read."""
        kind = type(request.options)
        if kind is operations.Ping:
            respond(Reply(request.id))
            return
        if self.patience is not None:
            respond = self.patience.watch(request, respond)
        respond = Answering(partial(_answer, request, respond))
        mark = self.commits.staged_total
        try:
            self._staging.check_deadline(request)
            if not self.restored and kind not in _BEFORE_RESTORED:
                self._check_waiting(request.topic)
            if kind in READING:
                topic = self.directory.visible.get(request.topic)
                if topic is not None and (topic.unchecked or topic.damage is not None):
                    self._look_at_files(request.topic)
            waiting = self._waiting_operations.get(kind)
            if waiting is not None:
                waiting(request, caller, respond)
            else:
                self._operations[kind](request, respond)
        except TopicsError as error:
            respond(Reply(request.id, error=error))
        except SegmentError as error:
            respond(Reply(request.id, error=damaged(error)))
        except Exception as fault:
            self._staging.containment.contain(fault, request, respond, mark)
            self.cancel(caller, request.id)

    def _look_at_files(self, name: str) -> None:
        """Check the files of a topic that is unchecked or quarantined. Raises `503` if they are damaged."""
        self.checkpoints.first_use(name)
        if self.quarantine.check(name):
            self.mover.recovered()

    def _diff(self, request: Request[operations.Diff], caller: Hashable, respond: Respond) -> None:
        self.reads.diff(self.directory.find(request.topic), request, caller, respond)

    def _feed(self, request: Request[operations.Feed], caller: Hashable, respond: Respond) -> None:
        self.reads.feed(self.directory.find(request.topic), request, caller, respond)

    def _pull(self, request: Request[operations.Pull], caller: Hashable, respond: Respond) -> None:
        self.pulls.pull(self.directory.visible.get(request.topic), request, caller, respond)

    def _check_waiting(self, topic: str) -> None:
        """Raises `503` for requests before the shard is restored, unless the topic can be served already."""
        if self.waiting is None:
            raise not_ready("this shard is making copies of its routers again; retry shortly")
        if topic in self.waiting:
            raise not_ready(
                f'"{topic}" waits for the source of its routers, whose shard cannot start; the service\'s log says why',
                reason="source_away",
            )

    def flush(self) -> None:
        """Write the changes that a group of requests staged, and wake the requests that wait for them."""
        self.commits.flush()
        self._deliver()
        if self.checkpoint_due:
            self.checkpoint_wanted()

    def cancel(self, caller: Hashable, ident: int) -> None:
        """Cancel a parked request, because its caller has gone away. Does nothing if it is not parked."""
        self.reads.cancel(caller, ident)
        self.names.cancel(caller, ident)
        self.pulls.cancel(caller, ident)
        self.claims.cancel(caller, ident)
        self.allowance.cancel(caller, ident)

    def _deliver(self) -> None:
        self._refuse_damaged()
        self.claims.deliver()
        self.names.deliver()
        self.pulls.wake()
        self.scheduler.deliver()

    def _refuse_damaged(self) -> None:
        """Refuse the parked requests of topics that have just been quarantined."""
        for topic in self.quarantine.fresh():
            for waiting in (self.reads, self.pulls, self.claims):
                waiting.refuse(topic, refusal(topic))

    def _synced(self) -> None:
        self.unsynced.synced(self.commits.safe_no, everything=self.commits.everything_safe)
        self.reads.synced()
        self.synced()
        self._deliver()

    @property
    def next_due(self) -> float | None:
        """When `deliver` has to be called next, in monotonic seconds; None if nothing that waits has a time."""
        times = [
            time
            for time in (self.scheduler.next_due, self.reads.next_deadline, self.claims.next_due)
            if time is not None
        ]
        return min(times, default=None)

    def deliver(self) -> None:
        """Do what is due: deliveries whose turn it is, parked reads that are over, claimers whose window is closed."""
        self._refuse_damaged()
        self.claims.deliver()
        self.scheduler.deliver()
        self.reads.expire()

    def counters(self) -> tuple[int, int, int]:
        """Number of topics, live records and live bytes, including those that this shard is about to add by itself."""
        topics, records, size = self.directory.counters()
        return topics + self.allowance.pending_topics, records, size + self._staging.promises.apart

    def status(self) -> Status:
        """The status that every packet to an asker carries."""
        return Status(*self.counters(), len(self.quarantine), self.space.low, bucket_damaged=self.bucket_damaged)

    def monotonic(self) -> float:
        """The time of the clock that `next_due` uses, in seconds."""
        return self._clock.monotonic()

    def sample(self, lag_s: float) -> None:
        """Sample the shard's pressure. Called every `SAMPLE_INTERVAL`; `lag_s` is the delay of this call in seconds."""
        queue = self.commits.depth / self._limits.wal_queue_max
        self.pressure.sample(Sample(self.scheduler.depth, self.scheduler.take_delay(), lag_s, queue))
        self.commits.widen(widening_s(self.pressure.level, self._limits.wal_sync_window_ms / 1000))
        self.scheduler.deliver()
        self.reads.refuse_held()
        if self.patience is not None:
            self.patience.expire()

    def maintain(self) -> None:
        """Expire records, keys, parked requests, router holds, loans and watch sessions. Called now and then."""
        self.directory.expire(self._clock.now_ms())
        self.names.expire()
        self.pulls.expire()
        self.routing.expire()
        self.allowance.renew()
        self._sessions.collect()
        self.commits.flush()
        self._space_wanted()


def _answer(request: Request, respond: Respond, message: Message) -> None:
    """Pass an answer on. If the request had ignored fields, adds their names to the body."""
    if request.ignored and isinstance(message, Reply) and message.body:
        message.body = b'%b,"ignored":%b}' % (message.body[:-1], to_json(request.ignored))
    respond(message)

"""The shard: recovery, requests and stop. It has no sockets, no event loop and no clock of its own. `assembly` has its
parts, `handlers` what they do, `checkpoint_control` its checkpoints, `restoring` what it makes again after a start.

`handle` takes a request and answers it by calling `respond`: at once, after the next `flush`, or after a sync. Changes
are assigned when they stage and visible when they commit (see `shardd.storage.group_commit`).

If the process dies before a frame is written, its request was never answered. If it dies after that, the change exists
after the restart, whether or not the answer was sent. A client that repeats the request without an idempotency key may
then write twice.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator, Mapping
from functools import partial
from pathlib import Path

from proto.format.buffer import Buffer
from proto.format.frame import Header
from proto.ipc import operations
from proto.ipc.message import Message, Reply, Request, Status
from proto.ipc.operations import NEED_RECORDS
from proto.model.errors import TopicsError
from proto.model.limits import Limits
from shardd import handlers
from shardd.assembly import Assembly, Recovered
from shardd.changes import seq_reservation
from shardd.changes.containment import Answering
from shardd.changes.patience import Patience
from shardd.changes.transactions import Respond, to_json
from shardd.checkpoint.checkpoint import Checkpoints
from shardd.checkpoint.slices import exhaust
from shardd.clock import Clock
from shardd.delivery.pressure import Sample, widening_s
from shardd.recovery.quarantine import refusal
from shardd.recovery.replay import read_ahead, replay
from shardd.recovery.wal_scan import Found, Outcome, RecoveryError, scan
from shardd.storage.catalog import CatalogError
from shardd.storage.disk import Disk
from shardd.storage.errors import Exhausted, SegmentError, damaged
from shardd.topic.directory import Directory

_BEFORE_RESTORED = frozenset((operations.Pull, operations.RouterPosition, operations.Stats))
"""Operations that are served while copies are made again."""
_IN_STEPS = frozenset(
    (operations.RegistrarPut, operations.RegistrarGet, operations.RegistrarDelete, operations.RegistrarDeleteTopic)
)
"""Operations that ask shards for each of their steps, so that the steps wait for the bucket and they do not."""


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
    Blocks. Raises `RecoveryError`, or OSError. `from_files` and `to_salvage` as in `Loader.load`. With `restarted`
    False, another machine continues the shard: the caller only makes a checkpoint.

    A frame may need records of its topic's files, as a deletion by tag does, also one that waits for copies. If they
    cannot be read, the recovery begins again, with that topic set apart from its first frame on.
    """
    apart: dict[int, SegmentError] = {}
    while True:
        try:
            return (yield from _recovered(disk, clock, path, limits, apart, from_files, to_salvage, restarted))
        except _NeedsFile as error:
            if error.topic_id in apart:
                raise
            apart[error.topic_id] = error.of


class _NeedsFile(RecoveryError):
    """A frame of the log needs a file of its topic, which cannot be read."""

    def __init__(self, topic_id: int, of: SegmentError) -> None:
        super().__init__(str(of))
        self.topic_id = topic_id
        self.of = of


def _recovered(
    disk: Disk,
    clock: Clock,
    path: Path,
    limits: Limits,
    apart: Mapping[int, SegmentError],
    from_files: bool,
    to_salvage: str,
    restarted: bool,
) -> Generator[tuple[int, int], None, Shard]:
    """As `open_shard`, with the topics of these ids set apart. Raises `_NeedsFile`, too."""
    directory, outcome = Directory(), Outcome()
    checkpoints = Checkpoints(disk, path, directory, clock, limits)
    disk.make_dir(path / "wal")
    # Also if the directories exist: a process may have been killed after it made them and before this sync.
    disk.sync_dir(path)
    disk.sync_dir(path.parent)
    try:
        after_no = checkpoints.loader.load(from_files=from_files, to_salvage=to_salvage, apart=apart)
    except (CatalogError, SegmentError) as error:
        raise RecoveryError(str(error)) from error
    inventory = checkpoints.inventory
    log_frames = scan(disk, path / "wal", outcome, after_no, seed=inventory.owner.seed, tail=inventory.newest.tail)
    yield from _read_back(log_frames, directory, checkpoints)
    if outcome.next_no == 1 and not inventory.newest.number and checkpoints.strays({}):
        raise RecoveryError(f"{path}: it has files of topics, but no catalog and no log. Put them back from a backup")
    checkpoints.replayed(outcome, directory.next_id)
    directory.recovered(clock.now_ms(), disk.boot_id() if restarted else None)
    if not restarted:
        checkpoints.planner.elsewhere = True
    clock.on_jump(directory.jumped)
    checkpoints.quarantine.recovered()
    return Shard(Recovered(disk, path, clock, limits, directory, checkpoints, outcome))


def opened_shard(
    disk: Disk, clock: Clock, path: Path, limits: Limits, *, from_files: bool = False, to_salvage: str = ""
) -> Shard:
    """A shard recovered at once. As `open_shard`."""
    return exhaust(open_shard(disk, clock, path, limits, from_files=from_files, to_salvage=to_salvage))


def _read_back(
    log_frames: Iterator[Found], directory: Directory, checkpoints: Checkpoints
) -> Iterator[tuple[int, int]]:
    """Replay the held frames, then those of the log. Raises `RecoveryError`."""
    for frame in checkpoints.loader.held:
        _replay(directory, Header(frame), frame)
    checkpoints.loader.held.clear()
    for each in log_frames:
        try:
            checkpoints.loader.replaying(each.header)
        except SegmentError as error:
            raise RecoveryError(str(error)) from error
        _replay(directory, each.header, each.buffer)
        yield each.done_bytes, each.total_bytes
    for topic in directory.visible.values():
        if topic.deferred:
            try:
                read_ahead(topic)
            except SegmentError as error:
                raise _unread(topic.id, error) from error


def _replay(directory: Directory, header: Header, buffer: Buffer) -> None:
    try:
        replay(directory, header, buffer)
    except SegmentError as error:
        raise _unread(header.topic_id, error) from error


def _unread(topic_id: int, error: SegmentError) -> RecoveryError:
    return RecoveryError(str(error)) if isinstance(error, Exhausted) else _NeedsFile(topic_id, error)


class Shard(Assembly):
    """One shard. `open_shard` makes it from what its files have."""

    patience: Patience | None = None
    """Set if changes wait for the bucket."""
    moving: TopicsError | None = None
    """What requests are refused with while the shard is handed to another machine."""
    given = False
    """Whether the shard is given away, so that this process is to end."""
    window = 0
    """The size of the windows of askers, which every packet states; 0 where there are no sockets."""

    def __init__(self, of: Recovered) -> None:
        self.outcome = of.outcome
        self.directory = of.directory
        self.checkpoints = of.checkpoints
        self.quarantine = of.checkpoints.quarantine
        super().__init__(of, self.flush, self._deliver)
        self._operations = handlers.at_once(self, of.checkpoints)
        self._waiting_operations = handlers.waiting(self)

    def close(self, *, checkpoint: bool = True) -> None:
        """Sync, make a checkpoint, close the log. Blocks. Raises OSError if the last sync fails."""
        self.commits.sync_now()
        if self.restoring.restored and checkpoint:
            try:
                self.checkpoint_now(last=True)
            except OSError:
                pass  # the log has all changes
        self.log.close()

    def log_nothing(self) -> None:
        """Log a frame that changes nothing, if there is a topic: the shard was changed without frames."""
        for topic in list(self.directory.visible.values())[:1]:
            seq_reservation.repeat(topic, self.staging)
            self.flush()
            self.commits.sync_now()

    def await_bucket(self, shipped_no: int) -> None:
        """From now on, changes that wait for a sync also wait for the bucket. It has the frames up to `shipped_no`."""
        self.commits.await_bucket(shipped_no)
        staging = self.staging
        self.patience = staging.patience = Patience(staging.clock, self.commits, staging.limits.bucket_timeout_ms)

    def checkpoint_now(self, last: bool = False) -> None:
        """Make a whole checkpoint in this thread. Blocks. Raises OSError, and then nothing has changed."""
        self.control.make(last)

    def handle(self, request: Request, caller: Hashable, respond: Respond) -> None:
        """Handle one request. `caller` names the peer; with the request's id it identifies a parked read."""
        kind = type(request.options)
        if kind is operations.Ping:
            respond(Reply(request.id))
            return
        if self.moving is not None:
            respond(Reply(request.id, error=self.moving))
            return
        if self.patience is not None and kind not in _IN_STEPS:
            respond = self.patience.watch(request.id, respond)
        respond = Answering(partial(_answer, request, respond))
        mark = self.commits.staged_total
        try:
            self.staging.check_deadline(request)
            if not self.restoring.restored and kind not in _BEFORE_RESTORED:
                self.restoring.check(request.topic)
            if kind in NEED_RECORDS:
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
            self.staging.containment.contain(fault, request, respond, mark)
            self.cancel(caller, request.id)

    def _look_at_files(self, name: str) -> None:
        """Check the files of a topic that is unchecked or quarantined. Raises `503` if they are damaged."""
        self.checkpoints.loader.first_use(name)
        if self.quarantine.check(name):
            self.mover.recovered()

    def move(self, refusal: TopicsError | None) -> None:
        """From now on, refuse requests with this, those that are parked too; None: serve them again."""
        self.moving = refusal
        if refusal is not None:
            for topic in list(self.directory.visible.values()):
                for waiting in (self.reads, self.pulls, self.claims):
                    waiting.refuse(topic, refusal)
            self.allowance.refuse(None, refusal)
            self.flush()

    def flush(self) -> None:
        """Write the changes that a group of requests staged, and wake the requests that wait for them."""
        self.commits.flush()
        self._deliver()
        if self.control.due:
            self.control.wanted()

    def cancel(self, caller: Hashable, ident: int) -> None:
        """Cancel a parked request, because its caller has gone away. Does nothing if it is not parked."""
        for waiting in (self.reads, self.names, self.pulls, self.claims, self.session_streams, self.registrar):
            waiting.cancel(caller, ident)

    def forget(self, caller: Hashable) -> None:
        """Drop the parked requests of a caller that is gone, close its job streams, and end its streams of watch
        sessions. Leases that were sent to it run out."""
        for waiting in (self.reads, self.names, self.pulls, self.claims, self.sessions, self.registrar):
            waiting.forget(caller)
        for closing in self.job_streams.left_by(caller):
            self.handle(closing, caller, lambda message: None)

    def _deliver(self) -> None:
        self._refuse_damaged()
        self.claims.deliver()
        self.names.deliver()
        self.pulls.wake()
        self.scheduler.deliver()
        if self.routing.unsaved:
            self.control.look()  # after a sync: copies that a router request waits for may be visible now

    def _refuse_damaged(self) -> None:
        """Refuse the parked requests of topics that have just been quarantined."""
        for topic in self.quarantine.fresh():
            for waiting in (self.reads, self.pulls, self.claims, self.allowance):
                waiting.refuse(topic, refusal(topic))

    @property
    def next_due(self) -> float | None:
        """When `deliver` has to be called next, in monotonic seconds; None if nothing that waits has a time."""
        waiting = self.scheduler.next_due, self.reads.next_deadline, self.claims.next_due, self.session_streams.next_due
        times = [time for time in waiting if time is not None]
        return min(times, default=None)

    def deliver(self) -> None:
        """Do what is due: deliveries whose turn it is, parked reads that are over, claimers whose window is closed,
        streams that waited long enough for another one."""
        self._refuse_damaged()
        if self.session_streams.expire():
            self.commits.flush()
        self.claims.deliver()
        self.scheduler.deliver()
        self.reads.expire()

    def status(self) -> Status:
        """The status that every packet to an asker carries."""
        return Status(
            *self.directory.counters(),
            len(self.quarantine),
            self.space.low,
            bucket_damaged=self.follower.damaged,
            window=self.window,
            given=self.given,
        )

    def monotonic(self) -> float:
        """The time of the clock that `next_due` uses, in seconds."""
        return self.staging.clock.monotonic()

    def sample(self, lag_s: float) -> None:
        """Sample the shard's pressure. Called every `SAMPLE_INTERVAL`; `lag_s` is the delay of this call in seconds."""
        queue = self.commits.depth / self.staging.limits.wal_queue_max
        self.pressure.sample(Sample(self.scheduler.depth, self.scheduler.take_delay(), lag_s, queue))
        self.commits.widen(widening_s(self.pressure.level, self.staging.limits.wal_sync_window_ms / 1000))
        self.scheduler.deliver()
        self.reads.refuse_held()
        if self.patience is not None:
            self.patience.expire()
        self.registrar.expire()

    def maintain(self) -> None:
        """Expire records, keys, parked requests, router holds and watch sessions. Called now and then."""
        self.directory.expire(self.staging.clock.now_ms())
        self.names.expire()
        self.pulls.expire()
        self.routing.expire()
        self.sessions.collect()
        self.session_streams.renew()
        self.commits.flush()
        self.control.look()


def _answer(request: Request, respond: Respond, message: Message) -> None:
    """Pass an answer on. If the request had ignored fields, adds their names to the body."""
    if request.ignored and isinstance(message, Reply) and message.body:
        message.body = b'%b,"ignored":%b}' % (message.body[:-1], to_json(request.ignored))
    respond(message)

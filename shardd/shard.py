"""The shard as a whole: its life, and which operation does what. No sockets, no loop, no clock of its own.

A request comes in through `handle` and is answered by calling `respond`: at once, after the next `flush`, or after a
sync. Changes are assigned when they stage and visible when they commit (see `shardd.storage.group_commit`).

If the process dies before a frame is written, its request was never answered. If it dies after, the change is there
after the restart whether or not the answer got out; a client that repeats the request without an idempotency key may
then write twice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from proto.ipc.message import Message, Reply, Request
from proto.model.errors import TopicsError, invalid, not_ready, topic_not_found
from proto.model.limits import Limits
from shardd.changes.allowance import Allowance
from shardd.changes.transactions import Respond, Staging, to_json
from shardd.checkpoint.checkpoint import Checkpoints, exhaust
from shardd.checkpoint.plan import Plan
from shardd.clock import Clock
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
from shardd.queues.peek import Peeking
from shardd.queues.redrive import Redrive
from shardd.queues.transfers import Mover
from shardd.recovery.quarantine import READING, found, refusal
from shardd.recovery.replay import replay, replay_deferred
from shardd.recovery.wal_scan import Outcome, RecoveryError, scan
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


class Shard:
    def __init__(self, disk: Disk, clock: Clock, path: Path, limits: Limits) -> None:
        self._disk = disk
        self._clock = clock
        self._path = path
        self._limits = limits
        self.directory = Directory()
        self.pressure = Pressure()
        self.scheduler = Scheduler(clock, self.pressure)
        self.unsynced = Unsynced()
        self.reads = Reads(clock, limits, self.scheduler, self.unsynced)
        self.pulls = Pulls(clock)
        self.restored = False
        """Is every topic what it was at the last stop? Before, only other shards are answered, unless there are topics
        that wait."""
        self.waiting: frozenset[str] | None = None
        """While these topics wait for a source whose shard cannot start, the others are served."""
        self.checkpoints = Checkpoints(disk, path, self.directory, clock, limits)
        self.quarantine = self.checkpoints.quarantine
        self.outcome = Outcome()
        self.allowance = Allowance(limits)
        self.space = Space(disk, path, clock, limits)
        self._operations: dict[str, Callable[[Request, Respond], None]] = {}
        self._job_operations: dict[str, Callable[[Request, Hashable, Respond], None]] = {}
        self._logged_before = self._logged_earlier = 0
        self.checkpoint_wanted: Callable[[], None] = lambda: None
        """Called while a checkpoint is due."""
        self.space.wanted = self._room_wanted

    def recover(self) -> Iterator[tuple[int, int]]:
        """Read everything back. Yields (bytes done, bytes to do) after each frame; the shard is usable when the
        iterator is exhausted. Raises `RecoveryError`, or OSError."""
        path = self._path / "wal"
        self._disk.make_dir(path)
        # Also where they were there: a process that was killed may have made them and not come to this.
        self._disk.sync_dir(self._path)
        self._disk.sync_dir(self._path.parent)
        try:
            after_no = self.checkpoints.load()
        except (CatalogError, SegmentError) as error:
            raise RecoveryError(str(error)) from error
        for frame in self.checkpoints.held:
            replay(self.directory, found(frame))
        self.checkpoints.held.clear()
        for each in scan(self._disk, path, self.outcome, after_no):
            try:
                self.checkpoints.replaying(each.header)
            except SegmentError as error:
                raise RecoveryError(str(error)) from error
            replay(self.directory, each)
            yield each.done_bytes, each.total_bytes
        self.checkpoints.replayed()
        self.directory.recovered(self._clock.now_ms(), self._disk.boot_id())
        self._clock.on_jump(self.directory.jumped)
        self.quarantine.recovered()
        self._wal = Wal(
            self._disk,
            path,
            next_no=self.outcome.next_no,
            max_bytes=self._limits.wal_segment_bytes,
            resume=self.outcome.resume,
        )
        self.commits = Commits(self._wal, self._clock, window_ms=self._limits.wal_sync_window_ms)
        self._wal.full = self.space.full
        self.commits.logged = self.space.logged
        self.commits.out_of_room = self.space.refusal
        self.commits.after_sync = self._synced
        self.commits.sync_begins = self.pulls.sync_begins
        self.commits.sync_ended = self.pulls.sync_ended
        subscribers = Subscribers(self.scheduler, self.reads, self.pulls)
        staging = self._staging = Staging(
            self.directory,
            self.commits,
            subscribers,
            self._clock,
            self._limits,
            self._disk.boot_id(),
            self.space,
            self.allowance,
        )
        self.copier = Copier(staging)
        self.routing = Routing(staging)
        self.restored = not self._unrestored()
        topics = Topics(staging)
        cursors = Cursors(staging)
        self.mover = Mover(staging, self.flush)
        self.claims = subscribers.claims = Claims(staging, self.scheduler, self.mover.order)
        self.mover.recovered()
        self._sessions = SessionControl(staging)
        consume = Consume(staging)
        logs = Logs(staging)
        inspect = Inspect(
            directory=self.directory,
            clock=self._clock,
            wal=self._wal,
            commits=self.commits,
            space=self.space,
            scheduler=self.scheduler,
            pressure=self.pressure,
            reads=self.reads,
            claims=self.claims,
            mover=self.mover,
            routing=self.routing,
            copier=self.copier,
            quarantine=self.quarantine,
        )
        self._operations = {
            "append": Writes(staging, topics, self.pressure, self.unsynced).append,
            "configure": topics.configure,
            "delete_topic": topics.delete,
            "delete_records": Deletes(staging, self.scheduler).delete,
            "cursor_put": cursors.put,
            "cursor_get": cursors.get,
            "cursor_delete": cursors.delete,
            "cursor_list": cursors.list,
            "router_source": self.routing.source,
            "router_put": self.routing.put,
            "router_delete": self.routing.delete,
            "router_hold": self.routing.hold,
            "router_get": self.routing.get,
            "router_list": self.routing.list,
            "router_graph": self.routing.graph,
            "router_position": self._router_position,
            "watch_resolve": self._sessions.resolve,
            "session_make": self._sessions.make,
            "session_open": self._sessions.open,
            "session_move": self._sessions.move,
            "session_count": self._sessions.count,
            "take": consume.take,
            "peek": consume.peek,
            "step": consume.step,
            "peek_jobs": Peeking(staging, self.claims).peek,
            "redrive": Redrive(staging, self.mover).redrive,
            "log_create": logs.create,
            "log_find": logs.find,
            "state": inspect.state,
            "list": inspect.list,
            "stats": inspect.stats,
        }

        self._job_operations = {
            "claim": self.claims.claim,
            "ack": self.claims.ack,
            "nack": self.claims.nack,
            "extend": self.claims.extend,
            "work_open": self.claims.work_open,
            "work_take": self.claims.work_take,
            "work_close": self.claims.work_close,
            "allowance": self.allowance.lend,
            "allowance_return": self.allowance.give_back,
        }

    def close(self) -> None:
        """Sync, make a checkpoint, close the log. Raises OSError if the disk refuses to sync."""
        self.commits.sync_now()
        if self.restored:
            try:
                self.checkpoint_now(last=True)
            except OSError:
                pass  # the log has everything
        self._wal.close()

    def _unrestored(self) -> list[Topic]:
        """Topics that copies have to be made again for."""
        return [topic for topic in self.directory.visible.values() if topic.unrestored]

    def restores(self) -> list[Restore]:
        """What is to be made again before this shard is `restored`."""

        def replay(topic: Topic, deferred: Deferred) -> None:
            replay_deferred(self.directory, topic, *deferred)

        boot_id = self._disk.boot_id()
        return [
            Restore(topic, self.copier, self.directory, self._clock, boot_id, replay) for topic in self._unrestored()
        ]

    def _router_position(self, request: Request, respond: Respond) -> None:
        """Where a topic is, for others that are restored. Options: `epoch`."""
        topic = self.directory.visible.get(request.topic)
        if topic is None or topic.epoch != request.options["epoch"]:
            raise topic_not_found(request.topic)
        respond(Reply(request.id, extra=asdict(position(topic))))

    @property
    def checkpoint_due(self) -> bool:
        """Has enough been logged or copied since the last checkpoint, does somebody wait for one, or may one make room
        that is needed?"""
        return self.restored and (
            self.logged_bytes >= self._limits.checkpoint_bytes or bool(self.routing.unsaved) or self.may_make_room
        )

    @property
    def may_make_room(self) -> bool:
        """Is the disk nearly full, and is there something that checkpoints would remove?"""
        if self.space.low:
            return bool(self.logged_bytes) or not self.checkpoints.settled
        return self.space.scarce and (self.logged_bytes >= self._limits.min_free_bytes // 8 or self.checkpoints.garbage)

    def _room_wanted(self) -> None:
        if self.checkpoint_due:
            self.checkpoint_wanted()

    def hold_room(self) -> None:
        """Keep room for checkpoints from now on, until `let_go_of_room`."""
        self.space.checkpoint_ended(True, self.checkpoints.catalog_may_have)
        unstored = sum(any(b.stored is None for b in t.batches) for t in self.directory.visible.values())
        self.space.begin(self.outcome.replayed_bytes, self.outcome.replayed_records, unstored)

    def let_go_of_room(self) -> None:
        """The shard is closed."""
        self.space.end()

    @property
    def logged_bytes(self) -> int:
        """Bytes logged or copied since the last checkpoint was begun."""
        return self._grown_bytes() - self._logged_before

    def _grown_bytes(self) -> int:
        return self._wal.statistics().bytes_written_total + self.copier.copied_bytes

    def begin_checkpoint(self, last: bool = False) -> Plan:
        """`planning`, at once."""
        return exhaust(self.planning(last))

    def planning(self, last: bool = False) -> Generator[None, None, Plan]:
        """Take the position and what is to be written, in slices between which requests may be handled. Follow with
        `checkpoints.write` in a thread, then `ending`."""
        self._logged_earlier, self._logged_before = self._logged_before, self._grown_bytes()
        yield from self.routing.saving()
        if self.space.low:
            self.commits.rotate()  # the log is removed by files
        self.space.checkpoint_begins()
        return (yield from self.checkpoints.planning(lambda: self._wal.synced_no, last))

    def end_checkpoint(self, plan: Plan, error: OSError | None = None) -> None:
        """`ending`, at once."""
        exhaust(self.ending(plan, error))

    def ending(self, plan: Plan, error: OSError | None = None) -> Generator[None, None, None]:
        """The files are written, or could not be."""
        good = error is None or plan.committed
        if good:
            yield from self.checkpoints.adopting(plan)
        else:
            self.checkpoints.abandon(plan)
            self._logged_before = self._logged_earlier
        self.space.checkpoint_ended(good, self.checkpoints.catalog_may_have)
        self.routing.saved(error)
        self.flush()

    def checkpoint_now(self, last: bool = False) -> None:
        """A whole checkpoint in this thread. Raises OSError, and then nothing has changed."""
        plan = self.begin_checkpoint(last)
        try:
            self.checkpoints.write(plan)
        except OSError as error:
            self.end_checkpoint(plan, error)
            raise
        self.end_checkpoint(plan)

    def handle(self, request: Request, caller: Hashable, respond: Respond) -> None:
        """Take one request. `caller` names the peer; with the request's id it identifies a parked read."""
        if request.op == "ping":
            respond(Reply(request.id))
            return
        self._handle(request, caller, partial(_answer, request, respond))

    def _handle(self, request: Request, caller: Hashable, respond: Respond) -> None:
        try:
            self._staging.check_deadline(request)
            if not self.restored and request.op not in ("pull", "router_position", "stats"):
                self._check_waiting(request.topic)
            if request.op in READING:
                self.checkpoints.first_use(request.topic)
                if self.quarantine.check(request.topic):
                    self.mover.recovered()
            if request.op == "pull":
                self.pulls.pull(self.directory.visible.get(request.topic), request, caller, respond)
                return
            if request.op == "diff":
                self.reads.diff(self.directory.find(request.topic), request, caller, respond)
                return
            if request.op == "feed":
                self.reads.feed(self.directory.find(request.topic), request, caller, respond)
                return
            about_jobs = self._job_operations.get(request.op)
            if about_jobs is not None:
                about_jobs(request, caller, respond)
                return
            operation = self._operations.get(request.op)
            if operation is None:
                raise invalid(f"operation {request.op!r} is not known to this shard")
            operation(request, respond)
        except TopicsError as error:
            respond(Reply(request.id, error=error))
        except SegmentError as error:
            respond(Reply(request.id, error=damaged(error)))

    def _check_waiting(self, topic: str) -> None:
        """Not everything is restored. Raises `503`, unless the topic is."""
        if self.waiting is None:
            raise not_ready("this shard is making copies of its routers again; retry shortly")
        if topic in self.waiting:
            raise not_ready(
                f'"{topic}" waits for the source of its routers, whose shard cannot start; the service\'s log says why',
                reason="source_away",
            )

    def flush(self) -> None:
        """End of a group of requests: write what they staged, and wake who waited for it."""
        self.commits.flush()
        self._deliver()
        if self.checkpoint_due:
            self.checkpoint_wanted()

    def cancel(self, caller: Hashable, ident: int) -> None:
        """The caller went away. Nothing if its request is not parked (any more)."""
        self.reads.cancel(caller, ident)
        self.pulls.cancel(caller, ident)
        self.claims.cancel(caller, ident)
        self.allowance.cancel(caller, ident)

    def _deliver(self) -> None:
        self._refuse_damaged()
        self.claims.deliver()
        self.pulls.wake()
        self.scheduler.deliver()

    def _refuse_damaged(self) -> None:
        """Topics were set apart: who waits for them learns of it."""
        for topic in self.quarantine.fresh():
            for waiting in (self.reads, self.pulls, self.claims):
                waiting.refuse(topic, refusal(topic))

    def _synced(self) -> None:
        self.unsynced.synced(self.commits.synced_no, everything=not self.commits.dirty)
        self.reads.synced()
        self._deliver()

    @property
    def next_due(self) -> float | None:
        """When `deliver` next has something to do, in monotonic seconds; None if nothing that waits has a time."""
        times = [
            time
            for time in (self.scheduler.next_due, self.reads.next_deadline, self.claims.next_due)
            if time is not None
        ]
        return min(times, default=None)

    def deliver(self) -> None:
        """What is due: deliveries whose turn it is, parked reads that are over, claimers whose window is closed."""
        self._refuse_damaged()
        self.claims.deliver()
        self.scheduler.deliver()
        self.reads.expire()

    def counters(self) -> tuple[int, int, int]:
        """Topics, live records, live bytes, and with them what this shard is about to add by itself."""
        topics, records, size = self.directory.counters()
        return topics + self.allowance.pending_topics, records, size + self.allowance.pending_bytes

    def monotonic(self) -> float:
        """The clock that `next_due` is in."""
        return self._clock.monotonic()

    def sample(self, lag_s: float) -> None:
        """Take the shard's pressure; to be called every `SAMPLE_INTERVAL`, `lag_s` being how late that was."""
        queue = self.commits.depth / self._limits.wal_queue_max
        self.pressure.sample(Sample(self.scheduler.depth, self.scheduler.take_delay(), lag_s, queue))
        self.commits.widen(widening_s(self.pressure.level, self._limits.wal_sync_window_ms / 1000))
        self.scheduler.deliver()
        self.reads.pace()

    def maintain(self) -> None:
        """Now and then: let go of what is out of date."""
        self.directory.expire(self._clock.now_ms())
        self.pulls.expire()
        self.routing.expire()
        self.allowance.renew()
        self._sessions.collect()
        self.commits.flush()
        self._room_wanted()


def _answer(request: Request, respond: Respond, message: Message) -> None:
    """Pass an answer on, with the names of what its request said in vain."""
    if request.ignored and isinstance(message, Reply) and message.body:
        message.body = b'%b,"ignored":%b}' % (message.body[:-1], to_json(request.ignored))
    respond(message)

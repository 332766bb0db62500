"""Appends: a write is parsed, decided on, staged as one frame, and answered when it commits.

    parse       body → one batch                                               `append_request`
    decide      a plan, an answer that is known already, or a refusal          `append_decision`
    room        the caps over all topics have room, or it waits, then begins again at "parse" (`allowance`)
    reserve     the bucket, the queue of the log and the disk have room, or it is refused
    stage       the topic, if it is new; the batch gets its seqs and becomes a frame of the log
    commit      it is visible, and the write is answered                       `RecordsAdded.apply`

`disk` and `memory` writes commit when the kernel has the frame, `fsync` writes when the device has it. `ephemeral`
writes leave no frame.

A batch of letters, from another topic's outbox, is an append too. It has no idempotency key of a client.
"""

from __future__ import annotations

from functools import partial

from msgspec import UNSET

from proto.api.answers import Appended
from proto.format.columns import Columns
from proto.format.frame import Frame, encode_batch
from proto.ipc.message import Reply, Request
from proto.ipc.operations import Append, Arrived
from proto.model.errors import TopicsError
from shardd.changes import seq_reservation
from shardd.changes.admission import NO_BYTES
from shardd.changes.transactions import Respond, Staging, TopicChange, performance, refuse, to_json
from shardd.delivery.pressure import Pressure
from shardd.delivery.strong_reads import Unsynced
from shardd.operations.append_decision import Plan, decide
from shardd.operations.append_request import Write, parse_write
from shardd.operations.topics import TopicAdded, Topics
from shardd.storage.batch import Fresh
from shardd.storage.change import Timing
from shardd.storage.indivisible import indivisible
from shardd.topic.topic import Topic


class Writes:
    def __init__(self, staging: Staging, topics: Topics, pressure: Pressure, unsynced: Unsynced) -> None:
        self.staging = staging
        self.unsynced = unsynced
        self._topics = topics
        self._pressure = pressure
        self.fresh = Fresh()

    def append(self, request: Request[Append], respond: Respond) -> None:
        staging = self.staging
        write = parse_write(request, staging.limits)
        now = staging.clock.now_ms()
        key = b"" if request.options.letters else write.columns.key
        topic = staging.directory.assigned.get(request.topic)
        if topic is not None:
            topic.expire(now)
            if key:
                topic.keys.expire(now + topic.position.ahead_ms - topic.assigned_config.idempotency_window_ms)
        decided = decide(request, write, topic, staging.limits)
        if isinstance(decided, Plan):
            if self._has_room(decided, topic is None, request, respond):
                self._reserve(decided, write, topic, key)
                self._stage(decided, write, topic, now, request, respond)
        elif isinstance(decided, Arrived):
            respond(Reply(request.id, extra=decided))
        else:
            decided.topic.keys.share(key, partial(_answer_again, decided.topic, key, request, respond))

    def _has_room(self, plan: Plan, created: bool, request: Request[Append], respond: Respond) -> bool:
        """Whether the caps over all topics have room. If not, the write waits, or is refused."""
        if not created and plan.grows is None:
            return True
        grows = NO_BYTES if plan.grows is None else plan.grows
        again = partial(self.append, request, respond)
        letters = request.options.letters is not None
        return self.staging.has_room(int(created), grows, request, respond, again, letters=letters)

    def _reserve(self, plan: Plan, write: Write, topic: Topic | None, key: bytes) -> None:
        """Raises `429 throttled` for a logged write, if too many writes wait or the disk is nearly full; `503` if the
        bucket is late."""
        if not plan.config.durability.logged:
            return
        commits = self.staging.commits
        if topic is None or plan.config.durability.acks_synced:
            self.staging.check_bucket()
        if commits.depth >= self.staging.limits.wal_queue_max and not write.asked.disable_backpressure:
            raise self._pressure.refuse(commits.depth, commits.oldest_wait_s)
        self.staging.space.check(topic, plan.data_size, write.columns.count, key)

    def _stage(
        self, plan: Plan, write: Write, topic: Topic | None, now: int, request: Request[Append], respond: Respond
    ) -> None:
        columns, letters, created = write.columns, request.options.letters, topic is None
        durability = plan.config.durability
        if write.delays is not None:
            columns.due = [now + delay if delay else 0 for delay in write.delays]
        with indivisible:
            if topic is None:
                topic = self._topics.new(request.topic, plan.config)
                self._topics.create(TopicAdded(topic, directory=self.staging.directory))
            columns.ts = topic.position.commit_time(now)
            seq_reservation.ahead(topic, columns.count, self.staging)
            kind = RecordsAdded if letters is None else LettersAdded
            requires_sync = durability.acks_synced if letters is None else durability.reaches_device
            change = kind(topic, self, columns, plan, created, request, respond, requires_sync=requires_sync)
            change.assign()
            self.staging.stage(change)
            seq_reservation.pushed_out(topic, self.staging)


class RecordsAdded(TopicChange, eq=False):
    """The records of one write of a client."""

    writes: Writes
    columns: Columns
    plan: Plan
    created: bool
    request: Request[Append]
    respond: Respond
    first_seq: int = 0
    frame: Frame | None = None

    def assign(self) -> None:
        """Gives the records their seqs."""
        topic, count = self.topic, self.columns.count
        self.first_seq = topic.position.take(count)
        topic.records.staged(count, self.plan.size)
        if self.plan.grows is not None:
            topic.records.promised(self.writes.staging.promises, self.plan.grows.most)
        if self.columns.key:
            self.begin()

    @property
    def logged(self) -> bool:
        return self.plan.config.durability.logged

    def encode(self, frame_no: int, synced_no: int) -> Frame:
        frame = encode_batch(self.columns, self.topic.id, self.first_seq, frame_no=frame_no, synced_no=synced_no)
        self.frame = frame
        return frame

    def apply(self, timing: Timing) -> None:
        topic, columns, first_seq = self.topic, self.columns, self.first_seq
        frame = self.frame or encode_batch(columns, topic.id, first_seq)
        topic.records.unstaged(columns.count, self.plan.size)
        self.writes.fresh.keep(topic.add(frame.head, first_seq, columns), columns)
        if self.plan.grows is not None:
            topic.records.kept()
        if topic.queue is not None and columns.due is not None:
            topic.queue.schedule(first_seq, columns.due, self.writes.staging.clock.now_ms())
        ts = columns.ts
        assert isinstance(ts, int)
        topic.last_write_ts = ts
        if self.plan.config.durability.acks_before_sync and self.number > self.writes.staging.commits.safe_no:
            self.writes.unsynced.wrote(topic, self.number, first_seq)
        self.writes.staging.events.written(topic)
        if timing.sync_ms and not self.plan.config.durability.acks_synced:
            timing = Timing(timing.write_ms)
        self.respond(_answer(topic, first_seq, columns.count, self.created, False, self.request, timing))
        if columns.key:
            self.end(None)

    def undo(self, error: TopicsError) -> None:
        topic = self.topic
        topic.position.give_back(self.first_seq)
        topic.records.unstaged(self.columns.count, self.plan.size)
        if self.plan.grows is not None:
            topic.records.kept()
        refuse(self.request.id, self.respond, error)
        if self.columns.key:
            self.end(error)

    # What depends on the key

    def begin(self) -> None:
        self.topic.keys.begin(self.columns.key)

    def end(self, error: TopicsError | None) -> None:
        """Answers the writes that wait for this one because they have its idempotency key. Called after its answer."""
        keys, columns = self.topic.keys, self.columns
        assert isinstance(columns.ts, int)
        if error is None:
            waiters = keys.done(columns.key, self.first_seq, columns.count, columns.ts)
        else:
            waiters = keys.failed(columns.key)
        for waiter in waiters:
            waiter(error)


class LettersAdded(RecordsAdded, eq=False):
    """A batch of letters from another topic's outbox."""

    def begin(self) -> None:
        self.topic.arrivals.pending.add(self._source)

    def end(self, error: TopicsError | None) -> None:
        self.topic.arrivals.pending.discard(self._source)
        if error is None:
            self.topic.arrivals.add(self.columns.key)

    @property
    def _source(self) -> bytes:
        assert self.request.options.letters is not None
        return self.request.options.letters[0]


def _answer_again(
    topic: Topic, key: bytes, request: Request[Append], respond: Respond, error: TopicsError | None
) -> None:
    """Gives a write the answer of the earlier one with its key."""
    if error is None:
        respond(_answer(topic, *topic.keys.find(key), False, True, request, Timing()))
    else:
        refuse(request.id, respond, error)


def _answer(
    topic: Topic, first_seq: int, count: int, created: bool, deduped: bool, request: Request, timing: Timing
) -> Reply:
    last_seq = first_seq + count - 1
    body = Appended(
        topic=topic.name,
        first_seq=first_seq,
        last_seq=last_seq,
        seqs=list(range(first_seq, last_seq + 1)) if request.options.return_seqs else UNSET,
        head_seq=topic.records.head_seq,
        count=count,
        created=created,
        deduped=deduped,
    )
    return Reply(request.id, to_json(body), created=created, performance=performance(timing))

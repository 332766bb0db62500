"""Appends: each is checked, given its seqs, staged as one frame, and answered when it commits.

    parse       body → one batch                               `append_request`
    check       the topic, or the one to create; its caps, those of all topics, the disk, the queue of the log
    assign      the batch gets its seqs                        `RecordsAdded.assign`
    stage       it becomes a frame of the log                  `RecordsAdded.encode`
    commit      it is visible, and the write is answered       `RecordsAdded.apply`

`disk` and `memory` writes commit when the kernel has the frame, `fsync` writes when the device has it. `ephemeral`
writes leave no frame.

A batch of letters, from another topic's outbox, is an append too. It has no idempotency key of a client, and its bytes
come out of the shard's allowance.
"""

from __future__ import annotations

from functools import partial

from msgspec import UNSET

from proto.api.answers import Appended
from proto.api.requests import AppendRequest
from proto.format.columns import Columns
from proto.format.frame import Frame, encode_batch
from proto.ipc.message import Reply, Request
from proto.ipc.operations import Append, Arrived, Letters
from proto.model.durability import Durability
from proto.model.errors import TopicsError, not_a_queue, not_ready
from proto.model.limits import RECORD_OVERHEAD
from proto.model.topic_config import TopicConfig
from shardd.changes import seq_reservation
from shardd.changes.admission import check_bytes, check_inline, check_topics, growth
from shardd.changes.allowance import Allowance
from shardd.changes.transactions import Respond, Staging, TopicChange, performance, refuse, to_json
from shardd.delivery.pressure import Pressure
from shardd.delivery.strong_reads import Unsynced
from shardd.operations.append_checks import check_delays, check_room, key_of, lazy_config
from shardd.operations.append_request import delays, parse_write
from shardd.operations.topics import TopicAdded, Topics
from shardd.storage.batch import Fresh
from shardd.storage.change import Timing
from shardd.storage.indivisible import indivisible
from shardd.topic.idempotency import Waiter
from shardd.topic.outbox import arrival_key
from shardd.topic.topic import Topic


class Writes:
    def __init__(self, staging: Staging, topics: Topics, pressure: Pressure, unsynced: Unsynced) -> None:
        self.staging = staging
        self.unsynced = unsynced
        self._topics = topics
        self._pressure = pressure
        self.fresh = Fresh()

    def append(self, request: Request[Append], respond: Respond) -> None:
        write, columns = parse_write(request, self.staging.limits)
        letters = request.options.letters
        key = key_of(write.idempotency_key, request.options.idempotency_key)
        held_back = delays(write)
        now = self.staging.clock.now_ms()
        topic = self.staging.directory.assigned.get(request.topic)
        created = topic is None
        if topic is None:
            config = lazy_config(request.topic, write)
            check_inline(write.config, request.options)
            check_delays(held_back, config, request.topic)
        else:
            topic.expire(now)
            config = topic.assigned_config
            if letters and self._known(topic, letters, request, respond):
                return
            check_delays(held_back, topic.config, topic.name)
            if key and self._answered(topic, key, request, respond, now):
                return
        data_size = columns.size(0, columns.count)
        size = data_size + RECORD_OVERHEAD * columns.count
        check_room(topic, config, columns.count, size, request.topic)
        grows_by = self._growth(topic, config, size, columns, request.options)
        self._admit(topic, config, columns.count, data_size, key, write)
        columns.key = key if letters is None else arrival_key(*letters)
        if held_back is not None:
            columns.due = [now + delay if delay else 0 for delay in held_back]
        with indivisible:
            if letters and not self._lent(grows_by or 0, int(created), request, respond):
                return
            if topic is None:
                topic = self._create(request.topic, config, lent=letters is not None)
            columns.ts = topic.commit_time(now)
            seq_reservation.ahead(topic, columns.count, self.staging)
            kind = RecordsAdded if letters is None else LettersAdded
            durability = config.durability
            requires_sync = durability.acks_synced if letters is None else durability.reaches_device
            change = kind(
                topic, self, columns, size, grows_by, durability, created, request, respond, requires_sync=requires_sync
            )
            change.assign()
            self.staging.stage(change)
            seq_reservation.pushed_out(topic, self.staging)

    def _growth(
        self, topic: Topic | None, config: TopicConfig, size: int, columns: Columns, options: Append
    ) -> int | None:
        """The most bytes that a write of `size` bytes adds to the shard; None without a cap on them. Raises `429` if
        there is no room for them, or for the topic that it creates; for letters, the allowance decides instead."""
        staging = self.staging
        if topic is None and options.letters is None:
            check_topics(staging.topics_held, options, staging.limits)
        if options.most_bytes is None and (options.letters is None or not staging.limits.max_total_bytes):
            return None
        needed = growth(topic, config, size, columns.count, columns)
        if options.letters is None:
            there = staging.directory.totals.bytes + staging.promises.booked + staging.allowance.lent_bytes
            check_bytes(there, needed, options, staging.limits)
        return needed.most

    def _admit(
        self, topic: Topic | None, config: TopicConfig, count: int, size: int, key: bytes, write: AppendRequest
    ) -> None:
        """Raises `429 throttled` for a logged write, if too many writes wait or the disk is nearly full."""
        if not config.durability.logged:
            return
        commits = self.staging.commits
        if topic is None or config.durability.acks_synced:
            self.staging.check_bucket()
        if commits.depth >= self.staging.limits.wal_queue_max and not write.disable_backpressure:
            raise self._pressure.refuse(commits.depth, commits.oldest_wait_s)
        self.staging.space.check(topic, size, count, key)

    def _create(self, name: str, config: TopicConfig, *, lent: bool) -> Topic:
        """Stages the topic that a write creates. For letters it is `lent`: it comes out of the allowance."""
        staging, topic = self.staging, self._topics.new(name, config)
        if lent:
            self._topics.create(_Lent(topic, staging.allowance, directory=staging.directory))
        else:
            self._topics.create(TopicAdded(topic, directory=staging.directory))
        return topic

    def _answered(self, topic: Topic, key: bytes, request: Request[Append], respond: Respond, now: int) -> bool:
        """Whether the idempotency key was used before. If so, nothing is written, and the write gets the first one's
        answer, now or when the first one has committed."""
        topic.keys.expire(now + topic.ahead_ms - topic.assigned_config.idempotency_window_ms)

        def answer(error: TopicsError | None) -> None:
            if error is not None:
                refuse(request.id, respond, error)
                return
            found = topic.keys.find(key)
            assert found is not None
            respond(_answer(topic, *found, False, True, request, Timing()))

        if topic.keys.find(key) is not None:
            answer(None)
            return True
        return topic.keys.wait(key, answer)

    # Letters

    def _known(self, topic: Topic, letters: Letters, request: Request[Append], respond: Respond) -> bool:
        """Whether some letters of a batch from another topic's outbox are here already. If so, the answer lists them as
        `known`, and none is written. Raises `409` for jobs sent to a log, and `503` while a batch of the same source is
        staged."""
        if request.options.jobs and topic.queue is None:
            raise not_a_queue(topic.name)
        source, seqs = letters
        if source in topic.arrivals.pending:
            raise not_ready("another batch of the same source is on its way")
        known = sorted(set(seqs).intersection(topic.arrivals.last.get(source, ())))
        if known:
            respond(Reply(request.id, extra=Arrived(tuple(known))))
        return bool(known)

    def _lent(self, size: int, topics: int, request: Request[Append], respond: Respond) -> bool:
        """Takes what letters from an outbox need from the shard's allowance. Returns False if they must wait for it:
        the request is then appended again when it is covered, or refused with `429`."""
        allowance = self.staging.allowance
        if allowance.covers(size, topics):
            allowance.take(size, topics)
            return True

        go = partial(self.staging.containment.attempt, request, respond, partial(self.append, request, respond))
        allowance.wait(size, topics, go, partial(refuse, request.id, respond))
        return False


class RecordsAdded(TopicChange, eq=False):
    """The records of one write of a client."""

    writes: Writes
    columns: Columns
    size: int
    """Bytes that the topic holds more, without what the write evicts."""
    grows_by: int | None
    """The most bytes that it adds to the shard; None without a cap on them."""
    durability: Durability
    created: bool
    request: Request[Append]
    respond: Respond
    first_seq: int = 0
    frame: Frame | None = None

    def assign(self) -> None:
        """Gives the records their seqs."""
        topic, count = self.topic, self.columns.count
        self.first_seq = topic.next_seq
        topic.next_seq += count
        topic.pending_records += count
        topic.pending_bytes += self.size
        if self.grows_by is not None:
            topic.promised(self.writes.staging.promises, self.grows_by, self.apart)
        self.begin()

    @property
    def logged(self) -> bool:
        return self.durability.logged

    def encode(self, frame_no: int, synced_no: int) -> Frame:
        frame = encode_batch(self.columns, self.topic.id, self.first_seq, frame_no=frame_no, synced_no=synced_no)
        self.frame = frame
        return frame

    def apply(self, timing: Timing) -> None:
        topic, columns, first_seq = self.topic, self.columns, self.first_seq
        frame = self.frame or encode_batch(columns, topic.id, first_seq)
        topic.pending_records -= columns.count
        topic.pending_bytes -= self.size
        self.writes.fresh.keep(topic.add(frame.head, first_seq, columns), columns)
        self.kept()
        if topic.queue is not None and columns.due is not None:
            topic.queue.schedule(first_seq, columns.due, self.writes.staging.clock.now_ms())
        ts = columns.ts
        assert isinstance(ts, int)
        topic.last_write_ts = ts
        if self.durability.acks_before_sync and self.number > self.writes.staging.commits.safe_no:
            self.writes.unsynced.wrote(topic, self.number, first_seq)
        self.writes.staging.events.written(topic)
        if timing.sync_ms and not self.durability.acks_synced:
            timing = Timing(timing.write_ms)
        self.respond(_answer(topic, first_seq, columns.count, self.created, False, self.request, timing))
        self.end(None)

    def undo(self, error: TopicsError) -> None:
        topic = self.topic
        topic.next_seq = self.first_seq
        topic.pending_records -= self.columns.count
        topic.pending_bytes -= self.size
        self.kept()
        refuse(self.request.id, self.respond, error)
        self.end(error)

    def kept(self) -> None:
        """Ends the booking of the bytes. Called before the answer, whose counters have them."""
        if self.grows_by is not None:
            self.topic.kept(self.apart)

    # What depends on the sender

    @property
    def apart(self) -> bool:
        """Whether no client's request brought the records."""
        return False

    def begin(self) -> None:
        if self.columns.key:
            self.topic.keys.begin(self.columns.key)

    def end(self, error: TopicsError | None) -> None:
        """Answers the writes that wait for this one because they have its idempotency key. Called after its answer."""
        key, columns = self.columns.key, self.columns
        if key and error is None:
            assert isinstance(columns.ts, int)
            _tell(self.topic.keys.done(key, self.first_seq, columns.count, columns.ts), None)
        elif key:
            _tell(self.topic.keys.failed(key), error)


class LettersAdded(RecordsAdded, eq=False):
    """A batch of letters from another topic's outbox."""

    def begin(self) -> None:
        self.topic.arrivals.pending.add(self._source)

    @property
    def apart(self) -> bool:
        return True

    def end(self, error: TopicsError | None) -> None:
        self.topic.arrivals.pending.discard(self._source)
        if error is None:
            self.topic.arrivals.add(self.columns.key)

    @property
    def _source(self) -> bytes:
        assert self.request.options.letters is not None
        return self.request.options.letters[0]


class _Lent(TopicAdded, eq=False):
    """The topic that letters create."""

    allowance: Allowance

    def apply(self, timing: Timing) -> None:
        super().apply(timing)
        self.allowance.settled(1)

    def undo(self, error: TopicsError) -> None:
        super().undo(error)
        self.allowance.settled(1)


def _tell(waiters: list[Waiter], error: TopicsError | None) -> None:
    for waiter in waiters:
        waiter(error)


def _answer(
    topic: Topic, first_seq: int, count: int, created: bool, deduped: bool, request: Request, timing: Timing
) -> Reply:
    last_seq = first_seq + count - 1
    body = Appended(
        topic=topic.name,
        first_seq=first_seq,
        last_seq=last_seq,
        seqs=list(range(first_seq, last_seq + 1)) if request.options.return_seqs else UNSET,
        head_seq=topic.head_seq,
        count=count,
        created=created,
        deduped=deduped,
    )
    return Reply(request.id, to_json(body), created=created, performance=performance(timing))

"""Appends: each is checked, given its seqs, staged as one frame, and answered when it commits.

`disk` and `memory` writes commit when the kernel has the frame, `fsync` writes when the device has it. `ephemeral`
writes leave no frame.
"""

from __future__ import annotations

from functools import partial

from msgspec import UNSET

from proto.api.answers import Appended
from proto.api.requests import AppendRequest
from proto.format.frame import Columns, Frame, encode_batch
from proto.ipc.message import Reply, Request
from proto.ipc.operations import Append, Arrived, Letters
from proto.model.errors import ErrorCode, TopicsError, invalid, not_a_queue, not_ready, topic_not_found
from proto.model.limits import MAX_IDEMPOTENCY_KEY_CHARS, RECORD_OVERHEAD
from proto.model.topic_config import ConfigPatch, TopicConfig, apply
from shardd.changes import seq_reservation
from shardd.changes.admission import check_bytes, check_inline, check_topics, growth
from shardd.changes.transactions import Respond, Staging, performance, refuse, to_json
from shardd.delivery.pressure import Pressure
from shardd.delivery.strong_reads import Unsynced
from shardd.operations.append_request import delays, parse_write
from shardd.operations.topics import Topics
from shardd.storage.group_commit import Timing
from shardd.topic.idempotency import Waiter
from shardd.topic.outbox import MARK, arrival_key
from shardd.topic.topic import Topic


class Writes:
    def __init__(self, staging: Staging, topics: Topics, pressure: Pressure, unsynced: Unsynced) -> None:
        self._staging = staging
        self._topics = topics
        self._pressure = pressure
        self._unsynced = unsynced
        self._pending_growth = 0
        """The most bytes that staged writes add when they commit."""

    def append(self, request: Request[Append], respond: Respond) -> None:
        write, columns = parse_write(request, self._staging.limits)
        letters = request.options.letters
        key = _key(write.idempotency_key, request.options.idempotency_key)
        held_back = delays(write)
        now = self._staging.clock.now_ms()
        topic = self._staging.directory.assigned.get(request.topic)
        created = topic is None
        if topic is None:
            made = self._first(request, write, columns, held_back, respond)
            if made is None:
                return
            topic, grows_by = made
        else:
            topic.expire(now)
            if letters and self._known(topic, letters, request, respond):
                return
            _check_delays(held_back, topic.config, topic.name)
            if key and self._answered(topic, key, request, respond, now):
                return
            _check_room(topic, topic.assigned_config, columns, topic.name)
            grows_by = self._growth(topic, topic.assigned_config, columns, request.options)
            self._admit(topic, topic.assigned_config, columns, write)
            if letters and not self._lent(grows_by, 0, request, respond):
                return
        if letters:
            key = arrival_key(*letters)
            topic.arrivals.pending.add(letters[0])
        columns.key = key
        columns.ts = topic.commit_time(now)
        if held_back is not None:
            columns.due = [now + delay if delay else 0 for delay in held_back]
        seq_reservation.ahead(topic, columns.count, self._staging)
        self._stage(topic, columns, grows_by, created, request, respond)

    def _first(
        self,
        request: Request[Append],
        write: AppendRequest,
        columns: Columns,
        held_back: list[int] | None,
        respond: Respond,
    ) -> tuple[Topic, int] | None:
        """The topic that this write creates, and the bytes by which it grows. None if letters have to wait for room."""
        letters = request.options.letters is not None
        config = _lazy_config(request.topic, write)
        check_inline(write.config, request.options)
        _check_delays(held_back, config, request.topic)
        _check_room(None, config, columns, request.topic)
        if not letters:
            check_topics(self._staging.topics_held, request.options, self._staging.limits)
        grows_by = self._growth(None, config, columns, request.options)
        self._admit(None, config, columns, write)
        if letters and not self._lent(grows_by, 1, request, respond):
            return None
        return self._create(request.topic, config, by_itself=letters), grows_by

    def _growth(self, topic: Topic | None, config: TopicConfig, columns: Columns, options: Append) -> int:
        """The most bytes that this write adds to the shard. Raises `429` if there is no room for them; for letters, the
        allowance decides instead."""
        held = 0 if topic is None else topic.bytes + topic.pending_bytes
        needed = growth(columns.size(0, columns.count) + RECORD_OVERHEAD * columns.count, held, config)
        if options.letters is None:
            there = self._staging.directory.totals.bytes + self._pending_growth + self._staging.allowance.lent_bytes
            check_bytes(there, needed, options, self._staging.limits)
        return needed

    def _lent(self, size: int, topics: int, request: Request[Append], respond: Respond) -> bool:
        """Takes what letters from an outbox need from the shard's allowance. Returns False if they must wait for it:
        the request is then appended again when it is covered, or refused with `429`."""
        allowance = self._staging.allowance
        if allowance.covers(size, topics):
            allowance.take(size, topics)
            return True

        def go() -> None:
            try:
                self.append(request, respond)
            except TopicsError as error:
                refuse(request.id, respond, error)

        allowance.wait(size, topics, go, partial(refuse, request.id, respond))
        return False

    def _create(self, name: str, config: TopicConfig, *, by_itself: bool) -> Topic:
        def over() -> None:
            if by_itself:
                self._staging.allowance.settled(0, 1)

        return self._topics.create(name, config, lambda topic, timing: over(), lambda error: over())

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

    def _admit(self, topic: Topic | None, config: TopicConfig, columns: Columns, write: AppendRequest) -> None:
        """Raises `429 throttled` for a logged write, if too many writes wait or the disk is nearly full."""
        if not config.durability.logged:
            return
        commits = self._staging.commits
        if commits.depth >= self._staging.limits.wal_queue_max and not write.disable_backpressure:
            raise self._pressure.refuse(commits.depth, commits.oldest_wait_s)
        self._staging.space.check_write(columns, topic)

    def _grown(self, size: int, source: bytes) -> None:
        if source:
            self._staging.allowance.settled(size)
        else:
            self._pending_growth -= size

    def _stage(
        self, topic: Topic, columns: Columns, grows_by: int, created: bool, request: Request[Append], respond: Respond
    ) -> None:
        first_seq = topic.next_seq
        size = columns.size(0, columns.count) + RECORD_OVERHEAD * columns.count
        topic.next_seq += columns.count
        topic.pending_records += columns.count
        topic.pending_bytes += size
        key = columns.key
        source = key[1:25] if key.startswith(MARK) else b""
        if not source:
            self._pending_growth += grows_by
        if key and not source:
            topic.keys.begin(key)
        durability = topic.assigned_config.durability
        kept: Frame | None = None
        number = 0

        def commit(timing: Timing) -> None:
            frame = kept or encode_batch(columns, topic.id, first_seq)
            topic.pending_records -= columns.count
            topic.pending_bytes -= size
            self._grown(grows_by, source)
            topic.add(frame.head, first_seq, columns)
            if topic.queue is not None and columns.due is not None:
                topic.queue.schedule(first_seq, columns.due, self._staging.clock.now_ms())
            ts = columns.ts
            assert isinstance(ts, int)
            topic.last_write_ts = ts
            if durability.acks_before_sync and not source:
                self._unsynced.wrote(topic, number, first_seq)
            self._staging.events.written(topic)
            if not durability.acks_synced:
                timing = Timing(timing.write_ms)
            respond(_answer(topic, first_seq, columns.count, created, False, request, timing))
            if source:
                topic.arrivals.pending.discard(source)
                topic.arrivals.add(key)
            elif key:
                _tell(topic.keys.done(key, first_seq, columns.count, ts), None)

        def undo(error: TopicsError) -> None:
            topic.next_seq = first_seq
            topic.pending_records -= columns.count
            topic.pending_bytes -= size
            self._grown(grows_by, source)
            refuse(request.id, respond, error)
            topic.arrivals.pending.discard(source)
            if key and not source:
                _tell(topic.keys.failed(key), error)

        def encode(frame_no: int, synced_no: int) -> Frame:
            nonlocal number
            number = frame_no
            return encode_batch(columns, topic.id, first_seq, frame_no=frame_no, synced_no=synced_no)

        logged = encode if durability.logged else None
        requires_sync = durability.reaches_device if source else durability.acks_synced
        kept = self._staging.stage(topic, logged, requires_sync=requires_sync, commit=commit, undo=undo)
        seq_reservation.pushed_out(topic, self._staging)


def _tell(waiters: list[Waiter], error: TopicsError | None) -> None:
    for waiter in waiters:
        waiter(error)


def _key(body: str | None, header: str | None) -> bytes:
    """The idempotency key of a write, b"" for none. The body's key takes precedence over the header's."""
    key = header if body is None else body
    if not key:
        return b""
    if len(key) > MAX_IDEMPOTENCY_KEY_CHARS:
        raise invalid(
            f"the idempotency key has {len(key)} characters, at most {MAX_IDEMPOTENCY_KEY_CHARS} are allowed",
            field="idempotency_key",
        )
    return key.encode()


def _check_delays(delays: list[int] | None, config: TopicConfig, name: str) -> None:
    if delays is not None and config.type != "queue":
        raise invalid(
            f'delay_ms holds back jobs of a queue, but topic "{name}" is a log: leave it out', field="delay_ms"
        )


def _lazy_config(name: str, write: AppendRequest) -> TopicConfig:
    """The configuration of the topic that this write creates. Raises `404` if the write must not create it."""
    config = apply(name, None, write.config or ConfigPatch())
    if write.create is False or (write.create is None and not config.auto_create):
        raise topic_not_found(name)
    return config


def _check_room(topic: Topic | None, config: TopicConfig, columns: Columns, name: str) -> None:
    """Checks the caps of a topic with `discard: "reject"`. Raises `422 topic_full`, or `400 record_too_large` for a
    write that never fits."""
    if config.discard != "reject" or not (config.cap_records or config.cap_bytes):
        return
    size = columns.size(0, columns.count) + RECORD_OVERHEAD * columns.count
    records = 0 if topic is None else topic.records + topic.pending_records
    held = 0 if topic is None else topic.bytes + topic.pending_bytes
    wanted = (
        ("records", config.cap_records, columns.count, records),
        ("bytes", config.cap_bytes, size, held),
    )
    for what, cap, new, _ in wanted:
        if cap and new > cap:
            raise TopicsError(
                ErrorCode.RECORD_TOO_LARGE,
                f'a write of {new} {what} can never fit into topic "{name}", whose cap_{what} is {cap}',
                {"topic": name, f"cap_{what}": cap, what: new},
            )
    for what, cap, new, old in wanted:
        if cap and old + new > cap:
            raise TopicsError(
                ErrorCode.TOPIC_FULL,
                f'topic "{name}" is full: it holds {old} of {cap} {what}. Delete records, or raise cap_{what}',
                {
                    "topic": name,
                    "cap_records": config.cap_records,
                    "cap_bytes": config.cap_bytes,
                    "head_seq": 0 if topic is None else topic.head_seq,
                    "earliest_seq": 1 if topic is None else topic.earliest_seq,
                },
            )


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

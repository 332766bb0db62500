"""Claims: which claimer gets which jobs, and when; and acks, nacks and extends.

A claim of a queue without `claim_jitter_ms` is served at once. With it, the first claim opens a window. When the window
closes, all claims that came in it are served in one pass. Each gets a share in proportion to its `max`, dealt in turn
in the order of arrival.

A claim with `wait_ms` waits that long for jobs. A stream (`work_take`) waits until there are jobs and it holds less
than its `max`. Newly claimable jobs open a window too, of zero length without jitter, so that all waiting claims get
fair shares. A claim that finds others waiting joins behind them.

A claim whose client disconnects while it waits is removed. If the client disconnects after its jobs were sent (`cancel`
follows the answer), the jobs become claimable again and the delivery does not count.

An ack is a deletion (see `shardd.queues.job_deletion`), as durable as the queue's class. All other changes are LEASE
frames if `leases_durable`, else in memory only (see `shardd.topic.job_table`). If the process dies before the frame is
written, the change did not happen and was not answered. If it dies later, the change holds, answered or not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from proto.api import answers
from proto.api.answers import ClaimedJob
from proto.api.requests import ClaimRequest
from proto.format.frame import Kind
from proto.ipc.message import Parked, Reply, Request
from proto.ipc.operations import Ack, Claim, Extend, Jobs, LettersSent, Nack, WorkClose, Worker, WorkOpen, WorkTake
from proto.model.errors import TopicsError, not_a_queue, topic_not_found
from proto.model.limits import MAX_BATCH_BYTES
from shardd.changes.transactions import Respond, Staging, performance, refuse, to_json
from shardd.delivery.scheduler import Scheduler
from shardd.queues.cohorts import Claimer, Cohort, shares
from shardd.queues.job_deletion import Saved, remove
from shardd.queues.job_requests import (
    ACK,
    EXTEND,
    NACK,
    Found,
    check_claim,
    claimed,
    clamped_delay,
    clamped_lease,
    fresh,
    lease_id,
    longest_wait,
    new_tokens,
    one,
    parse_claim,
    parse_jobs,
    size_of,
    token_of,
)
from shardd.storage.errors import SegmentError
from shardd.storage.group_commit import Timing
from shardd.topic.job_table import Job, Queue, State
from shardd.topic.outbox import Transfer
from shardd.topic.topic import Topic

REMEMBERED = 10_000
"""The most sent jobs of waiting claims that are remembered, to take them back if the client has disconnected."""


class Claims:
    def __init__(
        self, staging: Staging, scheduler: Scheduler, doomed: Callable[[Topic, dict[int, Transfer]], None]
    ) -> None:
        self._staging = staging
        self._scheduler = scheduler
        self._clock = staging.clock
        self._doomed = doomed
        self._cohorts: dict[int, Cohort] = {}
        self._by_key: dict[Hashable, Cohort] = {}
        self._sent: OrderedDict[Hashable, tuple[Topic, list[tuple[int, int]]]] = OrderedDict()
        """Topic, seqs and tokens sent to the latest claims that had to wait."""
        self._jobs_sent = 0

    # Waiting claims

    def claim(self, request: Request[Claim], caller: Hashable, respond: Respond) -> None:
        asked = parse_claim(request, self._staging.limits)
        topic = self._topic(request)
        self._take(topic, Claimer(asked, "", (caller, request.id), request.id, respond))

    def work_open(self, request: Request[WorkOpen], caller: Hashable, respond: Respond) -> None:
        """Checks that a stream may begin. Options: `node`, `max`, `lease_ms` (None: the topic's)."""
        self._stream_claim(request)
        self._topic(request)
        respond(Reply(request.id))

    def work_take(self, request: Request[WorkTake], caller: Hashable, respond: Respond) -> None:
        """Claims jobs for the stream in option `stream`. Waits until there are some and it may hold more, at most
        `cohorts.STREAM_WAIT_S`."""
        topic = self._topic(request)
        queue = self._current(topic)
        stream = request.options.stream
        queue.streams.setdefault(stream, 0)
        self._take(topic, Claimer(self._stream_claim(request), stream, (caller, request.id), request.id, respond))

    def _stream_claim(self, request: Request[Worker[Any]]) -> ClaimRequest:
        options = request.options
        asked = ClaimRequest(options.node, options.max, options.lease_ms)
        check_claim(asked, self._staging.limits)
        return asked

    def work_close(self, request: Request[WorkClose], caller: Hashable, respond: Respond) -> None:
        """Ends a stream: the jobs that it holds are claimable at once."""
        topic = self._topic(request)
        queue = self._current(topic)
        held: dict[int, Job] = {seq: queue.jobs[seq] for seq in queue.close_stream(request.options.stream)}
        before: Saved = {seq: job.saved() for seq, job in held.items()}
        now = self._clock.now_ms()
        for seq, job in held.items():
            queue.release(seq, job, now, now)

        def done(timing: Timing) -> None:
            self.changed(topic)
            respond(Reply(request.id))

        self._change(topic, before, done, lambda error: refuse(request.id, respond, error))

    def _take(self, topic: Topic, claimer: Claimer) -> None:
        queue = self._current(topic)
        jitter = topic.config.claim_jitter_ms / 1000
        may = claimer.wants(queue) and queue.ready(topic.records)
        if not jitter and topic.id not in self._cohorts and (may or not claimer.patient):
            self._serve(topic, [claimer])
            return
        now = self._clock.monotonic()
        if claimer.patient:
            claimer.deadline = now + claimer.patience_s
        cohort = self._cohorts.setdefault(topic.id, Cohort(topic))
        cohort.claimers[claimer.key] = claimer
        self._by_key[claimer.key] = cohort
        if cohort.due is None and (may or not claimer.patient):
            cohort.due = now + jitter
        claimer.respond(Parked(claimer.ident))
        self._scheduler.more()

    def cancel(self, caller: Hashable, ident: int) -> None:
        """Removes the claim of a caller that disconnected, or takes back the jobs that were just sent to it."""
        key = (caller, ident)
        cohort = self._by_key.get(key)
        if cohort is not None:
            self._leave(cohort, cohort.claimers[key])
        elif key in self._sent:
            self._take_back(*self._forget(key))

    def _remember(self, claimer: Claimer, topic: Topic, part: list[ClaimedJob]) -> None:
        self._sent[claimer.key] = topic, [(job.seq, token_of(job.lease_id)) for job in part]
        self._jobs_sent += len(part)
        while self._jobs_sent > REMEMBERED:
            self._forget(next(iter(self._sent)))

    def _forget(self, key: Hashable) -> tuple[Topic, list[tuple[int, int]]]:
        topic, leases = self._sent.pop(key)
        self._jobs_sent -= len(leases)
        return topic, leases

    def _take_back(self, topic: Topic, leases: list[tuple[int, int]]) -> None:
        """Releases jobs sent to a client that has disconnected. Jobs that it received and changed keep their state."""
        queue = topic.queue
        if queue is None or self._staging.directory.assigned.get(topic.name) is not topic:
            return
        now = self._clock.now_ms()
        before: Saved = {}
        for seq, token in leases:
            job = queue.jobs.get(seq)
            if job is not None and job.state is State.LEASED and job.token == token:
                before[seq] = job.saved()
                job.deliveries -= 1
                queue.release(seq, job, now, now)
        self._change(topic, before, lambda timing: self.changed(topic), lambda error: None)

    def _leave(self, cohort: Cohort, claimer: Claimer) -> None:
        del cohort.claimers[claimer.key], self._by_key[claimer.key]
        if not cohort.claimers:
            self._cohorts.pop(cohort.topic.id, None)

    def refuse(self, topic: Topic, error: TopicsError) -> None:
        """Answers all waiting claims of the topic with `error`."""
        cohort = self._cohorts.get(topic.id)
        if cohort is None:
            return
        for claimer in list(cohort.claimers.values()):
            self._leave(cohort, claimer)
            refuse(claimer.ident, claimer.respond, error)

    def changed(self, topic: Topic) -> None:
        """Opens the topic's window: jobs may be claimable, a stream may have room, or the topic may be gone."""
        cohort = self._cohorts.get(topic.id)
        if cohort is not None and cohort.due is None:
            cohort.due = self._clock.monotonic() + topic.config.claim_jitter_ms / 1000

    @property
    def next_due(self) -> float | None:
        """When `deliver` next has work, in monotonic seconds; None without waiting claims."""
        times = []
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        for cohort in self._cohorts.values():
            times.append(min(claimer.deadline for claimer in cohort.claimers.values()))
            if cohort.due is not None:
                times.append(cohort.due)
                continue
            queue = cohort.topic.queue
            if queue is not None and queue.next_wake is not None:
                times.append(now + max(queue.next_wake - now_ms, 0) / 1000)
        return min(times, default=None)

    def deliver(self) -> None:
        """Serves the cohorts whose window has closed, and answers the claims whose wait is over."""
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        for cohort in list(self._cohorts.values()):
            topic, queue = cohort.topic, cohort.topic.queue
            now_there = self._staging.directory.visible.get(topic.name)
            if now_there is not topic:
                a_log = now_there is not None and now_there.queue is None
                for claimer in list(cohort.claimers.values()):
                    self._leave(cohort, claimer)
                    gone = not_a_queue(topic.name) if a_log else topic_not_found(topic.name)
                    refuse(claimer.ident, claimer.respond, gone)
                continue
            if cohort.due is None and queue is not None and queue.next_wake is not None and queue.next_wake <= now_ms:
                queue.expire(now_ms)
                self.changed(topic)
            if cohort.due is not None and cohort.due <= now:
                cohort.due = None
                try:
                    self._serve(topic, list(cohort.claimers.values()), cohort)
                except SegmentError:
                    continue  # the topic is quarantined, and `refuse` answers its claims
            for claimer in [c for c in cohort.claimers.values() if c.deadline <= now]:
                self._leave(cohort, claimer)
                self._answer(topic, claimer, [], Timing())
        self._staging.commits.flush()

    def written(self) -> None:
        """Writes what was staged outside of a group of requests, then delivers."""
        self._staging.commits.flush()
        self.deliver()

    # Serving

    def _topic(self, request: Request) -> Topic:
        topic = self._staging.directory.find(request.topic)
        if topic.queue is None:
            raise not_a_queue(topic.name)
        return topic

    def look(self, request: Request) -> tuple[Topic, Queue]:
        """The queue that a request names, with expired leases and records settled. Raises `404`, `409`."""
        topic = self._topic(request)
        return topic, self._current(topic)

    def _current(self, topic: Topic) -> Queue:
        queue = topic.queue
        assert queue is not None
        now = self._clock.now_ms()
        topic.expire(now)
        queue.settle(topic.floor, topic.holes, topic.alive)
        queue.expire(now)
        return queue

    def _serve(self, topic: Topic, claimers: list[Claimer], cohort: Cohort | None = None) -> None:
        """Serves all these claimers in one pass. A patient claimer is answered only if it got jobs."""
        queue = self._current(topic)
        wants = [claimer.wants(queue) for claimer in claimers]
        before: Saved = {}
        found, doomed = self._pick(topic, queue, sum(wants), before)
        parts: list[list[ClaimedJob]] = [[] for _ in claimers]
        left = shares(wants, len(found))
        now = self._clock.now_ms()
        tokens = iter(new_tokens(len(found)))
        place = 0
        for each in found:
            while not left[place]:
                place = (place + 1) % len(claimers)
            left[place] -= 1
            claimer, token = claimers[place], next(tokens)
            deadline = now + (claimer.lease_ms or topic.config.lease_ms)
            job = queue.lease(each[0], claimer.node, token, deadline, claimer.stream)
            parts[place].append(claimed(each, token, deadline, job.deliveries))
            place = (place + 1) % len(claimers)
        served = [(c, part) for c, part in zip(claimers, parts, strict=True) if part or not c.patient]
        if cohort is not None:
            for claimer, part in served:
                self._leave(cohort, claimer)
                if part and not claimer.stream:
                    self._remember(claimer, topic, part)
        if doomed:  # before the answers, because these count the ready jobs
            self._doomed(topic, doomed)
        targets = sorted({transfer.target for transfer in doomed.values()}) if topic.config.auto_create else []

        def done(timing: Timing) -> None:
            for claimer, part in served:
                self._answer(topic, claimer, part, timing, targets)

        def failed(error: TopicsError) -> None:
            for claimer, _ in served:
                refuse(claimer.ident, claimer.respond, error)

        self._change(topic, before, done, failed)
        if found and len(found) < sum(wants) and queue.ready(topic.records):
            self.changed(topic)  # the pass ended at its byte budget: another one follows

    def _pick(self, topic: Topic, queue: Queue, count: int, before: Saved) -> tuple[list[Found], dict[int, Transfer]]:
        """Up to `count` jobs, reclaimed ones first, each group by seq; and the dead letters found: jobs that have had
        `max_deliveries`."""
        found: list[Found] = []
        doomed: dict[int, Transfer] = {}
        budget = MAX_BATCH_BYTES
        config = topic.config
        while len(found) < count and budget > 0 and (seq := queue.pop_ready()) is not None:
            job = queue.jobs[seq]
            record = None if seq in before else one(topic, seq)
            if record is None:
                continue
            if config.dead_letter is not None and 0 < config.max_deliveries <= job.deliveries:
                doomed[seq] = Transfer(config.dead_letter, job.deliveries)
                continue
            before[seq] = job.saved()
            found.append(record)
            budget -= size_of(record)
        new, queue.cursor = fresh(topic, queue.cursor, queue.jobs.__contains__, count - len(found), budget)
        before.update((each[0], None) for each in new)
        return found + new, doomed

    def _answer(
        self, topic: Topic, claimer: Claimer, part: list[ClaimedJob], timing: Timing, dead_letters: Sequence[str] = ()
    ) -> None:
        """Answers a claimer. `dead_letters` are the topics that dead letters are ordered to. The gateway creates the
        missing ones before it answers the client."""
        part.sort(key=_seq)
        if claimer.stream:
            claimer.respond(Reply(claimer.ident, to_json(part), extra=Jobs(tuple(map(_seq, part)))))
            return
        body = answers.Claimed(topic.name, part, len(part), self._current(topic).ready(topic.records))
        extra = LettersSent(tuple(dead_letters)) if dead_letters else None
        claimer.respond(Reply(claimer.ident, to_json(body), performance=performance(timing), extra=extra))

    # Ack, nack, extend

    def ack(self, request: Request[Ack], caller: Hashable, respond: Respond) -> None:
        asked, tokens = parse_jobs(ACK, request, self._staging.limits)
        topic = self._topic(request)
        queue = self._current(topic)
        before: Saved = {}
        skipped = []
        for seq, token in zip(asked.seqs, tokens, strict=True):
            job = queue.ackable(seq, asked.node, token)
            if job is None:
                skipped.append(seq)
            else:
                before[seq] = job.saved()
                queue.begin_deletion(seq, job)

        def done(timing: Timing) -> None:
            body = answers.Acked(topic.name, len(before), skipped, *self._counts(topic))
            respond(Reply(request.id, to_json(body), performance=performance(timing)))

        if not before:
            done(Timing())
            return
        remove(self._staging, topic, sorted(before), before, done, lambda error: refuse(request.id, respond, error))

    def nack(self, request: Request[Nack], caller: Hashable, respond: Respond) -> None:
        asked, tokens = parse_jobs(NACK, request, self._staging.limits)
        delay = clamped_delay(asked)
        topic = self._topic(request)
        queue, now = self._current(topic), self._clock.now_ms()
        before: Saved = {}
        skipped = []
        for seq, token in zip(asked.seqs, tokens, strict=True):
            job = queue.holder(seq, asked.node, token)
            if job is None:
                skipped.append(seq)
            else:
                before[seq] = job.saved()
                queue.release(seq, job, now + delay, now)

        def done(timing: Timing) -> None:
            self.changed(topic)
            body = answers.Nacked(topic.name, len(before), skipped, *self._counts(topic))
            respond(Reply(request.id, to_json(body), performance=performance(timing)))

        self._change(topic, before, done, lambda error: refuse(request.id, respond, error))

    def extend(self, request: Request[Extend], caller: Hashable, respond: Respond) -> None:
        asked, tokens = parse_jobs(EXTEND, request, self._staging.limits)
        topic = self._topic(request)
        queue = self._current(topic)
        deadline = self._clock.now_ms() + clamped_lease(asked.lease_ms)
        before: Saved = {}
        skipped = []
        ids: dict[str, str] = {}
        for seq, token in zip(asked.seqs, tokens, strict=True):
            job = None if seq in before else queue.holder(seq, asked.node, token)
            if job is None:
                skipped.append(seq)
            else:
                before[seq] = job.saved()
                queue.extend(seq, job, deadline)
                ids[str(seq)] = lease_id(job.token)

        def done(timing: Timing) -> None:
            deadlines = dict.fromkeys(ids, deadline)
            body = answers.Extended(topic.name, len(before), skipped, deadlines, ids)
            respond(Reply(request.id, to_json(body), performance=performance(timing)))

        self._change(topic, before, done, lambda error: refuse(request.id, respond, error))

    def _counts(self, topic: Topic) -> tuple[int, int]:
        """Ready jobs, and leased ones."""
        queue = self._current(topic)
        return queue.ready(topic.records), queue.in_flight

    def counters(self, topic: Topic) -> answers.QueueState:
        """The `queue` object of a topic's state."""
        return answers.QueueState(*self._counts(topic), self._current(topic).dead_lettered)

    def row(self, topic: Topic) -> list[Any]:
        """A queue's row in the statistics."""
        queue = self._current(topic)
        transfers = 0 if not topic.outbox else len(topic.outbox.transfers)
        try:
            age = longest_wait(topic, queue, self._clock.now_ms())
        except SegmentError:
            age = 0  # the statistics do not fail for one damaged file; requests for its jobs report it
        return [topic.name, *self._counts(topic), queue.dead_lettered, transfers, age]

    def _change(
        self, topic: Topic, before: Saved, done: Callable[[Timing], None], failed: Callable[[TopicsError], None]
    ) -> None:
        """Logs changed leases if they are durable, else calls `done` at once. `before` is the jobs' previous state, for
        undo."""
        queue = topic.queue
        assert queue is not None
        config = topic.assigned_config
        durability = config.durability
        if not before:
            done(Timing())
            return
        if not durability.logged:
            done(Timing())
            return
        if not config.leases_durable and queue.unlogged:
            done(Timing())
            return

        def commit(timing: Timing) -> None:
            queue.unlogged = not config.leases_durable
            done(timing if durability.acks_synced else Timing(timing.write_ms))

        def undo(error: TopicsError) -> None:
            for seq, saved in before.items():
                queue.undo(seq, saved)
            failed(error)

        if config.leases_durable:
            fields: dict[str, Any] = {"rows": list(map(queue.row, before))}
            requires_sync = durability.acks_synced
        else:
            # The leases that the last stop left in the catalog are now out of date. Once this frame is on the device,
            # no crash can bring them back.
            fields = {"forget": True}
            requires_sync = durability.reaches_device
        frame = self._staging.control_frame(Kind.LEASE, topic.id, fields)
        self._staging.stage(topic, frame, requires_sync=requires_sync, commit=commit, undo=undo)


def _seq(job: ClaimedJob) -> int:
    return job.seq


def held(topics: Iterable[Topic]) -> int:
    """Number of leases in flight in all these topics."""
    return sum(topic.queue.in_flight for topic in topics if topic.queue is not None)

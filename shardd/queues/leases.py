"""Leases: the jobs of a queue as they are now, and their acks, nacks and extends.

An ack is a deletion (see `shardd.queues.job_deletion`), as durable as the queue's class. All other changes are LEASE
frames if `leases_durable`, else in memory only (see `shardd.topic.job_table`). If the process dies before the frame is
written, the change did not happen and was not answered. If it dies later, the change holds, answered or not.

Claims make leases: `shardd.queues.claims`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from msgspec import UNSET, UnsetType, field

from proto.api import answers
from proto.ipc.message import Reply, Request
from proto.ipc.operations import Ack, Extend, Nack
from proto.model.errors import TopicsError, not_a_queue
from shardd.changes.transactions import Respond, Staging, TopicChange, performance, refuse, to_json
from shardd.frames import Leases as LeasesFrame
from shardd.queues.job_deletion import JobsDeleted, Saved, remove
from shardd.queues.job_requests import (
    ACK,
    EXTEND,
    NACK,
    Named,
    clamped_delay,
    clamped_lease,
    lease_id,
    longest_wait,
    parse_jobs,
    told_reason,
)
from shardd.storage.change import Timing
from shardd.storage.errors import SegmentError
from shardd.storage.indivisible import Undone, indivisible
from shardd.topic.job_table import Job, Queue
from shardd.topic.topic import Topic


class Leases:
    def __init__(self, staging: Staging) -> None:
        self.staging = staging

    def topic(self, request: Request) -> Topic:
        """The topic of a queue. Raises `404`, `409`."""
        topic = self.staging.directory.find(request.topic)
        if topic.queue is None:
            raise not_a_queue(topic.name)
        return topic

    def current(self, topic: Topic) -> Queue:
        """The topic's queue, with expired leases and records settled."""
        queue = topic.queue
        assert queue is not None
        settle(self.staging, topic)
        return queue

    def look(self, request: Request) -> tuple[Topic, Queue]:
        """The queue that a request names, with expired leases and records settled. Raises `404`, `409`."""
        topic = self.topic(request)
        return topic, self.current(topic)

    def ack(self, request: Request[Ack], caller: Hashable, respond: Respond) -> None:
        _, jobs = parse_jobs(ACK, request, self.staging.limits)
        topic, queue = self.look(request)

        def done(timing: Timing) -> None:
            body = answers.Acked(topic.name, len(before), skipped, *self.counts(topic))
            respond(Reply(request.id, to_json(body), performance=performance(timing)))

        # Also if the bucket is late: were the ack refused, its job would be delivered again and again meanwhile.
        with indivisible:
            before, skipped = changed(jobs, queue.ackable, queue.ack)
            if before:
                failed = partial(refuse, request.id, respond)
                remove(JobsDeleted(topic, self.staging, sorted(before), before, done, failed))
                return
        done(Timing())

    def nack(self, request: Request[Nack], caller: Hashable, respond: Respond) -> None:
        asked, jobs = parse_jobs(NACK, request, self.staging.limits)
        delay, reason = clamped_delay(asked), told_reason(asked)
        topic, queue = self.look(request)

        def done(timing: Timing) -> None:
            self.staging.events.jobs_changed(topic)
            body = answers.Nacked(topic.name, len(before), skipped, *self.counts(topic))
            respond(Reply(request.id, to_json(body), performance=performance(timing)))

        with indivisible:
            now = self.staging.clock.now_ms()
            before, skipped = changed(jobs, queue.holder, lambda seq, job: queue.release(seq, job, now + delay, now))
            failed = partial(refuse, request.id, respond)
            change = Released(topic, self.staging, before, done, failed)
            change.explain(queue, reason)
            change_leases(change)

    def extend(self, request: Request[Extend], caller: Hashable, respond: Respond) -> None:
        asked, jobs = parse_jobs(EXTEND, request, self.staging.limits)
        topic, queue = self.look(request)
        deadline = self.staging.clock.now_ms() + clamped_lease(asked.lease_ms)

        def done(timing: Timing) -> None:
            deadlines = dict.fromkeys(ids, deadline)
            body = answers.Extended(topic.name, len(before), skipped, deadlines, ids)
            respond(Reply(request.id, to_json(body), performance=performance(timing)))

        with indivisible:
            before, skipped = changed(jobs, queue.holder, lambda seq, job: queue.extend(seq, job, deadline))
            ids = {str(seq): lease_id(queue.jobs[seq].token) for seq in before}
            failed = partial(refuse, request.id, respond)
            change_leases(LeasesChanged(topic, self.staging, before, done, failed))

    def counts(self, topic: Topic) -> tuple[int, int]:
        """Ready jobs, and leased ones."""
        queue = self.current(topic)
        return queue.ready(topic.records.count), queue.in_flight

    def counters(self, topic: Topic) -> answers.QueueState:
        """The `queue` object of a topic's state."""
        counts = self.counts(topic)
        queue = self.current(topic)
        waits_for = topic.outbox.reason if queue.dead_lettering else None
        return answers.QueueState(
            *counts, queue.delayed, queue.dead_lettering, queue.dead_lettered, UNSET if waits_for is None else waits_for
        )

    def row(self, topic: Topic) -> list[Any]:
        """A queue's row in the statistics."""
        queue = self.current(topic)
        try:
            age = longest_wait(topic, queue, self.staging.clock.now_ms())
        except SegmentError:
            age = 0  # the statistics do not fail for one damaged file; requests for its jobs report it
        others = [queue.dead_lettered, queue.dead_lettering, age, queue.delayed, topic.config.dead_letter or ""]
        return [topic.name, *self.counts(topic), *others]


def settle(staging: Staging, topic: Topic) -> None:
    """Settles a topic's expired leases and records. Opens the window of the claims that wait if that made jobs ready,
    or room in a stream: no timer is left that would wake them."""
    now, queue = staging.clock.now_ms(), topic.queue
    topic.expire(now)
    if queue is None:
        return
    room = queue.settle(topic.records.floor, topic.records.holes, topic.records.alive)
    if queue.expire(now) or room:
        staging.events.jobs_changed(topic)


def changed(
    jobs: Named, find: Callable[[int, str, int | None], Job | None], change: Callable[[int, Job], None]
) -> tuple[Saved, list[int]]:
    """Changes the jobs that the worker holds, which `find` returns. Returns their earlier states, and the other seqs,
    among them those that are named again."""
    before: Saved = {}
    skipped = []
    for seq, token in zip(jobs.seqs, jobs.tokens, strict=True):
        job = None if seq in before else find(seq, jobs.node, token)
        if job is None:
            skipped.append(seq)
        else:
            before[seq] = job.saved()
            change(seq, job)
    return before, skipped


class LeasesChanged(TopicChange, eq=False):
    """Jobs of a queue have another holder or none. `before` is their previous state."""

    staging: Staging
    before: Saved
    done: Callable[[Timing], None]
    """Answers the request. Called when the change is committed, or at once if it is not logged."""
    failed: Callable[[TopicsError], None]
    """Refuses the request: the change was undone."""
    follows: bool = False
    """Whether it is staged in any case, so that it shares the outcome of what its request staged before it."""
    after: Saved | None = None
    """The state that it gave the jobs, if it is staged without a frame: later changes may be done before it then."""
    reasons: list[list[Any]] | UnsetType = UNSET
    """`[seq, reason]` of jobs, for the log."""
    acks_synced: bool = False
    """Whether the answer reports the time of a sync: `disk` promises none."""

    def apply(self, timing: Timing) -> None:
        queue = self.topic.queue
        assert queue is not None
        if isinstance(self.body, LeasesFrame):
            queue.unlogged = bool(self.body.forget)
        self.done(timing if self.acks_synced else Timing(timing.write_ms))

    def restore(self) -> None:
        """Gives the jobs their previous state, except those that others have changed since."""
        queue = self.topic.queue
        assert queue is not None
        for seq, saved in self.before.items():
            job = queue.jobs.get(seq)
            if self.after is None or (job is not None and job.saved() == self.after[seq]):
                queue.undo(seq, saved)

    def undo(self, error: TopicsError) -> None:
        self.restore()
        self.failed(error)
        self.staging.events.jobs_changed(self.topic)  # a request is refused: others that wait may get its jobs


def forgets(topic: Topic) -> bool:
    """Whether the next change of leases logs that the leases of the last stop are out of date."""
    config, queue = topic.assigned_config, topic.queue
    assert queue is not None
    return config.durability.logged and not config.leases_durable and not queue.unlogged


def leases_wait(topic: Topic) -> bool:
    """Whether the next change of leases waits for a sync."""
    config = topic.assigned_config
    if forgets(topic):
        return config.durability.reaches_device
    return config.leases_durable and config.durability.acks_synced


def change_leases(change: LeasesChanged) -> None:
    """Stages a change of leases that the job table has already, if it is logged or `follows` another one. Otherwise it
    is done at once, or taken back: then raises `Undone`."""
    queue = change.topic.queue
    assert queue is not None
    config = change.topic.assigned_config
    durability = config.durability
    forget = forgets(change.topic)
    logged = bool(change.before) and durability.logged and (config.leases_durable or forget)
    if not logged and not change.follows:
        try:
            change.done(Timing())
        except Exception as fault:
            change.restore()
            raise Undone("the answer failed") from fault
        return
    change.acks_synced = durability.acks_synced
    if not logged:
        change.after = {seq: queue.jobs[seq].saved() for seq in change.before}
    elif forget:
        # The leases that the last stop left in the catalog are now out of date. Once this frame is on the device,
        # no crash can bring them back.
        change.body = LeasesFrame(forget=True)
        change.requires_sync = durability.reaches_device
    else:
        change.body = LeasesFrame(rows=list(map(queue.row, change.before)), reasons=change.reasons)
        change.requires_sync = durability.acks_synced
    change.staging.stage(change)


class Released(LeasesChanged, kw_only=True, eq=False):
    """Jobs have no holder any more, and maybe another reason."""

    explained: dict[int, str | None] = field(default_factory=dict)
    """The earlier reasons of jobs that have another one now."""

    def explain(self, queue: Queue, reason: str | None) -> None:
        """Gives the jobs a reason; None leaves theirs."""
        if reason is None:
            return
        self.explained = {seq: queue.reasons.get(seq) for seq in self.before}
        for seq in self.before:
            queue.explain(seq, reason)
        self.reasons = queue.told(self.before)

    def restore(self) -> None:
        super().restore()
        queue = self.topic.queue
        assert queue is not None
        for seq, reason in self.explained.items():
            if seq in queue.jobs:
                queue.explain(seq, reason)

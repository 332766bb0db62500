"""Record deletions: below a seq, by tag, or both. A deletion waits for a sync only in class `fsync`."""

from __future__ import annotations

from functools import partial

from proto.api import answers
from proto.ipc.message import Reply, Request
from proto.ipc.operations import DeleteRecords
from proto.model.errors import TopicsError
from shardd.changes.transactions import Respond, Staging, TopicChange, performance, refuse, to_json
from shardd.delivery.scheduler import Scheduler
from shardd.frames import RecordsDeleted
from shardd.operations.delete_request import parse_delete
from shardd.operations.tag_indexing import Indexing
from shardd.storage.change import Timing
from shardd.storage.indivisible import indivisible
from shardd.topic.tag_index import Match
from shardd.topic.topic import Topic


class Deletes:
    def __init__(self, staging: Staging, scheduler: Scheduler) -> None:
        self._staging = staging
        self._scheduler = scheduler
        self._directory = staging.directory
        self._indexing = Indexing(staging.directory, scheduler)

    def delete(self, request: Request[DeleteRecords], respond: Respond) -> None:
        before_seq, match = parse_delete(request)
        topic = self._directory.changing(request.topic)
        what = before_seq, match, topic.records.head_seq + 1
        if match is None:
            self._delete(topic, what, request, respond)
            return
        in_time = True

        def delete() -> None:
            if in_time:
                self._delete(topic, what, request, respond)
                return
            self._staging.containment.attempt(request, respond, late)
            self._staging.commits.flush()  # the request's group has been flushed before
            self._scheduler.more()  # and its claims have been served

        def late() -> None:
            self._staging.check_deadline(request)
            self._delete(topic, what, request, respond)

        in_time = self._indexing.after(topic, match, delete, partial(refuse, request.id, respond))

    def _delete(
        self, topic: Topic, what: tuple[int | None, Match | None, int], request: Request, respond: Respond
    ) -> None:
        before_seq, match, bound = what
        now = self._staging.clock.now_ms()
        topic.expire(now)
        if match is not None:
            topic.records.look(before_seq, match, bound)  # what cannot be read is found before anything is logged
        durability = topic.assigned_config.durability
        if durability.acks_synced:
            self._staging.check_bucket()
        frame = RecordsDeleted(before_seq, match, bound, now + topic.position.ahead_ms)
        change = _Deleted(topic, self._staging, frame, now, request, respond, requires_sync=durability.acks_synced)
        if durability.logged or topic.records.floor <= topic.position.logged_seq:
            change.body = frame
        with indivisible:
            topic.held_at.append(now)
            self._staging.stage(change)


class _Deleted(TopicChange, eq=False):
    staging: Staging
    what: RecordsDeleted
    now: int
    request: Request[DeleteRecords]
    respond: Respond

    def apply(self, timing: Timing) -> None:
        topic, what = self.topic, self.what
        topic.held_at.popleft()
        topic.expire(self.now)
        body = answers.RecordsDeleted(
            topic.name,
            topic.records.delete(what.before, what.match, what.bound),
            topic.records.floor,
            topic.records.head_seq,
            topic.records.count,
            topic.records.bytes,
        )
        if topic.queue is not None:
            self.staging.events.jobs_changed(topic)  # streams that held some of them have room
        self.respond(Reply(self.request.id, to_json(body), performance=performance(timing)))

    def undo(self, error: TopicsError) -> None:
        self.topic.held_at.pop()
        refuse(self.request.id, self.respond, error)

"""Record deletions: below a seq, by tag, or both. A deletion waits for a sync only in class `fsync`."""

from __future__ import annotations

from functools import partial

from proto.api.answers import RecordsDeleted
from proto.format.frame import Kind
from proto.ipc.message import Reply, Request
from proto.ipc.operations import DeleteRecords
from proto.model.errors import TopicsError
from shardd.changes.transactions import Respond, Staging, performance, refuse, to_json
from shardd.delivery.scheduler import Scheduler
from shardd.operations.delete_request import parse_delete
from shardd.operations.tag_indexing import Indexing
from shardd.storage.group_commit import Timing
from shardd.topic.tag_index import Match
from shardd.topic.topic import Topic


class Deletes:
    def __init__(self, staging: Staging, scheduler: Scheduler) -> None:
        self._staging = staging
        self._directory = staging.directory
        self._indexing = Indexing(staging.directory, scheduler)

    def delete(self, request: Request[DeleteRecords], respond: Respond) -> None:
        before_seq, match = parse_delete(request)
        topic = self._directory.changing(request.topic)
        what = before_seq, match, topic.head_seq + 1
        if match is None:
            self._delete(topic, what, request, respond)
            return
        in_time = True

        def delete() -> None:
            if not in_time:
                try:
                    self._staging.check_deadline(request)
                except TopicsError as error:
                    refuse(request.id, respond, error)
                    return
            self._delete(topic, what, request, respond)
            if not in_time:
                self._staging.commits.flush()  # the request's group has been flushed before

        in_time = self._indexing.after(topic, match, delete, partial(refuse, request.id, respond))

    def _delete(
        self, topic: Topic, what: tuple[int | None, Match | None, int], request: Request, respond: Respond
    ) -> None:
        before_seq, match, bound = what
        now = self._staging.clock.now_ms()
        topic.expire(now)
        topic.held_at.append(now)

        def commit(timing: Timing) -> None:
            topic.held_at.popleft()
            topic.expire(now)
            body = RecordsDeleted(
                topic.name,
                topic.delete(before_seq, match, bound),
                topic.earliest_seq,
                topic.head_seq,
                topic.records,
                topic.bytes,
            )
            respond(Reply(request.id, to_json(body), performance=performance(timing)))

        def undo(error: TopicsError) -> None:
            topic.held_at.pop()
            refuse(request.id, respond, error)

        durability = topic.assigned_config.durability
        frame = None
        if durability.logged or topic.floor <= topic.logged_seq:
            fields = {"before": before_seq, "match": match, "bound": bound, "now": now + topic.ahead_ms}
            frame = self._staging.control_frame(Kind.RECORD_DELETE, topic.id, fields)
        self._staging.stage(topic, frame, requires_sync=durability.acks_synced, commit=commit, undo=undo)

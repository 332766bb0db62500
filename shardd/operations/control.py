"""Changes other than appends: topics created, configured and deleted, records deleted, cursors moved.

Creating, configuring and deleting a topic always wait for a sync; deleting records and moving cursors wait if the
topic's class says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from proto.format.frame import Kind
from proto.ipc.message import Reply, Request
from proto.model.errors import ErrorCode, TopicsError
from proto.model.names import check_topic
from shardd.changes import seq_reservation
from shardd.changes.admission import check_patch, check_topics
from shardd.changes.transactions import Respond, Staging, performance, refuse, to_json
from shardd.delivery.scheduler import Scheduler
from shardd.operations.delete_request import parse_delete
from shardd.operations.tag_indexing import Indexing
from shardd.storage.group_commit import Timing
from shardd.topic.config import PATCH, ConfigPatch, TopicConfig, apply, as_map
from shardd.topic.cursors import MOVE, check_count, check_name, check_position, cursor_not_found, entry, moved
from shardd.topic.tag_index import Match
from shardd.topic.topic import Topic

Created = Callable[[Topic, Timing], None]


class Control:
    def __init__(self, staging: Staging, scheduler: Scheduler) -> None:
        self._staging = staging
        self._directory = staging.directory
        self._indexing = Indexing(staging.directory, scheduler)

    def configure(self, request: Request, respond: Respond) -> None:
        patch, _ = PATCH.read(request.body)
        check_patch(patch, request.options)
        topic = self._directory.assigned.get(request.topic)
        self._staging.space.check(topic)
        if topic is not None and request.options.get("if_absent"):
            patch = ConfigPatch()  # only for a topic that has to be made
        if topic is None:

            def created(topic: Topic, timing: Timing) -> None:
                respond(_configured(True, topic.name, topic.config, request.id, timing))

            def failed(error: TopicsError) -> None:
                refuse(request.id, respond, error)

            config = apply(request.topic, None, patch)
            check_topics(self._staging.topics_held, request.options, self._staging.limits)
            self.create(request.topic, config, created, failed)
            return
        config = apply(topic.name, topic.assigned_config, patch)
        if config == topic.assigned_config and topic.sync_required_no <= self._staging.commits.synced_no:
            respond(_configured(False, topic.name, config, request.id, Timing()))
        else:
            self._reconfigure(topic, config, request, respond)

    def _reconfigure(self, topic: Topic, config: TopicConfig, request: Request, respond: Respond) -> None:
        before, logged_before = topic.assigned_config, topic.logged_seq
        ceiling, reserved_in = topic.ceiling, topic.reserved_in
        topic.assigned_config = config
        if before.durability.reserves_per_boot and not config.durability.reserves_per_boot:
            topic.reserve_nothing()
        if before.durability.logged and not config.durability.logged:
            topic.logged_seq = topic.next_seq - 1
        now = self._staging.clock.now_ms()
        topic.held_at.append(now)

        def commit(timing: Timing) -> None:
            topic.held_at.popleft()
            # What the old settings had taken stays gone, whatever the new ones say.
            topic.expire(now)
            topic.config = config
            if before.durability.lasts and not config.durability.lasts:
                topic.part()
            topic.expire(now)
            topic.evict()
            # The change waited for a sync, and everything visible was written before it.
            topic.durable_head = topic.head_seq
            respond(_configured(False, topic.name, config, request.id, timing))

        def undo(error: TopicsError) -> None:
            topic.assigned_config, topic.logged_seq = before, logged_before
            topic.ceiling, topic.reserved_in = ceiling, reserved_in
            topic.held_at.pop()
            refuse(request.id, respond, error)

        # `now` and `next_seq` make a replay come to the same floors: what expired before, and what was never logged.
        fields = {
            "config": as_map(config),
            "now": now + topic.ahead_ms,
            "next_seq": topic.next_seq,
            "floor": seq_reservation.floor_after(topic, config),
            "lost": topic.evict_floor - 1,
        }
        frame = self._staging.control_frame(Kind.TOPIC_CONFIG, topic.id, fields)
        self._staging.stage(topic, frame, requires_sync=True, commit=commit, undo=undo)

    def create(self, name: str, config: TopicConfig, created: Created, failed: Callable[[TopicsError], None]) -> Topic:
        """Stage a new topic. It may be written to at once: what is staged on it commits or fails after it."""
        check_topic(name)
        ident = self._directory.new_id()
        topic = Topic(name, ident, ident, config)
        self._directory.assigned[name] = topic

        def commit(timing: Timing) -> None:
            self._directory.show(topic)
            created(topic, timing)

        def undo(error: TopicsError) -> None:
            del self._directory.assigned[name]
            failed(error)

        fields = {
            "name": name,
            "epoch": topic.epoch,
            "config": as_map(config),
            **seq_reservation.first(topic, self._staging),
        }
        frame = self._staging.control_frame(Kind.TOPIC_CREATE, ident, fields)
        self._staging.stage(topic, frame, requires_sync=True, commit=commit, undo=undo)
        return topic

    def delete_topic(self, request: Request, respond: Respond) -> None:
        topic = self._directory.assigned.get(request.topic)
        if topic is None:
            respond(Reply(request.id, to_json({"topic": request.topic, "deleted": False, "routers_removed": []})))
            return
        topic.expire(self._staging.clock.now_ms())
        count = topic.records + topic.pending_records
        if request.options.get("if_empty") and count:
            raise TopicsError(
                ErrorCode.TOPIC_NOT_EMPTY,
                f'topic "{topic.name}" holds {count} records',
                {"topic": topic.name, "count": count},
            )
        del self._directory.assigned[topic.name]

        def commit(timing: Timing) -> None:
            self._directory.hide(topic)
            self._staging.events.deleted(topic)
            into = [] if topic.lane_visible is None else sorted(topic.lane_visible.routers)
            body = {"topic": topic.name, "deleted": True, "routers_removed": into}
            respond(Reply(request.id, to_json(body), performance=performance(timing)))

        def undo(error: TopicsError) -> None:
            self._directory.assigned[topic.name] = topic
            refuse(request.id, respond, error)

        frame = self._staging.control_frame(Kind.TOPIC_DELETE, topic.id, {"name": topic.name})
        self._staging.stage(topic, frame, requires_sync=True, commit=commit, undo=undo)

    def delete_records(self, request: Request, respond: Respond) -> None:
        before_seq, match = parse_delete(request)
        topic = self._directory.changing(request.topic)
        what = before_seq, match, topic.head_seq + 1
        if match is None:
            self._delete_records(topic, what, request, respond)
            return
        in_time = True

        def delete() -> None:
            if not in_time:
                try:
                    self._staging.check_deadline(request)
                except TopicsError as error:
                    refuse(request.id, respond, error)
                    return
            self._delete_records(topic, what, request, respond)
            if not in_time:
                self._staging.commits.flush()  # the group of requests that it came with is over

        in_time = self._indexing.after(topic, match, delete, partial(refuse, request.id, respond))

    def _delete_records(
        self, topic: Topic, what: tuple[int | None, Match | None, int], request: Request, respond: Respond
    ) -> None:
        before_seq, match, bound = what
        now = self._staging.clock.now_ms()
        topic.expire(now)
        topic.held_at.append(now)

        def commit(timing: Timing) -> None:
            topic.held_at.popleft()
            topic.expire(now)
            body = {
                "topic": topic.name,
                "deleted": topic.delete(before_seq, match, bound),
                "earliest_seq": topic.earliest_seq,
                "head_seq": topic.head_seq,
                "count": topic.records,
                "bytes": topic.bytes,
            }
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

    def cursor_put(self, request: Request, respond: Respond) -> None:
        name = check_name(request.options["cursor"])
        asked, request.ignored = MOVE.read(request.body)
        topic = self._directory.changing(request.topic)
        now = self._staging.clock.now_ms()
        check_position(asked, topic.head_seq)
        check_count(topic.cursors, topic.moving, name, self._staging.limits.max_cursors_per_topic)
        before = topic.moving.position(name, topic.cursors.get(name))
        topic.moving.begin(name, asked.seq if asked.force else max(asked.seq, before))

        def commit(timing: Timing) -> None:
            # Decided here, in commit order, because another move may have been on its way.
            topic.moving.ended(name)
            cursor = topic.cursors[name] = moved(topic.cursors.get(name), asked.seq, bool(asked.force), now)
            body = {"topic": topic.name, **entry(name, cursor, topic.head_seq)}
            respond(Reply(request.id, to_json(body), performance=performance(timing)))

        def undo(error: TopicsError) -> None:
            topic.moving.undone(name, before)
            refuse(request.id, respond, error)

        fields = {"name": name, "seq": asked.seq, "ts": now, "force": bool(asked.force)}
        frame = self._staging.control_frame(Kind.CURSOR, topic.id, fields)
        requires_sync = topic.assigned_config.durability.acks_synced
        self._staging.stage(topic, frame, requires_sync=requires_sync, commit=commit, undo=undo)

    def cursor_delete(self, request: Request, respond: Respond) -> None:
        name = check_name(request.options["cursor"])
        topic = self._directory.changing(request.topic)
        before = topic.moving.position(name, topic.cursors.get(name))
        topic.moving.begin(name, 0)

        def commit(timing: Timing) -> None:
            topic.moving.ended(name)
            deleted = topic.cursors.pop(name, None) is not None
            body = {"topic": topic.name, "cursor": name, "deleted": deleted}
            respond(Reply(request.id, to_json(body), performance=performance(timing)))

        def undo(error: TopicsError) -> None:
            topic.moving.undone(name, before)
            refuse(request.id, respond, error)

        frame = self._staging.control_frame(Kind.CURSOR, topic.id, {"name": name, "seq": None})
        requires_sync = topic.assigned_config.durability.acks_synced
        self._staging.stage(topic, frame, requires_sync=requires_sync, commit=commit, undo=undo)

    def cursor_get(self, request: Request, respond: Respond) -> None:
        topic = self._directory.find(request.topic)
        name = check_name(request.options["cursor"])
        cursor = topic.cursors.get(name)
        if cursor is None:
            raise cursor_not_found(topic.name, name)
        respond(Reply(request.id, to_json({"topic": topic.name, **entry(name, cursor, topic.head_seq)})))


def _configured(created: bool, name: str, config: TopicConfig, ident: int, timing: Timing) -> Reply:
    body = to_json({"topic": name, "created": created, "config": config})
    return Reply(ident, body, created=created, performance=performance(timing))

"""Topic operations: create, configure and delete. All three wait for a sync, in any class."""

from __future__ import annotations

from collections.abc import Callable

from proto.api.answers import Configured, TopicDeleted
from proto.format.frame import Kind
from proto.ipc.message import Reply, Request
from proto.ipc.operations import Configure, DeleteTopic
from proto.model.errors import ErrorCode, TopicsError
from proto.model.names import check_topic
from proto.model.topic_config import PATCH, ConfigPatch, TopicConfig, apply, as_map
from shardd.changes import seq_reservation
from shardd.changes.admission import check_patch, check_topics
from shardd.changes.transactions import Respond, Staging, performance, refuse, to_json
from shardd.storage.group_commit import Timing
from shardd.topic.topic import Topic

Created = Callable[[Topic, Timing], None]


class Topics:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._directory = staging.directory

    def configure(self, request: Request[Configure], respond: Respond) -> None:
        patch, _ = PATCH.read(request.body)
        check_patch(patch, request.options)
        topic = self._directory.assigned.get(request.topic)
        self._staging.space.check(topic)
        if topic is not None and request.options.if_absent:
            patch = ConfigPatch()  # `if_absent`: the config applies only to a topic that this request creates
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

    def _reconfigure(self, topic: Topic, config: TopicConfig, request: Request[Configure], respond: Respond) -> None:
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
            # Records that expired under the old settings stay gone, whatever the new settings say.
            topic.expire(now)
            topic.config = config
            if before.durability.lasts and not config.durability.lasts:
                topic.part()
            topic.expire(now)
            topic.evict()
            # This change waited for a sync, and everything visible was written before it.
            topic.durable_head = topic.head_seq
            respond(_configured(False, topic.name, config, request.id, timing))

        def undo(error: TopicsError) -> None:
            topic.assigned_config, topic.logged_seq = before, logged_before
            topic.ceiling, topic.reserved_in = ceiling, reserved_in
            topic.held_at.pop()
            refuse(request.id, respond, error)

        # A replay computes the same floors from `now` (what had expired) and `next_seq` (what was never logged).
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
        """Stages a new topic and returns it. It may be written to at once: changes staged on it commit or fail after
        it."""
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

    def delete(self, request: Request[DeleteTopic], respond: Respond) -> None:
        topic = self._directory.assigned.get(request.topic)
        if topic is None:
            respond(Reply(request.id, to_json(TopicDeleted(request.topic, False, []))))
            return
        topic.expire(self._staging.clock.now_ms())
        count = topic.records + topic.pending_records
        if request.options.if_empty and count:
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
            body = TopicDeleted(topic.name, True, into)
            respond(Reply(request.id, to_json(body), performance=performance(timing)))

        def undo(error: TopicsError) -> None:
            self._directory.assigned[topic.name] = topic
            refuse(request.id, respond, error)

        frame = self._staging.control_frame(Kind.TOPIC_DELETE, topic.id, {"name": topic.name})
        self._staging.stage(topic, frame, requires_sync=True, commit=commit, undo=undo)


def _configured(created: bool, name: str, config: TopicConfig, ident: int, timing: Timing) -> Reply:
    body = to_json(Configured(name, created, config))
    return Reply(ident, body, created=created, performance=performance(timing))

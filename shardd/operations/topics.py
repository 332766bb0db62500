"""Topic operations: create, configure and delete. All three wait for a sync, in any class."""

from __future__ import annotations

from functools import partial

from proto.api import answers
from proto.ipc.message import Reply, Request
from proto.ipc.operations import Configure, DeleteTopic
from proto.model.errors import ErrorCode, TopicsError
from proto.model.names import check_topic
from proto.model.topic_config import PATCH, ConfigPatch, TopicConfig, apply, as_map
from shardd.changes import seq_reservation
from shardd.changes.admission import NO_BYTES, check_patch
from shardd.changes.transactions import Asked, Respond, Staging, TopicChange, performance, refuse, to_json
from shardd.frames import TopicConfigured, TopicCreated, TopicDeleted
from shardd.storage.change import Timing
from shardd.storage.indivisible import indivisible
from shardd.topic.directory import Directory
from shardd.topic.topic import Topic


class Topics:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._directory = staging.directory

    def configure(self, request: Request[Configure], respond: Respond) -> None:
        patch, _ = PATCH.read(request.body)
        check_patch(patch, request.options)
        topic = self._directory.assigned.get(request.topic)
        self._staging.space.check(topic)
        self._staging.check_bucket()
        if topic is not None and request.options.if_absent:
            patch = ConfigPatch()  # `if_absent`: the config applies only to a topic that this request creates
        if topic is None:
            config = apply(request.topic, None, patch)
            if not self._staging.has_room(1, NO_BYTES, request, respond, partial(self.configure, request, respond)):
                return
            topic = self.new(request.topic, config)
            self.create(_Created(topic, request, respond, directory=self._directory))
            return
        config = apply(topic.name, topic.assigned_config, patch)
        if config == topic.assigned_config and topic.position.sync_required_no <= self._staging.commits.safe_no:
            respond(_configured(False, topic.name, config, request.id, Timing()))
        else:
            self._reconfigure(topic, config, request, respond)

    def _reconfigure(self, topic: Topic, config: TopicConfig, request: Request[Configure], respond: Respond) -> None:
        position, lost = topic.position, topic.records.losses.evict_floor - 1
        before = topic.assigned_config, position.logged_seq, position.ceiling, position.reserved_in
        durability = topic.assigned_config.durability
        now = self._staging.clock.now_ms()
        # A replay computes the same floors from `now` (what had expired) and `next_seq` (what was never logged).
        body = TopicConfigured(as_map(config), now + position.ahead_ms, position.next_seq, 0, lost)
        change = _Configured(topic, config, before, now, request, respond, body=body, requires_sync=True)
        with indivisible:
            topic.assigned_config = config
            if durability.reserves_per_boot and not config.durability.reserves_per_boot:
                position.reserve(0, "")
            if durability.logged and not config.durability.logged:
                position.logged_upto(position.next_seq - 1)
            topic.held_at.append(now)
            body.floor = seq_reservation.floor_after(topic, config)
            self._staging.stage(change)

    def new(self, name: str, config: TopicConfig) -> Topic:
        """A topic that no request has seen, for `create`."""
        check_topic(name)
        ident = self._directory.new_id()
        return Topic(name, ident, ident, config)

    def create(self, change: TopicAdded) -> None:
        """Stages a new topic. It may be written to at once: changes staged on it commit or fail after it."""
        topic = change.topic
        body = TopicCreated(topic.name, topic.epoch, as_map(topic.config))
        seq_reservation.first(topic, body, self._staging)
        change.body, change.requires_sync = body, True
        with indivisible:
            self._directory.assigned[topic.name] = topic
            self._staging.stage(change)

    def delete(self, request: Request[DeleteTopic], respond: Respond) -> None:
        topic = self._directory.assigned.get(request.topic)
        if topic is None:
            absent = Reply(request.id, to_json(answers.TopicDeleted(request.topic, False, [])))
            if request.topic not in self._directory.visible:
                respond(absent)
            else:  # its deletion may still fail
                self._staging.check_bucket()
                self._staging.stage_apart(_Absent(request, respond, absent, requires_sync=True))
            return
        topic.expire(self._staging.clock.now_ms())
        count = topic.records.count + topic.records.pending_count
        if request.options.if_empty and count:
            raise TopicsError(
                ErrorCode.TOPIC_NOT_EMPTY,
                f'topic "{topic.name}" holds {count} records',
                {"topic": topic.name, "count": count},
            )
        self._staging.check_bucket()
        body = TopicDeleted(topic.name)
        with indivisible:
            del self._directory.assigned[topic.name]
            self._directory.leaving += 1
            self._staging.stage(_Deleted(topic, self._staging, request, respond, body=body, requires_sync=True))


class _Absent(Asked, eq=False):
    """Changes nothing. A deletion that was staged before it has happened, or was undone."""

    reply: Reply

    def commit(self, timing: Timing) -> None:
        self.respond(self.reply)


class TopicAdded(TopicChange, kw_only=True, eq=False):
    directory: Directory

    def apply(self, timing: Timing) -> None:
        self.directory.show(self.topic)

    def undo(self, error: TopicsError) -> None:
        del self.directory.assigned[self.topic.name]


class _Created(TopicAdded, eq=False):
    request: Request[Configure]
    respond: Respond

    def apply(self, timing: Timing) -> None:
        super().apply(timing)
        self.respond(_configured(True, self.topic.name, self.topic.config, self.request.id, timing))

    def undo(self, error: TopicsError) -> None:
        super().undo(error)
        refuse(self.request.id, self.respond, error)


class _Configured(TopicChange, eq=False):
    config: TopicConfig
    before: tuple[TopicConfig, int, int, str]
    """The assigned values before the change: config, `logged_seq`, `ceiling`, `reserved_in`."""
    now: int
    request: Request[Configure]
    respond: Respond

    def apply(self, timing: Timing) -> None:
        topic, config = self.topic, self.config
        topic.held_at.popleft()
        # Records that expired under the old settings stay gone, whatever the new settings say.
        topic.expire(self.now)
        topic.config = config
        if self.before[0].durability.lasts and not config.durability.lasts:
            topic.records.part()
        topic.expire(self.now)
        topic.records.evict(config)
        # This change waited for a sync, and everything visible was written before it.
        topic.position.on_device(topic.records.head_seq)
        self.respond(_configured(False, topic.name, config, self.request.id, timing))

    def undo(self, error: TopicsError) -> None:
        topic = self.topic
        topic.assigned_config, logged_seq, ceiling, reserved_in = self.before
        topic.position.logged_upto(logged_seq)
        topic.position.reserve(ceiling, reserved_in)
        topic.held_at.pop()
        refuse(self.request.id, self.respond, error)


class _Deleted(TopicChange, eq=False):
    staging: Staging
    request: Request[DeleteTopic]
    respond: Respond

    def apply(self, timing: Timing) -> None:
        topic = self.topic
        self.staging.directory.leaving -= 1
        self.staging.directory.hide(topic)
        self.staging.events.deleted(topic)
        into = [] if topic.lane_visible is None else sorted(topic.lane_visible.routers)
        body = answers.TopicDeleted(topic.name, True, into)
        self.respond(Reply(self.request.id, to_json(body), performance=performance(timing)))

    def undo(self, error: TopicsError) -> None:
        self.staging.directory.leaving -= 1
        self.staging.directory.assigned[self.topic.name] = self.topic
        refuse(self.request.id, self.respond, error)


def _configured(created: bool, name: str, config: TopicConfig, ident: int, timing: Timing) -> Reply:
    body = to_json(answers.Configured(name, created, config))
    return Reply(ident, body, created=created, performance=performance(timing))

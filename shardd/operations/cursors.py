"""Cursor operations: move, show, list and delete named cursors. Changes wait for a sync only in class `fsync`."""

from __future__ import annotations

from proto.api.answers import CursorDeleted
from proto.format.frame import Kind
from proto.ipc.message import Reply, Request
from proto.ipc.operations import CursorDelete, CursorGet, CursorList, CursorPut, Page
from proto.model.errors import TopicsError
from shardd.changes.transactions import Respond, Staging, performance, refuse, to_json
from shardd.storage.group_commit import Timing
from shardd.topic.cursors import MOVE, check_count, check_name, check_position, cursor_not_found, moved, page, state


class Cursors:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._directory = staging.directory

    def put(self, request: Request[CursorPut], respond: Respond) -> None:
        name = check_name(request.options.cursor)
        asked, request.ignored = MOVE.read(request.body)
        topic = self._directory.changing(request.topic)
        now = self._staging.clock.now_ms()
        check_position(asked, topic.head_seq)
        check_count(topic.cursors, topic.moving, name, self._staging.limits.max_cursors_per_topic)
        before = topic.moving.position(name, topic.cursors.get(name))
        topic.moving.begin(name, asked.seq if asked.force else max(asked.seq, before))

        def commit(timing: Timing) -> None:
            # Decided here, in commit order, because another move may have been staged before this one.
            topic.moving.ended(name)
            cursor = topic.cursors[name] = moved(topic.cursors.get(name), asked.seq, bool(asked.force), now)
            body = state(topic.name, name, cursor, topic.head_seq)
            respond(Reply(request.id, to_json(body), performance=performance(timing)))

        def undo(error: TopicsError) -> None:
            topic.moving.undone(name, before)
            refuse(request.id, respond, error)

        fields = {"name": name, "seq": asked.seq, "ts": now, "force": bool(asked.force)}
        frame = self._staging.control_frame(Kind.CURSOR, topic.id, fields)
        requires_sync = topic.assigned_config.durability.acks_synced
        self._staging.stage(topic, frame, requires_sync=requires_sync, commit=commit, undo=undo)

    def delete(self, request: Request[CursorDelete], respond: Respond) -> None:
        name = check_name(request.options.cursor)
        topic = self._directory.changing(request.topic)
        before = topic.moving.position(name, topic.cursors.get(name))
        topic.moving.begin(name, 0)

        def commit(timing: Timing) -> None:
            topic.moving.ended(name)
            deleted = topic.cursors.pop(name, None) is not None
            body = CursorDeleted(topic.name, name, deleted)
            respond(Reply(request.id, to_json(body), performance=performance(timing)))

        def undo(error: TopicsError) -> None:
            topic.moving.undone(name, before)
            refuse(request.id, respond, error)

        frame = self._staging.control_frame(Kind.CURSOR, topic.id, {"name": name, "seq": None})
        requires_sync = topic.assigned_config.durability.acks_synced
        self._staging.stage(topic, frame, requires_sync=requires_sync, commit=commit, undo=undo)

    def get(self, request: Request[CursorGet], respond: Respond) -> None:
        topic = self._directory.find(request.topic)
        name = check_name(request.options.cursor)
        cursor = topic.cursors.get(name)
        if cursor is None:
            raise cursor_not_found(topic.name, name)
        respond(Reply(request.id, to_json(state(topic.name, name, cursor, topic.head_seq))))

    def list(self, request: Request[CursorList], respond: Respond) -> None:
        topic = self._directory.find(request.topic)
        after, size = request.options.after, request.options.page_size
        entries, more = page(topic.cursors, topic.head_seq, after, size)
        names = [each.cursor for each in entries]
        respond(Reply(request.id, to_json(entries), extra=Page(tuple(names), more)))

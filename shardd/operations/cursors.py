"""Cursor operations: move, show, list and delete named cursors. Changes wait for a sync only in class `fsync`."""

from __future__ import annotations

from msgspec import UNSET

from proto.api import answers
from proto.ipc.message import Reply, Request
from proto.ipc.operations import AllCursors, CursorDelete, CursorGet, CursorList, CursorPut, Page
from proto.model.errors import TopicsError
from proto.model.names import cursor_at, place_of_cursor
from shardd.changes.transactions import Respond, Staging, TopicChange, performance, refuse, to_json
from shardd.frames import CursorDeleted, CursorMoved
from shardd.storage.change import Timing
from shardd.storage.indivisible import indivisible
from shardd.topic.cursors import (
    MOVE,
    Assigned,
    check_count,
    check_name,
    check_position,
    cursor_not_found,
    entry,
    following,
    state,
)


class CursorChange(TopicChange, eq=False):
    """A cursor moves, or is deleted. It was to be `before`."""

    name: str
    before: Assigned
    request: Request
    respond: Respond

    def apply(self, timing: Timing) -> None:
        self.topic.moving.ended(self.name)
        self.respond(self.done(timing))

    def done(self, timing: Timing) -> Reply:
        """Changes the visible cursor. Returns the answer."""
        raise NotImplementedError

    def undo(self, error: TopicsError) -> None:
        self.topic.moving.undone(self.name, self.before)
        refuse(self.request.id, self.respond, error)


class _Put(CursorChange, eq=False):
    move: CursorMoved

    def done(self, timing: Timing) -> Reply:
        cursor = self.move.move(self.topic)
        body = state(self.topic.name, self.name, cursor, self.topic.records.head_seq)
        return Reply(self.request.id, to_json(body), performance=performance(timing))


class _Deleted(CursorChange, eq=False):
    def done(self, timing: Timing) -> Reply:
        deleted = self.topic.cursors.pop(self.name, None) is not None
        body = answers.CursorDeleted(self.topic.name, self.name, deleted)
        return Reply(self.request.id, to_json(body), performance=performance(timing))


class Cursors:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._directory = staging.directory

    def put(self, request: Request[CursorPut], respond: Respond) -> None:
        name = check_name(request.options.cursor)
        asked, request.ignored = MOVE.read(request.body)
        topic = self._directory.changing(request.topic)
        now = self._staging.clock.now_ms()
        check_position(asked, topic.records.head_seq)
        before = topic.moving.assigned(name, topic.cursors.get(name))
        maker, most = request.options.maker, self._staging.limits.max_cursors_per_topic
        if before.maker is None:
            check_count(topic.cursors, topic.moving, most, maker, request.options.most_made)
        else:
            maker = before.maker
        move = CursorMoved(
            name, asked.seq, now, bool(asked.force), UNSET if before.maker is not None else maker or UNSET
        )
        requires_sync = topic.assigned_config.durability.acks_synced
        change = _Put(topic, name, before, request, respond, move, body=move, requires_sync=requires_sync)
        with indivisible:
            topic.moving.begin(name, Assigned(asked.seq if asked.force else max(asked.seq, before.seq), maker))
            self._staging.stage(change)

    def delete(self, request: Request[CursorDelete], respond: Respond) -> None:
        name = check_name(request.options.cursor)
        topic = self._directory.changing(request.topic)
        before = topic.moving.assigned(name, topic.cursors.get(name))
        body = CursorDeleted(name)
        requires_sync = topic.assigned_config.durability.acks_synced
        change = _Deleted(topic, name, before, request, respond, body=body, requires_sync=requires_sync)
        with indivisible:
            topic.moving.begin(name, Assigned(0, None))
            self._staging.stage(change)

    def get(self, request: Request[CursorGet], respond: Respond) -> None:
        topic = self._directory.find(request.topic)
        name = check_name(request.options.cursor)
        cursor = topic.cursors.get(name)
        if cursor is None:
            raise cursor_not_found(topic.name, name)
        respond(Reply(request.id, to_json(state(topic.name, name, cursor, topic.records.head_seq))))

    def list(self, request: Request[CursorList], respond: Respond) -> None:
        topic = self._directory.find(request.topic)
        size = request.options.page_size
        names = following(topic.cursors, request.options.after, size + 1)
        entries = [entry(name, topic.cursors[name], topic.records.head_seq) for name in names[:size]]
        respond(Reply(request.id, to_json(entries), extra=Page(tuple(names[:size]), len(names) > size)))

    def list_all(self, request: Request[AllCursors], respond: Respond) -> None:
        """Answers a page of the cursors of all topics, but for those that are set apart: their log is not read."""
        options = request.options
        first, after = cursor_at(options.after)
        left = options.page_size + 1
        found: list[answers.TopicCursor] = []
        for topic in self._directory.onwards(options.prefix, first, options.prefixes):
            if not topic.cursors or topic.damage is not None:
                continue
            names = following(topic.cursors, after if topic.name == first else "", left - len(found))
            found += [state(topic.name, each, topic.cursors[each], topic.records.head_seq) for each in names]
            if len(found) == left:
                break
        more = len(found) == left
        del found[options.page_size :]
        places = tuple(place_of_cursor(each.topic, each.cursor) for each in found)
        respond(Reply(request.id, to_json(found), extra=Page(places, more)))

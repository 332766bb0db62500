"""Operations on watch sessions (see `shardd.topic.watch_session`)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from proto.ipc import operations
from proto.ipc.message import Reply, Request
from proto.model.errors import ErrorCode, TopicsError
from shardd.changes.transactions import Respond, Staging, refuse
from shardd.frames import WatchSessions
from shardd.storage.change import Change, Timing
from shardd.storage.indivisible import indivisible
from shardd.topic.watch_session import Position, Session, as_map

RETRY_AFTER_MS = 1000

_decode_moves = msgspec.json.Decoder(dict[str, tuple[int, dict[str, Position]]]).decode
_decode_topics = msgspec.json.Decoder(dict[str, Position]).decode


class SessionControl:
    """Session control. The request's `topic` is the wid; `proto.ipc.operations` has the fields of requests and answers.

    session_make    the body has the positions
    session_open    404 for no session, 401 for another owner's
    session_move    body {wid: [generation, {topic: position}]}
    """

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._directory = staging.directory
        self.sessions = staging.directory.sessions
        self.making: Counter[bytes] = Counter()
        """Number of staged creations, by owner."""

    def resolve(self, request: Request[operations.WatchResolve], respond: Respond) -> None:
        now = self._staging.clock.now_ms()
        found: dict[str, tuple[int, int, int]] = {}
        for name in request.options.names:
            topic = self._directory.visible.get(name)
            if topic is not None:
                topic.expire(now)
                topic.last_read_ts = now
                found[name] = (topic.epoch, topic.records.head_seq, topic.records.floor)
        respond(Reply(request.id, extra=operations.Resolved(found)))

    def make(self, request: Request[operations.SessionMake], respond: Respond) -> None:
        self.collect()
        options = request.options
        owner = options.owner
        limits = self._staging.limits
        held, owned = len(self.sessions) + self.making.total(), self.sessions.owned_by(owner) + self.making[owner]
        _check_cap(owned, options.most_owned, "max_watch_sessions_per_key", options.most_per_key)
        _check_cap(held, options.most_sessions, "max_watch_sessions", limits.max_watch_sessions)
        session = Session(request.topic, owner, options.options, _decode_topics(request.body))
        session.used_ms = self._staging.clock.now_ms()
        body = WatchSessions(made=as_map(session))
        change = _Made(self, session, request, respond, body=body, requires_sync=False)
        with indivisible:
            self.making[owner] += 1
            self._staging.stage_apart(change)

    def open(self, request: Request[operations.SessionOpen], respond: Respond) -> None:
        self.collect()
        session = self.sessions.by_wid.get(request.topic)
        if session is None:
            raise TopicsError(
                ErrorCode.NOT_FOUND,
                "there is no such watch session (any more); make a new one with POST /v0/watch",
                {"wid": request.topic},
            )
        if session.owner != request.options.owner:
            raise TopicsError(
                ErrorCode.UNAUTHORIZED, "this watch session belongs to another key; present the one that made it"
            )
        session.used_ms = self._staging.clock.now_ms()
        self._staging.stage_apart(_Opened(self, session, request, respond, requires_sync=False))

    def move(self, request: Request[operations.SessionMove], respond: Respond) -> None:
        moves = _decode_moves(request.body)
        now = self._staging.clock.now_ms()
        moved: dict[str, Any] = {}
        unknown: list[str] = []
        for wid, (generation, topics) in moves.items():
            session = self.sessions.by_wid.get(wid)
            if session is None:
                unknown.append(wid)
                continue
            session.used_ms = now
            if topics:
                moved[wid] = [generation, {name: list(position) for name, position in topics.items()}]

        if not moved:
            respond(self.moved(request.id, unknown))
            return
        body = WatchSessions(moved=moved)
        self._staging.stage_apart(_Moved(self, moved, unknown, request, respond, body=body, requires_sync=False))

    def count(self, request: Request[operations.SessionCount], respond: Respond) -> None:
        self.collect()
        respond(self.counted(request.id, request.options.owner))

    def collect(self) -> None:
        """Ends the sessions that have been idle for the ttl."""
        ended = self.sessions.idle(self._staging.clock.now_ms() - self._staging.limits.watch_session_ttl_ms)
        if not ended:
            return
        # They end before the frame is written; if it is lost, a restart brings them back for another ttl.
        with indivisible:
            self.sessions.apply({"ended": ended})
            self._staging.stage_apart(Change(body=WatchSessions(ended=ended), requires_sync=False))

    def moved(self, ident: int, unknown: list[str]) -> Reply:
        return Reply(ident, extra=operations.SessionsMoved(len(self.sessions), tuple(unknown)))

    def counted(self, ident: int, owner: bytes | None) -> Reply:
        owned = None if owner is None else self.sessions.owned_by(owner)
        return Reply(ident, extra=operations.Sessions(len(self.sessions), owned))


class _Made(Change, eq=False):
    control: SessionControl
    session: Session
    request: Request[operations.SessionMake]
    respond: Respond

    def commit(self, timing: Timing) -> None:
        self.control.making -= Counter([self.session.owner])
        self.control.sessions.add(self.session)
        self.respond(self.control.counted(self.request.id, self.session.owner))

    def undo(self, error: TopicsError) -> None:
        self.control.making -= Counter([self.session.owner])
        refuse(self.request.id, self.respond, error)


class _Opened(Change, eq=False):
    """Changes nothing. Answered in commit order, because the client's earlier moves may still be staged."""

    control: SessionControl
    session: Session
    request: Request[operations.SessionOpen]
    respond: Respond

    def commit(self, timing: Timing) -> None:
        session, sessions = self.session, self.control.sessions
        shown, topics = dict(session.options), {name: (*at,) for name, at in session.topics.items()}
        about = operations.SessionFound(
            len(sessions), sessions.owned_by(session.owner), shown, topics, session.generation
        )
        self.respond(Reply(self.request.id, extra=about))

    def undo(self, error: TopicsError) -> None:
        refuse(self.request.id, self.respond, error)


class _Moved(Change, eq=False):
    control: SessionControl
    moved: dict[str, Any]
    unknown: list[str]
    request: Request[operations.SessionMove]
    respond: Respond

    def commit(self, timing: Timing) -> None:
        self.control.sessions.apply({"moved": self.moved})
        self.respond(self.control.moved(self.request.id, self.unknown))

    def undo(self, error: TopicsError) -> None:
        refuse(self.request.id, self.respond, error)


def _check_cap(held: int, cap: int | None, limit: str, most: int) -> None:
    """Raises `429 throttled` if there is no room for one session more than `held`."""
    if cap is not None and held + 1 > cap:
        raise TopicsError(
            ErrorCode.THROTTLED,
            f"there are as many watch sessions as {limit} allows, {most}; wait until one ends",
            {"limit": limit, "max": most},
            retry_after_ms=RETRY_AFTER_MS,
        )

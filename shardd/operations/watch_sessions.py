"""Operations on watch sessions (see `shardd.topic.watch_session`)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from proto.format.frame import Kind
from proto.ipc import operations
from proto.ipc.message import Reply, Request
from proto.model.errors import ErrorCode, TopicsError
from shardd.changes.transactions import Respond, Staging, refuse
from shardd.storage.group_commit import Timing
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
        self._sessions = staging.directory.sessions
        self._making: Counter[bytes] = Counter()
        """Number of staged creations, by owner."""

    def resolve(self, request: Request[operations.WatchResolve], respond: Respond) -> None:
        now = self._staging.clock.now_ms()
        found: dict[str, tuple[int, int, int]] = {}
        for name in request.options.names:
            topic = self._directory.visible.get(name)
            if topic is not None:
                topic.expire(now)
                topic.last_read_ts = now
                found[name] = (topic.epoch, topic.head_seq, topic.earliest_seq)
        respond(Reply(request.id, extra=operations.Resolved(found)))

    def make(self, request: Request[operations.SessionMake], respond: Respond) -> None:
        self.collect()
        options = request.options
        owner = options.owner
        limits = self._staging.limits
        held, owned = len(self._sessions) + self._making.total(), self._sessions.owned_by(owner) + self._making[owner]
        _check_cap(owned, options.most_owned, "max_watch_sessions_per_key", limits.max_watch_sessions_per_key)
        _check_cap(held, options.most_sessions, "max_watch_sessions", limits.max_watch_sessions)
        session = Session(request.topic, owner, options.options, _decode_topics(request.body))
        session.used_ms = self._staging.clock.now_ms()
        self._making[owner] += 1

        def commit(timing: Timing) -> None:
            self._making -= Counter([owner])
            self._sessions.add(session)
            respond(self._counted(request.id, request.options.owner))

        def undo(error: TopicsError) -> None:
            self._making -= Counter([owner])
            refuse(request.id, respond, error)

        frame = self._staging.control_frame(Kind.SESSION, 0, {"made": as_map(session)})
        self._staging.commits.stage(frame, requires_sync=False, commit=commit, undo=undo)

    def open(self, request: Request[operations.SessionOpen], respond: Respond) -> None:
        self.collect()
        session = self._sessions.by_wid.get(request.topic)
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

        def commit(timing: Timing) -> None:
            # Answered in commit order, because the client's earlier moves may still be staged.
            sessions, owned = len(self._sessions), self._sessions.owned_by(session.owner)
            shown, topics = dict(session.options), {name: (*at,) for name, at in session.topics.items()}
            about = operations.SessionFound(sessions, owned, shown, topics, session.generation)
            respond(Reply(request.id, extra=about))

        def undo(error: TopicsError) -> None:
            refuse(request.id, respond, error)

        self._staging.commits.stage(None, requires_sync=False, commit=commit, undo=undo)

    def move(self, request: Request[operations.SessionMove], respond: Respond) -> None:
        moves = _decode_moves(request.body)
        now = self._staging.clock.now_ms()
        moved: dict[str, Any] = {}
        unknown: list[str] = []
        for wid, (generation, topics) in moves.items():
            session = self._sessions.by_wid.get(wid)
            if session is None:
                unknown.append(wid)
                continue
            session.used_ms = now
            if topics:
                moved[wid] = [generation, {name: list(position) for name, position in topics.items()}]

        def answer() -> None:
            respond(Reply(request.id, extra=operations.SessionsMoved(len(self._sessions), tuple(unknown))))

        if not moved:
            answer()
            return
        fields = {"moved": moved}

        def commit(timing: Timing) -> None:
            self._sessions.apply(fields)
            answer()

        def undo(error: TopicsError) -> None:
            refuse(request.id, respond, error)

        frame = self._staging.control_frame(Kind.SESSION, 0, fields)
        self._staging.commits.stage(frame, requires_sync=False, commit=commit, undo=undo)

    def count(self, request: Request[operations.SessionCount], respond: Respond) -> None:
        self.collect()
        respond(self._counted(request.id, request.options.owner))

    def collect(self) -> None:
        """Ends the sessions that have been idle for the ttl."""
        ended = self._sessions.idle(self._staging.clock.now_ms() - self._staging.limits.watch_session_ttl_ms)
        if not ended:
            return
        # They end before the frame is written; if it is lost, a restart brings them back for another ttl.
        fields = {"ended": ended}
        self._sessions.apply(fields)
        frame = self._staging.control_frame(Kind.SESSION, 0, fields)
        self._staging.commits.stage(frame, requires_sync=False, commit=lambda timing: None, undo=lambda error: None)

    def _counted(self, ident: int, owner: bytes | None) -> Reply:
        owned = None if owner is None else self._sessions.owned_by(owner)
        return Reply(ident, extra=operations.Sessions(len(self._sessions), owned))


def _check_cap(held: int, cap: int | None, limit: str, most: int) -> None:
    """Raises `429 throttled` if there is no room for one session more than `held`."""
    if cap is not None and held + 1 > cap:
        raise TopicsError(
            ErrorCode.THROTTLED,
            f"there are as many watch sessions as TOPICS_{limit.upper()} allows, {most}; wait until one ends",
            {"limit": limit, "max": most},
            retry_after_ms=RETRY_AFTER_MS,
        )

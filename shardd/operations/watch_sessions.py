"""The operations on watch sessions (`shardd.topic.watch_session` has what a session is)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from proto.format.frame import Kind
from proto.ipc.message import Reply, Request
from proto.model.errors import ErrorCode, TopicsError
from shardd.changes.transactions import Respond, Staging, refuse
from shardd.storage.group_commit import Timing
from shardd.topic.watch_session import Position, Session, as_map

RETRY_AFTER_MS = 1000

_decode_moves = msgspec.json.Decoder(dict[str, tuple[int, dict[str, Position]]]).decode
_decode_topics = msgspec.json.Decoder(dict[str, Position]).decode


class SessionControl:
    """The operations on sessions. The request's `topic` is the wid; every reply's `extra` has `sessions`, their number.

    watch_resolve   `names` → `topics`: {name: [epoch, head_seq, earliest_seq]} of those there are
    session_make    `owner`, `options`, the positions as body; `room` and `room_owned`: how many sessions, and how many
                    of this owner, the shard may hold at most
    session_open    `owner` → `options`, `topics`, `generation`; 404 if there is none, 401 if it is another's
    session_move    body {wid: [generation, {topic: position}]} → `unknown`: wids there are no sessions for
    session_count   nothing but `sessions`

    With `owner` in the request, `extra` also has `owned`, the number of the owner's sessions.
    """

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._directory = staging.directory
        self._sessions = staging.directory.sessions
        self._making: Counter[bytes] = Counter()
        """Sessions that are on their way to be made, by owner."""

    def resolve(self, request: Request, respond: Respond) -> None:
        now = self._staging.clock.now_ms()
        found: dict[str, tuple[int, int, int]] = {}
        for name in request.options["names"]:
            topic = self._directory.visible.get(name)
            if topic is not None:
                topic.expire(now)
                topic.last_read_ts = now
                found[name] = (topic.epoch, topic.head_seq, topic.earliest_seq)
        respond(Reply(request.id, extra={"topics": found}))

    def make(self, request: Request, respond: Respond) -> None:
        self.collect()
        options = request.options
        owner = options["owner"]
        limits = self._staging.limits
        held, owned = len(self._sessions) + self._making.total(), self._sessions.owned_by(owner) + self._making[owner]
        _check_room(owned, options.get("room_owned"), "max_watch_sessions_per_key", limits.max_watch_sessions_per_key)
        _check_room(held, options.get("room"), "max_watch_sessions", limits.max_watch_sessions)
        session = Session(request.topic, owner, options["options"], _decode_topics(request.body))
        session.used_ms = self._staging.clock.now_ms()
        self._making[owner] += 1

        def commit(timing: Timing) -> None:
            self._making -= Counter([owner])
            self._sessions.add(session)
            self._answer(request, respond)

        def undo(error: TopicsError) -> None:
            self._making -= Counter([owner])
            refuse(request.id, respond, error)

        frame = self._staging.control_frame(Kind.SESSION, 0, {"made": as_map(session)})
        self._staging.commits.stage(frame, requires_sync=False, commit=commit, undo=undo)

    def open(self, request: Request, respond: Respond) -> None:
        self.collect()
        session = self._sessions.by_wid.get(request.topic)
        if session is None:
            raise TopicsError(
                ErrorCode.NOT_FOUND,
                "there is no such watch session (any more); make a new one with POST /v0/watch",
                {"wid": request.topic},
            )
        if session.owner != request.options["owner"]:
            raise TopicsError(
                ErrorCode.UNAUTHORIZED, "this watch session belongs to another key; present the one that made it"
            )
        session.used_ms = self._staging.clock.now_ms()

        def commit(timing: Timing) -> None:
            # Not before what is staged: moves that were told earlier are among it.
            kept = as_map(session)
            about = {name: kept[name] for name in ("options", "topics", "generation")}
            self._answer(request, respond, **about)

        def undo(error: TopicsError) -> None:
            refuse(request.id, respond, error)

        self._staging.commits.stage(None, requires_sync=False, commit=commit, undo=undo)

    def move(self, request: Request, respond: Respond) -> None:
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
        if not moved:
            self._answer(request, respond, unknown=unknown)
            return
        fields = {"moved": moved}

        def commit(timing: Timing) -> None:
            self._sessions.apply(fields)
            self._answer(request, respond, unknown=unknown)

        def undo(error: TopicsError) -> None:
            refuse(request.id, respond, error)

        frame = self._staging.control_frame(Kind.SESSION, 0, fields)
        self._staging.commits.stage(frame, requires_sync=False, commit=commit, undo=undo)

    def count(self, request: Request, respond: Respond) -> None:
        self.collect()
        self._answer(request, respond)

    def collect(self) -> None:
        """End the sessions that nobody used for the ttl."""
        ended = self._sessions.idle(self._staging.clock.now_ms() - self._staging.limits.watch_session_ttl_ms)
        if not ended:
            return
        # Gone at once; if the frame is lost, a restart brings them back for another ttl.
        fields = {"ended": ended}
        self._sessions.apply(fields)
        frame = self._staging.control_frame(Kind.SESSION, 0, fields)
        self._staging.commits.stage(frame, requires_sync=False, commit=lambda timing: None, undo=lambda error: None)

    def _answer(self, request: Request, respond: Respond, **more: Any) -> None:
        if (owner := request.options.get("owner")) is not None:
            more["owned"] = self._sessions.owned_by(owner)
        respond(Reply(request.id, extra={"sessions": len(self._sessions), **more}))


def _check_room(held: int, room: int | None, limit: str, most: int) -> None:
    """Raises `429 throttled` for one more than there is room for here."""
    if room is not None and held + 1 > room:
        raise TopicsError(
            ErrorCode.THROTTLED,
            f"there are as many watch sessions as TOPICS_{limit.upper()} allows, {most}; wait until one ends",
            {"limit": limit, "max": most},
            retry_after_ms=RETRY_AFTER_MS,
        )

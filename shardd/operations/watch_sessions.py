"""Operations on watch sessions (see `shardd.topic.watch_session`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from proto.ipc import operations
from proto.ipc.message import Reply, Request
from proto.model.errors import ErrorCode, TopicsError, throttled
from shardd.changes.transactions import Asked, Respond, Staging, refuse
from shardd.frames import WatchSessions
from shardd.operations.session_streams import SessionStreams, Take
from shardd.storage.change import Change, Timing
from shardd.storage.indivisible import indivisible
from shardd.topic.watch_session import Position, Session, as_map

Number = Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
"""Number of a stream."""

_decode_moves = msgspec.json.Decoder(dict[str, tuple[int, dict[str, Position], Number, bool]]).decode
_decode_topics = msgspec.json.Decoder(dict[str, Position]).decode


class SessionControl:
    """Session control. The request's `topic` is the wid; `proto.ipc.operations` has the fields of requests and answers.

    session_make    the body has the positions
    session_open    404 for no session, 401 for another owner's
    session_take    the same; `shardd.operations.session_streams` has the rest
    session_move    body {wid: [generation, {topic: position}, number of the stream, whether it has ended]}
    """

    def __init__(self, staging: Staging, streams: SessionStreams) -> None:
        self._staging = staging
        self.streams = streams
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
        change = _Made(request, respond, self, session, body=body, requires_sync=False)
        with indivisible:
            self.making[owner] += 1
            self._staging.stage_apart(change)

    def open(self, request: Request[operations.SessionOpen], respond: Respond) -> None:
        self.collect()
        session = self._used(request.topic, request.options.owner)
        self._staging.stage_apart(_Opened(request, respond, self, session, requires_sync=False))

    def _used(self, wid: str, owner: bytes) -> Session:
        """The session, whose idle time begins again. Raises `404` and `401`."""
        session = self.sessions.by_wid.get(wid)
        if session is None:
            raise TopicsError(
                ErrorCode.NOT_FOUND,
                "there is no such watch session (any more); make a new one with POST /v0/watch",
                {"wid": wid},
            )
        if session.owner != owner:
            raise TopicsError(
                ErrorCode.UNAUTHORIZED, "this watch session belongs to another key; present the one that made it"
            )
        session.used_ms = self._staging.clock.now_ms()
        return session

    def take(self, request: Request[operations.SessionTake], caller: Hashable, respond: Respond) -> None:
        """Open a session for a new stream, once the one before it has ended."""
        self.collect()
        session = self._used(request.topic, request.options.owner)

        def begin(take: Take) -> None:
            self._staging.containment.attempt(request, respond, partial(self._begin, request, take))

        with indivisible:
            superseded = self.streams.take(request.topic, Take(caller, request.id, respond, begin))
            if superseded is not None:
                superseded.respond(Reply(superseded.ident, extra=self.found(session)))

    def _begin(self, request: Request[operations.SessionTake], take: Take) -> None:
        session = self._used(request.topic, request.options.owner)
        previous, number = session.stream, session.stream + 1
        body = WatchSessions(taken={session.wid: number})
        with indivisible:
            # Assigned now: moves of the older stream that are staged from now on would commit after the answer.
            session.stream = number
            self.streams.beginning(session.wid, take)
            self._staging.stage_apart(
                _Taken(request, take.respond, self, session, take, number, previous, body=body, requires_sync=False)
            )

    def move(self, request: Request[operations.SessionMove], caller: Hashable, respond: Respond) -> None:
        moves = _decode_moves(request.body)
        now = self._staging.clock.now_ms()
        moved: dict[str, Any] = {}
        taken: dict[str, int] = {}
        unknown: list[str] = []
        superseded: list[str] = []
        streams: list[tuple[Session, int, bool]] = []
        for wid, (generation, topics, number, over) in moves.items():
            session = self.sessions.by_wid.get(wid)
            if session is None:
                unknown.append(wid)
                continue
            if self.streams.superseded(wid, session.stream, number, caller):
                superseded.append(wid)
                continue
            session.used_ms = now
            if topics:
                moved[wid] = [generation, {name: list(position) for name, position in topics.items()}]
            if number > session.stream:  # the log has lost that it began, as it may lose positions
                taken[wid] = number
            streams.append((session, number, over))
        answer = Reply(request.id, extra=operations.SessionsMoved(tuple(unknown), tuple(superseded)))
        change = _Moved(request, respond, self, moved, answer, requires_sync=False)
        if moved or taken:
            change.body = WatchSessions(moved=moved or UNSET, taken=taken or UNSET)
            self._staging.stage_apart(change)
        else:
            respond(answer)
        # After these moves, because the answer of a take that begins now includes them.
        with indivisible:
            for session, number, over in streams:
                session.stream = number
                self.streams.moved(session.wid, number, caller)
                if over:
                    self.streams.ended(session.wid, number)

    def count(self, request: Request[operations.SessionCount], respond: Respond) -> None:
        self.collect()
        respond(self.counted(request.id, request.options.owner))

    def collect(self) -> None:
        """Ends the sessions that have been idle for the ttl, without a stream."""
        idle = self.sessions.idle(self._staging.clock.now_ms() - self._staging.limits.watch_session_ttl_ms)
        ended = [wid for wid in idle if not self.streams.busy(wid)]
        if not ended:
            return
        # They end before the frame is written; if it is lost, a restart brings them back for another ttl.
        with indivisible:
            self.sessions.apply({"ended": ended})
            self._staging.stage_apart(Change(body=WatchSessions(ended=ended), requires_sync=False))

    def forget(self, caller: Hashable) -> None:
        """A gateway is gone: its streams have ended, and the idle time of their sessions begins."""
        now = self._staging.clock.now_ms()
        for wid in self.streams.held_by(caller):
            self.sessions.by_wid[wid].used_ms = now
        self.streams.forget(caller)

    def found(self, session: Session) -> operations.SessionFound:
        shown, topics = dict(session.options), {name: (*at,) for name, at in session.topics.items()}
        return operations.SessionFound(shown, topics, session.generation)

    def counted(self, ident: int, owner: bytes) -> Reply:
        return Reply(ident, extra=operations.Sessions(self.sessions.owned_by(owner)))


class _Made(Asked, eq=False):
    control: SessionControl
    session: Session

    def commit(self, timing: Timing) -> None:
        self.control.making -= Counter([self.session.owner])
        self.control.sessions.add(self.session)
        self.respond(self.control.counted(self.request.id, self.session.owner))

    def undo(self, error: TopicsError) -> None:
        self.control.making -= Counter([self.session.owner])
        super().undo(error)


class _Opened(Asked, eq=False):
    """Changes nothing. Answered in commit order, because the client's earlier moves may still be staged."""

    control: SessionControl
    session: Session

    def commit(self, timing: Timing) -> None:
        self.respond(Reply(self.request.id, extra=self.control.found(self.session)))


class _Taken(Asked, eq=False):
    control: SessionControl
    session: Session
    take: Take
    stream: int
    previous: int

    def commit(self, timing: Timing) -> None:
        found = replace(self.control.found(self.session), stream=self.stream, previous=self.previous)
        self.respond(Reply(self.request.id, extra=found))
        self.control.streams.begun(self.session.wid, self.take, self.stream)

    def undo(self, error: TopicsError) -> None:
        if error.code is not ErrorCode.INTERNAL:
            self.commit(Timing())  # the log cannot be written: readers are served all the same
            return
        self.session.stream = self.previous
        super().undo(error)
        waiting = self.control.streams.failed(self.session.wid)
        if waiting is not None:
            refuse(waiting.ident, waiting.respond, error)


class _Moved(Asked, eq=False):
    control: SessionControl
    moved: Mapping[str, Any]
    answer: Reply

    def commit(self, timing: Timing) -> None:
        self.control.sessions.apply({"moved": self.moved})
        self.respond(self.answer)


def _check_cap(held: int, cap: int | None, limit: str, most: int) -> None:
    """Raises `429 throttled` if there is no room for one session more than `held`."""
    if cap is not None and held + 1 > cap:
        raise throttled(limit, most, f"there are as many watch sessions as {limit} allows, {most}; wait until one ends")

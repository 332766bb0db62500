"""Streams of watch sessions: which stream has a session, and in which order its streams follow each other.

A session has one stream at a time, at whichever gateway. Each stream of a session has a number, larger than all before
it. The number is in the log before the stream begins (`shardd.topic.watch_session`), so none is drawn twice:

    1  A gateway takes the session for a connection (`SessionTake`).
    2  If there is no stream, the take *begins*: a number is drawn and logged, and the take is answered.
    3  Else the gateway of that stream hears that it has to end, by its parked `SessionNews`, and the take waits.
    4  That gateway ends the stream, and says so in a `SessionMove` with the last positions. The take begins; its answer
       includes these positions.
    5  A gateway that hangs says nothing. After `TAKE_S` the take begins without it.
    6  From then on, moves with a smaller number are refused. So a position is never ahead of what the client of the
       latest stream got. The answer to a refused move ends a stream whose gateway missed the news.

    what dies                    then
    the gateway of the stream    the supervisor reports it (`proto.ipc.askers`): its streams have ended
    the gateway that takes       a take that waits is dropped; the stream of one that is answered has ended. The older
                                 stream was told to end, and its client takes the session again
    this process                 the numbers are in the log. Gateways name their streams to the next process in moves.
                                 A take that comes before that begins at once, and the older stream's moves are refused
    both                         the numbers are in the log, and there is no stream
    the stream's client          its gateway says so in the next `SessionMove`, or when it hears of another take. Before
                                 the answer to the take has come, it cancels the take
    the log cannot be written    the take begins all the same, because a shard that is read-only serves readers. If its
                                 number is drawn again after a restart, the gateway tells the two streams apart

If another take follows one that waits, the earlier one is answered at once and does not begin: only the last one does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf

from msgspec import Struct

from proto.ipc.message import Parked, Reply, Request
from proto.ipc.operations import SessionNews, SessionsTaken
from proto.model.limits import MAX_WAIT_MS
from shardd.changes.transactions import Respond, Staging

TAKE_S = 2.0
"""The longest that a stream waits for the end of the one before it."""
NEWS_S = MAX_WAIT_MS / 2000
"""A request for news that is parked this long is answered without any: its asker may be gone. Well below `MAX_WAIT_MS`,
because an asker takes a shard that keeps a parked request for longer for one that hangs."""


class Stream(Struct, frozen=True):
    number: int
    caller: Hashable
    """Its gateway."""
    ident: int | None = None
    """Id of the take that began it; None if it is older than this process."""


@dataclass(slots=True, eq=False)
class Take:
    """A stream that has not begun."""

    caller: Hashable
    """Its gateway; None once that is gone."""
    ident: int
    respond: Respond
    begin: Callable[[Take], None]
    """Draws the number and stages the answer. `beginning` and `begun`, or `failed`, follow."""
    deadline: float = inf
    """When it begins at the latest; `inf` until the stream before it was told to end."""


class _Listener(Struct, frozen=True):
    ident: int
    respond: Respond
    since: float


class SessionStreams:
    def __init__(self, staging: Staging, more: Callable[[], object]) -> None:
        """`more` is called when `next_due` is earlier than it was."""
        self._clock = staging.clock
        self._more = more
        self._held: dict[str, Stream] = {}
        """The streams that have begun and not ended, by wid. Of streams that are older than this process, those of
        which a gateway has told."""
        self._waiting: dict[str, Take] = {}
        self._beginning: dict[str, Take] = {}
        """Takes whose answers are staged."""
        self._listeners: dict[Hashable, _Listener] = {}
        self._news: dict[Hashable, dict[str, int]] = {}
        """For each gateway, numbers of its streams that have to end and of which it has not heard, by wid."""

    def busy(self, wid: str) -> bool:
        """Whether a session has a stream, or one that is to begin."""
        return wid in self._held or wid in self._beginning or wid in self._waiting

    def held_by(self, caller: Hashable) -> list[str]:
        """The sessions whose streams are at this gateway."""
        return [wid for wid, stream in self._held.items() if stream.caller == caller]

    # Taking

    def take(self, wid: str, take: Take) -> Take | None:
        """Begin a stream, or let it wait for the end of the one before it. Returns an earlier take that waited and is
        not to begin."""
        earlier = self._waiting.pop(wid, None)
        if earlier is not None:
            take.deadline = earlier.deadline
        if wid not in self._held and wid not in self._beginning:
            take.begin(take)
            return earlier
        self._waiting[wid] = take
        take.respond(Parked(take.ident))
        if take.deadline == inf and wid not in self._beginning:
            self._tell(wid, take)
        return earlier

    def beginning(self, wid: str, take: Take) -> None:
        """The answer of a take is staged."""
        self._beginning[wid] = take

    def begun(self, wid: str, take: Take, number: int) -> None:
        """A take was answered."""
        del self._beginning[wid]
        if take.caller is None:
            self._held.pop(wid, None)
        else:
            self._held[wid] = Stream(number, take.caller, take.ident)
        waiting = self._waiting.get(wid)
        if waiting is not None:
            self._tell(wid, waiting)

    def failed(self, wid: str) -> Take | None:
        """The answer of a take was not committed. Returns the take that waits for it, which fails as well."""
        del self._beginning[wid]
        return self._waiting.pop(wid, None)

    def superseded(self, wid: str, last: int, number: int, caller: Hashable) -> bool:
        """Whether a stream is not the latest one, so that its moves are refused. `last` is the number of the latest one
        that has begun."""
        held = self._held.get(wid)
        return number < last or (held is not None and held.number == number and held.caller != caller)

    def moved(self, wid: str, number: int, caller: Hashable) -> None:
        """The latest stream has moved: it is at this gateway."""
        held = self._held.get(wid)
        if held is None or held.number < number:  # the stream is older than this process
            self._held[wid] = Stream(number, caller)

    def ended(self, wid: str, number: int) -> None:
        """A stream has ended, and its last moves are staged."""
        held = self._held.get(wid)
        if held is None or held.number != number:
            return
        del self._held[wid]
        if wid not in self._beginning and (take := self._waiting.pop(wid, None)) is not None:
            take.begin(take)

    # News

    def listen(self, request: Request[SessionNews], caller: Hashable, respond: Respond) -> None:
        """Answer with the streams of a gateway that have to end, or park the request."""
        news = self._news.pop(caller, None)
        if news is not None:
            respond(Reply(request.id, extra=SessionsTaken((*news.items(),))))
            return
        self._listeners[caller] = _Listener(request.id, respond, self._clock.monotonic())
        respond(Parked(request.id))

    def _tell(self, wid: str, take: Take) -> None:
        """Tell the stream of a session to end, because of a take that waits. The stream has begun, so the news does not
        overtake the answer of its take."""
        held = self._held.get(wid)
        take.deadline = self._clock.monotonic() + (TAKE_S if held is not None else 0)
        self._more()
        if held is None:
            return
        listener = self._listeners.pop(held.caller, None)
        if listener is None:
            self._news.setdefault(held.caller, {})[wid] = held.number
        else:
            listener.respond(Reply(listener.ident, extra=SessionsTaken(((wid, held.number),))))

    # Time and ends

    @property
    def next_due(self) -> float | None:
        """When `expire` has something to do, in monotonic seconds; None without takes that wait."""
        due = min((take.deadline for take in self._waiting.values()), default=inf)
        return None if due == inf else due

    def expire(self) -> bool:
        """Begin the streams that have waited for long enough. Returns whether there were any: what they staged has to
        be flushed."""
        now = self._clock.monotonic()
        due = [wid for wid, take in self._waiting.items() if take.deadline <= now]
        for wid in due:
            take = self._waiting.pop(wid)
            take.begin(take)
        return bool(due)

    def renew(self) -> None:
        """Answer the requests for news that have been parked for `NEWS_S`."""
        oldest = self._clock.monotonic() - NEWS_S
        for caller, listener in tuple(self._listeners.items()):
            if listener.since <= oldest:
                del self._listeners[caller]
                listener.respond(Reply(listener.ident, extra=SessionsTaken(())))

    def cancel(self, caller: Hashable, ident: int) -> None:
        """Drop a take or a request for news, which its asker has given up. If the answer to the take is on its way, the
        gateway ignores it, so the stream has ended."""
        listener = self._listeners.get(caller)
        if listener is not None and listener.ident == ident:
            del self._listeners[caller]
        self._drop(lambda each: (each.caller, each.ident) == (caller, ident))

    def forget(self, caller: Hashable) -> None:
        """A gateway is gone: its takes are dropped, and its streams have ended."""
        self._listeners.pop(caller, None)
        self._news.pop(caller, None)
        self._drop(lambda each: each.caller == caller)

    def _drop(self, its: Callable[[Take | Stream], bool]) -> None:
        for wid in [wid for wid, take in self._waiting.items() if its(take)]:
            del self._waiting[wid]
        for take in self._beginning.values():
            if its(take):
                take.caller = None
        for wid in [wid for wid, stream in self._held.items() if its(stream)]:
            self.ended(wid, self._held[wid].number)

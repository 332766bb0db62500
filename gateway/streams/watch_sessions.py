"""The client of watch sessions: opens sessions in their shards, and saves the positions of their streams.

Positions go to the shards in groups, every `SAVE_S`. Records sent after the last save are sent again if the gateway
dies, because no client can move a session forward. Positions of a shard that is down are kept until it is back.

A session has one stream at a time, at whichever gateway: its shard decides (`shardd.operations.session_streams`). A new
stream takes the session, which ends the old one, and begins at the position that the old one reached.

    1  The stream's task asks for the session (`take`). The answer has the number of the stream.
    2  While a shard's sessions have streams here, one request for news is parked in it (`_listen`).
    3  News that a stream has to end: it ends with a last event (`taken_over`).
    4  Its end goes to the shard with its last positions: at once if another stream waits for it, else with the next
       save.
    5  A save that the shard refuses ends a stream whose news was lost.

Answers to `take` and news are handled in the turn in which they arrive, so in the shard's order. News of a stream that
is not here are answered at once: its client left before the answer to its `take` came.

A shard's new process does not know which streams are here: they are named to it with the next save, and before a
session is taken again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Protocol

import msgspec
import structlog
import trio
from structlog.typing import FilteringBoundLogger

from gateway.shards.client import Shards
from gateway.streams.event_ids import Position
from gateway.streams.watch_request import Options
from proto.ipc.link import Link, Outcome
from proto.ipc.message import Parked, Reply
from proto.ipc.operations import (
    SessionFound,
    SessionMove,
    SessionNews,
    SessionOpen,
    SessionsMoved,
    SessionsTaken,
    SessionTake,
)
from proto.model.errors import ErrorCode, TopicsError
from proto.model.keys import Key
from proto.model.limits import Limits
from proto.model.names import WATCH_SESSION

SAVE_S = 0.25

_log: FilteringBoundLogger = structlog.get_logger()
_encode = msgspec.json.Encoder().encode

Moves = dict[str, Position]


class Streaming(Protocol):
    """The stream of a session."""

    def taken_over(self) -> None:
        """Another connection has opened the session."""

    def unknown(self) -> None:
        """The shard no longer knows the session."""


@dataclass(slots=True, eq=False)
class Progress:
    """One stream of a session, from the shard's answer to its take until the shard knows how it ended: the newest
    position of every topic that moved."""

    wid: str
    index: int
    """Of the session's shard."""
    number: int
    link: Link | None = None
    """The connection over which the shard has heard of the stream."""
    stream: Streaming | None = None
    """None before it begins, and after it has ended."""
    ended: bool = False
    end_untold: bool = False
    """It has ended, and its shard does not know it yet."""
    awaited: bool = False
    """Another stream waits for the end of this one."""
    generation: int = 0
    positions: Moves = field(default_factory=dict)
    untold: set[str] = field(default_factory=set)
    """The topics whose positions the shard does not know yet."""
    telling: int = 0
    """Number of saves in flight."""

    def begin(self, stream: Streaming) -> None:
        self.stream = stream
        if self.awaited:
            stream.taken_over()

    def follow(self, earlier: Progress) -> None:
        """Continue the progress of the stream before this one."""
        self.generation, self.positions = earlier.generation, dict(earlier.positions)
        if earlier.untold or earlier.telling:
            self.untold = set(self.positions)

    @property
    def told(self) -> bool:
        """Whether the shard knows everything."""
        return not self.untold and not self.telling and not self.end_untold

    def reached(self, topic: str, position: Position, generation: int) -> None:
        self.positions[topic] = position
        self.untold.add(topic)
        self.generation = max(self.generation, generation)

    def forget(self, topic: str) -> bool:
        """Forget a topic whose position is saved. Returns False if a save of it may be needed yet."""
        if self.telling or topic in self.untold:
            return False
        self.positions.pop(topic, None)
        return True


@dataclass(frozen=True, slots=True)
class _Save:
    """What one save has of a stream."""

    progress: Progress
    untold: set[str]
    end: bool


class Opened:
    """A session as stored in its shard. `prefix` is None for one that watches named topics only."""

    def __init__(self, found: SessionFound) -> None:
        self.prefix: str | None = found.options.get("prefix")
        self.heartbeat_ms = int(found.options["heartbeat_ms"])
        self.options = msgspec.convert(found.options, Options)
        self.topics = {name: Position(*position) for name, position in found.topics.items()}
        self.generation = found.generation


class Sessions:
    def __init__(self, shards: Shards, limits: Limits) -> None:
        self._shards = shards
        self._word_s = min(limits.watch_session_ttl_ms / 4000, 10.0)
        self._progress: dict[str, Progress] = {}
        """Of the last stream of each session here, until its shard knows how it ended."""
        self._listening: set[int] = set()
        """The shards in which a request for news is parked."""
        self._telling = 0
        self._all_told = trio.Event()

    def __len__(self) -> int:
        """The number of sessions that have a stream."""
        return sum(not progress.ended for progress in self._progress.values())

    # Opening

    async def look(self, wid: str, key: Key) -> Opened:
        """Return the session, for its owner. Raises `400`, `401`, `404`, `503`."""
        if WATCH_SESSION.fullmatch(wid) is None:
            # No shard makes wids of another form, so none needs to be asked.
            raise TopicsError(
                ErrorCode.NOT_FOUND, "there is no such watch session; make one with POST /v0/watch", {"wid": wid[:64]}
            )
        return Opened((await self._shards.call(SessionOpen(key.digest), wid)).found())

    async def take(self, wid: str, key: Key) -> tuple[Opened, Progress] | None:
        """Take a session for a new stream, after `look`. Waits until its stream, if it has one, has ended. Returns the
        session, and the progress in which the stream notes its positions: the caller passes it to `end`. None: another
        connection has taken the session meanwhile. Raises `401`, `404`, `503`."""
        index = self._shards.index_of(wid)
        if self._shards.returns(index):
            await self._shards.returned(index)
        earlier = self._progress.get(wid)
        if earlier is not None and earlier.link is not self._shards.links.current(index):
            self._save(index, [earlier])
            self._listen(index)
        taken: tuple[Opened, Progress] | TopicsError | None = None
        answered = trio.Event()

        def hear(outcome: Outcome[SessionFound]) -> None:
            nonlocal taken
            if isinstance(outcome, Parked):
                return
            answered.set()
            try:
                taken = self._taken(wid, outcome)
            except TopicsError as error:
                taken = error

        pending = self._shards.ask(index, SessionTake(key.digest), wid)
        pending.then(hear)
        try:
            await answered.wait()
        except trio.Cancelled:
            pending.abandon()
            if isinstance(taken, tuple):
                self.end(taken[1])
            raise
        if isinstance(taken, TopicsError):
            raise taken
        return taken

    def _taken(self, wid: str, outcome: Reply[SessionFound] | TopicsError) -> tuple[Opened, Progress] | None:
        if isinstance(outcome, TopicsError):
            raise outcome
        found = outcome.found()
        if not found.stream:
            return None
        index = self._shards.index_of(wid)
        opened, progress = Opened(found), Progress(wid, index, found.stream, self._shards.links.current(index))
        earlier = self._progress.get(wid)
        if earlier is not None and earlier.stream is not None:
            earlier.stream.taken_over()  # the shard did not wait for it
        if earlier is not None and earlier.number == found.previous:
            # The shard may not know everything of it, and no stream of another gateway came between.
            opened.generation = max(opened.generation, earlier.generation)
            opened.topics |= earlier.positions
            progress.follow(earlier)
        self._progress[wid] = progress
        self._listen(index)
        return opened, progress

    def end(self, progress: Progress) -> None:
        """A stream is over, or did not begin. Its shard hears of it with its last positions: soon, or at once if
        another stream waits for that."""
        progress.stream, progress.ended, progress.end_untold = None, True, True
        if progress.awaited:
            self._tell_end(progress)

    def _tell_end(self, progress: Progress) -> None:
        if progress.end_untold:
            self._save(progress.index, [progress])

    # News

    def _listen(self, index: int) -> None:
        """Park a request in a shard, which is answered when streams have to end."""
        if index in self._listening:
            return
        try:
            pending = self._shards.ask(index, SessionNews())
        except TopicsError:
            return  # the shard is down: it is asked again with the next save
        self._listening.add(index)
        pending.then(partial(self._hear, index))

    def _hear(self, index: int, outcome: Outcome[SessionsTaken]) -> None:
        if isinstance(outcome, Parked):
            return
        self._listening.discard(index)
        if isinstance(outcome, TopicsError) or outcome.extra is None or not outcome.extra.streams:
            return  # it is asked again with the next save, if there are streams
        for wid, number in outcome.extra.streams:
            self._to_end(index, wid, number)
        self._listen(index)

    def _to_end(self, index: int, wid: str, number: int) -> None:
        """Another stream waits for the end of this one."""
        progress = self._progress.get(wid)
        if progress is None or progress.number != number:
            self._save(index, [Progress(wid, index, number, ended=True, end_untold=True)])
            return
        progress.awaited = True
        if progress.stream is not None:
            progress.stream.taken_over()
        else:
            self._tell_end(progress)

    # Saving

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Save positions to the shards every `SAVE_S` until cancelled."""
        word_at = monotonic()
        task_status.started()
        while True:
            await trio.sleep(SAVE_S)
            word = monotonic() >= word_at
            if word:
                word_at = monotonic() + self._word_s
            self.tell(word=word)

    def tell(self, *, word: bool = False) -> None:
        """Send unsaved positions and ends to the shards without waiting; with `word`, also tell them that each stream
        runs.

        A failed save is repeated with the positions of that later time, so an older position never follows a newer one.
        """
        links = [self._shards.links.current(index) for index in range(len(self._shards.states))]
        by_shard: dict[int, list[Progress]] = {}
        streaming: set[int] = set()
        for progress in self._progress.values():
            if not progress.ended:
                streaming.add(progress.index)
            link = links[progress.index]
            unnamed = link is not None and link is not progress.link
            if progress.untold or progress.end_untold or ((word or unnamed) and not progress.ended):
                by_shard.setdefault(progress.index, []).append(progress)
        for index, told in by_shard.items():
            self._save(index, told)
        for index in streaming:
            self._listen(index)

    def _save(self, index: int, told: Sequence[Progress]) -> None:
        moves = {
            each.wid: (
                each.generation,
                {topic: each.positions[topic] for topic in each.untold},
                each.number,
                each.ended,
            )
            for each in told
        }
        try:
            pending = self._shards.ask(index, SessionMove(), body=_encode(moves))
        except TopicsError:
            return  # the shard is down
        saves = [_Save(each, each.untold, each.end_untold) for each in told]
        for each in told:
            each.untold, each.end_untold = set(), False
            each.telling += 1
            each.link = self._shards.links.current(index)
        self._telling += 1
        pending.then(partial(self._heed, index, saves))

    async def told(self) -> None:
        """Wait until no save is in flight."""
        while self._telling:
            self._all_told = trio.Event()
            await self._all_told.wait()

    def _heed(self, index: int, saves: Sequence[_Save], outcome: Outcome[SessionsMoved]) -> None:
        if isinstance(outcome, Parked):
            return
        self._telling -= 1
        self._all_told.set()
        # There is none if the shard has not replied, or could not save.
        heard = outcome.extra if isinstance(outcome, Reply) else None
        for save in saves:
            progress = save.progress
            progress.telling -= 1
            if heard is None:
                progress.untold |= save.untold
                progress.end_untold |= save.end
            if progress.ended and progress.told and self._progress.get(progress.wid) is progress:
                del self._progress[progress.wid]
        if heard is None:
            return
        streams = {save.progress.wid: save.progress.stream for save in saves}
        for wid in heard.unknown:
            if (stream := streams[wid]) is not None:
                _log.info("watch_session_gone", shard=index)
                stream.unknown()
        for wid in heard.superseded:
            if (stream := streams[wid]) is not None:
                stream.taken_over()

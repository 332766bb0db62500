"""The client of watch sessions: makes and opens sessions in their shards, and saves the positions of their streams.

Positions go to the shards in groups, every `SAVE_S`. Records sent after the last save are sent again if the gateway
dies, because no client can move a session forward. Positions of a shard that is down are kept until it is back.

A session has at most one stream. A new stream ends the old one and begins at the position that it reached.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from time import monotonic
from typing import Protocol, TypeVar

import msgspec
import structlog
import trio
from structlog.typing import FilteringBoundLogger

from gateway.admission.slots import fair
from gateway.contract.auth import Keyring
from gateway.shards.client import Shards
from gateway.streams.event_ids import Position
from gateway.streams.watch_request import Options
from proto.ipc.link import Pending
from proto.ipc.message import Reply
from proto.ipc.operations import SessionCount, SessionFound, SessionMake, SessionMove, SessionOpen, SessionsMoved
from proto.ipc.operations import Sessions as SessionsTold
from proto.model.errors import ErrorCode, TopicsError, cap_reached
from proto.model.keys import Key
from proto.model.limits import Limits
from proto.model.names import WATCH_SESSION

SAVE_S = 0.25
WID_BYTES = 16

_log: FilteringBoundLogger = structlog.get_logger()
_encode = msgspec.json.Encoder().encode

Moves = dict[str, Position]
T = TypeVar("T", SessionsTold, SessionFound)


class Progress:
    """The progress of one session: the newest position of every topic that moved. `untold` are the topics that its
    shard does not know yet; `telling` counts the saves in flight."""

    __slots__ = ("generation", "positions", "telling", "untold")

    def __init__(self) -> None:
        self.generation = 0
        self.positions: Moves = {}
        self.untold: set[str] = set()
        self.telling = 0

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


class Streaming(Protocol):
    """The stream of a session."""

    wid: str
    ended: trio.Event

    def taken_over(self) -> None:
        """Another connection has opened the session."""

    def unknown(self) -> None:
        """The shard no longer knows the session."""


class Opened:
    """A session as stored in its shard. `prefix` is None for one that watches named topics only."""

    def __init__(self, found: SessionFound) -> None:
        told = dict(found.options)
        self.prefix: str | None = told.pop("prefix", None)
        self.heartbeat_ms = int(told.pop("heartbeat_ms"))
        self.options = Options.from_map(told)
        self.topics = {name: Position(*position) for name, position in found.topics.items()}
        self.generation = found.generation


class Sessions:
    def __init__(self, shards: Shards, limits: Limits, keyring: Keyring) -> None:
        self._shards = shards
        self._keyring = keyring
        self._most = limits.max_watch_sessions
        self._most_owned = limits.max_watch_sessions_per_key
        self._word_s = min(limits.watch_session_ttl_ms / 4000, 10.0)
        self._counts: list[int | None] = [None] * len(shards.states)
        self._owned: dict[bytes, list[int | None]] = {}
        """For each key that made a session, its number of sessions in each shard's latest reply. Only this gateway adds
        sessions."""
        self._making = trio.Lock()
        self._streams: dict[str, Streaming] = {}
        self._progress: dict[str, Progress] = {}
        """Of the sessions that have a stream or unsaved positions."""
        self._turns: dict[str, trio.Lock] = {}
        self._nursery: trio.Nursery | None = None
        self._telling = 0
        self._all_told = trio.Event()

    def __len__(self) -> int:
        """The number of sessions that have a stream."""
        return len(self._streams)

    # Making

    async def make(
        self, key: Key, options: Options, heartbeat_ms: int, topics: Mapping[str, Position], prefix: str | None
    ) -> str:
        """Make a session and return its wid. Raises `429` when a cap on sessions is reached, and `503`."""
        wid = "wid_" + secrets.token_urlsafe(WID_BYTES)
        shown = {**options.as_map(), "heartbeat_ms": heartbeat_ms}
        if prefix is not None:
            shown["prefix"] = prefix
        body = _encode(topics)
        # Without keys, sessions have no owner, so the cap per key does not apply.
        bounds: list[tuple[str, int, list[int | None]]] = []
        if self._most:
            bounds.append(("most_sessions", self._most, self._counts))
        most_owned = fair(self._most, self._most_owned, self._keyring.several)
        if most_owned and key.digest:
            counts = self._owned.setdefault(key.digest, [None] * len(self._counts))
            bounds.append(("most_owned", most_owned, counts))
        if not bounds:
            self._heard(wid, await self._shards.call(SessionMake(key.digest, shown), wid, body))
            return wid
        async with self._making:
            if any(None in counts for _, _, counts in bounds):
                await self._count(key.digest)
            for last in (False, True):
                index = self._shards.index_of(wid)
                caps = {
                    name: most - sum(count or 0 for at, count in enumerate(counts) if at != index)
                    for name, most, counts in bounds
                }
                asked = SessionMake(key.digest, shown, **caps, most_per_key=most_owned)
                try:
                    self._heard(wid, await self._shards.call(asked, wid, body), key.digest)
                    return wid
                except TopicsError as error:
                    if last or error.code is not ErrorCode.THROTTLED:
                        raise
                # Sessions in the latest counts of the other shards may have ended meanwhile.
                await self._count(key.digest)
        raise cap_reached("max_watch_sessions", self._most, "wait until one ends")

    def _heard(self, wid: str, reply: Reply[T], owner: bytes = b"") -> T:
        if reply.error is not None:
            raise reply.error
        assert reply.extra is not None
        self._told(self._shards.index_of(wid), reply.extra, owner)
        return reply.extra

    def _told(self, index: int, extra: SessionsTold | SessionFound, owner: bytes) -> None:
        self._counts[index] = extra.sessions
        if owner in self._owned:
            self._owned[owner][index] = extra.owned

    async def _count(self, owner: bytes) -> None:
        """Ask the serving shards for their number of sessions, in all and of one key."""
        for index in range(len(self._counts)):
            try:
                pending = self._shards.ask(index, SessionCount(owner))
                try:
                    reply = await pending.reply()
                finally:
                    pending.abandon()
            except TopicsError:
                continue  # the shard is down: its latest count holds
            if reply.extra is not None:
                self._told(index, reply.extra, owner)

    # Opening

    def turn(self, wid: str) -> trio.Lock:
        """Return the lock of a session. The task that opens the session holds it until the stream is registered or
        refused."""
        return self._turns.setdefault(wid, trio.Lock())

    def turn_over(self, wid: str) -> None:
        lock = self._turns.get(wid)
        if lock is not None and not lock.statistics().tasks_waiting and not lock.locked():
            del self._turns[wid]

    async def look(self, wid: str, key: Key) -> Opened:
        """Return the session, for its owner. Raises `400`, `401`, `404`, `503`."""
        if WATCH_SESSION.fullmatch(wid) is None:
            # No shard makes wids of another form, so none needs to be asked.
            raise TopicsError(
                ErrorCode.NOT_FOUND, "there is no such watch session; make one with POST /v0/watch", {"wid": wid[:64]}
            )
        reply = await self._shards.call(SessionOpen(key.digest), wid)
        return Opened(self._heard(wid, reply))

    async def take(self, wid: str, key: Key) -> Opened:
        """Return the session after ending its stream, if it has one. Call it after `look`, with the lock held."""
        stream = self._streams.get(wid)
        if stream is not None:
            stream.taken_over()
            await stream.ended.wait()
        # Read before the shard is asked:
        # 1. Without progress now, the shard knows every position.
        # 2. With progress, the progress is newer than the shard's reply.
        # 3. If the shard gets it meanwhile, the progress is forgotten, but this reference stays valid.
        progress = self._progress.get(wid)
        opened = await self.look(wid, key)
        if progress is not None:
            opened.generation = max(opened.generation, progress.generation)
            opened.topics |= progress.positions
        return opened

    def begin(self, stream: Streaming) -> Progress:
        """Register a session's stream. Returns the progress in which the stream notes its positions."""
        self._streams[stream.wid] = stream
        return self._progress.setdefault(stream.wid, Progress())

    def end(self, stream: Streaming) -> None:
        """Unregister a stream that is over. Positions that its shard does not know yet are saved soon."""
        if self._streams.get(stream.wid) is stream:
            del self._streams[stream.wid]
            self._forget(stream.wid)

    def _forget(self, wid: str) -> None:
        progress = self._progress.get(wid)
        if progress is not None and wid not in self._streams and not progress.untold and not progress.telling:
            del self._progress[wid]

    # Saving

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Save positions to the shards every `SAVE_S` until cancelled."""
        word_at = monotonic()
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                await trio.sleep(SAVE_S)
                word = monotonic() >= word_at
                if word:
                    word_at = monotonic() + self._word_s
                self.tell(word=word)

    def tell(self, *, word: bool = False) -> None:
        """Send unsaved positions to the shards without waiting; with `word`, also tell them that each stream runs.

        A failed save is repeated with the positions of that later time, so an older position never follows a newer one.
        """
        by_shard: dict[int, dict[str, tuple[int, Moves]]] = {}
        for wid, progress in self._progress.items():
            if progress.untold or (word and wid in self._streams):
                moves = {topic: progress.positions[topic] for topic in progress.untold}
                by_shard.setdefault(self._shards.index_of(wid), {})[wid] = (progress.generation, moves)
        for index, told in by_shard.items():
            try:
                pending = self._shards.ask(index, SessionMove(), body=_encode(told))
            except TopicsError:
                continue  # the shard is down
            for wid in told:
                progress = self._progress[wid]
                progress.untold = set()
                progress.telling += 1
            self._telling += 1
            assert self._nursery is not None
            self._nursery.start_soon(self._heed, index, told, pending)

    async def told(self) -> None:
        """Wait until no save is in flight."""
        while self._telling:
            self._all_told = trio.Event()
            await self._all_told.wait()

    async def _heed(self, index: int, told: dict[str, tuple[int, Moves]], pending: Pending[SessionsMoved]) -> None:
        reply: Reply[SessionsMoved] | None = None
        try:
            reply = await pending.reply()
        except TopicsError:
            pass  # the shard stopped serving before it replied
        finally:
            self._telling -= 1
            self._all_told.set()
        heard = reply.extra if reply is not None else None
        for wid, (_, moves) in told.items():
            progress = self._progress[wid]
            progress.telling -= 1
            if heard is None:
                progress.untold |= moves.keys()
            self._forget(wid)
        if heard is None:
            return
        self._counts[index] = heard.sessions
        for wid in heard.unknown:
            stream = self._streams.get(wid)
            if stream is not None:
                _log.info("watch_session_gone", shard=index)
                stream.unknown()

"""Tailing topics: a watch that resumes automatically after every loss of its connection or session.

    the stream breaks or ends, or the service is away    the same session again, with the id of the last frame
    the service is away when a batch is committed        the next batch, whose commit stores both
    the session is gone (404, or an error frame 410)      a new session from the positions
    no frame came since the session was made              a new session: the old one may have sent what was lost
    a topic is gone when a session is made again          `TopicDeleted`

A position is the seq up to which frames came. Records and gaps at or below it are dropped, so none is given twice.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Literal, Self, TypedDict, TypeVar

import anyio
import httpx

from topics_client.connection import Connection, Pauses, segment
from topics_client.errors import CursorNotFound, GapError, NotFound, TopicNotFound, TopicsError, Unavailable
from topics_client.items import Gap, Record, TopicDeleted
from topics_client.payloads import decoder
from topics_client.reading import Gaps, typed

log = logging.getLogger("topics_client")
COMMIT_S = 10.0
"""How long a tail that ends by an error or a cancellation takes to store its cursor."""

Item = Record | Gap | TopicDeleted
I_co = TypeVar("I_co", bound=Item, covariant=True)
Commit = Literal["auto", "manual"]
Topics = str | Sequence[str] | Mapping[str, int | None]


class TailOptions(TypedDict, total=False):
    """Options of a tail. `node` is that of the reader, whose own records are left out; `type` is that of the data."""

    prefix: str | None
    from_seq: int | None
    cursor: str | None
    commit: Commit
    node: str | None
    tags: bool
    meta: bool
    limit: int
    heartbeat_ms: int
    consistency: str | None
    type: Any


class EventLines:
    """The parser of `text/event-stream`: bytes in, `(event, id, data)` out. Comments and `retry` are passed over."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, str] = {}
        self._data: list[str] = []

    def feed(self, content: bytes) -> Iterator[tuple[str, str | None, str]]:
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            name, _, value = line.rstrip(b"\r").decode().partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                self._data.append(value)
            elif name in ("event", "id"):
                self._fields[name] = value
            elif not name and not value and self._data:
                yield self._fields.get("event", "message"), self._fields.get("id"), "\n".join(self._data)
                self._fields, self._data = {}, []


class Tail(AsyncIterator[I_co], Generic[I_co]):
    """An iterator of records as they are written, of one topic or of many. Use it as a context manager.

    `positions` says for each topic which item the iterator gave last. With a cursor, `commit` stores these positions:
    all items that were given are done. By itself, with `commit="auto"`, it stores after each batch and at the end of
    the context which items are done. An item is done when the next one is asked for. So the item in hand when a loop
    ends, by `break` or by an error, is not done: it is delivered again, unless `commit` was called.
    """

    def __init__(
        self,
        connection: Connection,
        topics: Topics,
        gaps: Gaps,
        *,
        prefix: str | None = None,
        from_seq: int | None = 0,
        cursor: str | None = None,
        commit: Commit = "auto",
        node: str | None = None,
        tags: bool = True,
        meta: bool = True,
        limit: int = 256,
        heartbeat_ms: int = 15_000,
        consistency: str | None = None,
        type: Any = None,
    ) -> None:
        self.positions: dict[str, int] = {}
        self._connection = connection
        named = [topics] if isinstance(topics, str) else topics
        self._start = dict(named) if isinstance(named, Mapping) else dict.fromkeys(named, from_seq)
        self._cursor = cursor
        self._auto = commit == "auto"
        self._gaps = gaps
        self._decode = decoder(connection.decode, type)
        self._in_hand: Item | None = None
        self._options = {"include_tags": tags, "include_meta": meta, "limit": limit, "node": node}
        self._options |= {"heartbeat_ms": heartbeat_ms, "consistency": consistency}
        self._prefix = prefix is not None
        if prefix is not None:
            if cursor is not None or from_seq:
                raise ValueError("a tail of a prefix has no cursor, and begins with the first records or the new ones")
            self._options |= {"prefix": prefix, "tail": from_seq is None}
        self._silence_s = 2 * heartbeat_ms / 1000 + 5
        self._received: dict[str, int] = {}
        self._committed: dict[str, int] = {}
        self._items: deque[Any] = deque()
        self._stream_url: str | None = None
        self._last_id: str | None = None
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._events = EventLines()
        self._pauses = Pauses(None, connection.service)
        self._begun = False
        self._opened = False

    async def __aenter__(self) -> Self:
        """Make the session, so that records written from now on are given."""
        await self._begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self._commit_done()
            else:
                with anyio.move_on_after(COMMIT_S, shield=True):
                    try:
                        await self._commit_done()
                    except TopicsError as error:  # the caller gets the error of its own
                        log.warning("cursor %s is not stored: %s", self._cursor, error)
        finally:
            await self.aclose()

    @property
    def seq(self) -> int:
        """The position, if one topic is tailed."""
        (position,) = self.positions.values()
        return position

    async def __anext__(self) -> I_co:
        if not (self.waiting or await self.fill()):
            raise StopAsyncIteration
        return self.take()

    @property
    def waiting(self) -> int:
        """Number of items that `take` has."""
        return len(self._items) if self._begun else 0

    async def fill(self) -> bool:
        """Wait for an item. Returns False at the end."""
        await self._begin()
        self._in_hand = None  # the caller asks for more, so all items are done
        while not self._items:
            self.positions = dict(self._received)
            if self._auto and self._cursor:
                try:
                    await self.commit()
                except TopicsError as error:
                    if not error.transient:
                        raise
                    log.warning("cursor %s is stored after a later batch: %s", self._cursor, error)
            if not self._received and not self._prefix:
                return False  # every topic is deleted
            await self._receive()
        return True

    def take(self) -> I_co:
        """The next item of those that wait. Raises `GapError`, `DecodeError`, `IndexError`."""
        item: I_co = self._items.popleft()
        self._in_hand = item
        if isinstance(item, Record):
            self.positions[item.topic] = item.seq
            return item if self._decode is None else typed(item, self._decode)
        if isinstance(item, TopicDeleted):
            self.positions.pop(item.topic, None)
            return item
        self.positions[item.topic] = item.seq
        if self._gaps == "raise":
            raise GapError(item)
        return item

    async def commit(self) -> None:
        """Store the positions under the cursor's name: all items that the iterator gave are done."""
        if self._cursor is None:
            raise ValueError("a tail without a cursor has nothing to commit to")
        self._in_hand = None
        await self._store(self._cursor, self.positions)

    async def _commit_done(self) -> None:
        """Store the positions before the item in hand."""
        if not (self._auto and self._cursor and self._begun):
            return
        done, item = dict(self.positions), self._in_hand
        if isinstance(item, Record | Gap):
            done[item.topic] = (item.first_seq if isinstance(item, Gap) else item.seq) - 1
        await self._store(self._cursor, done)

    async def _store(self, cursor: str, positions: Mapping[str, int]) -> None:
        for topic, seq in sorted(positions.items() - self._committed.items()):
            path = f"/v0/topics/{segment(topic)}/cursors/{segment(cursor)}"
            try:
                await self._connection.call("PUT", path, {"seq": seq})
            except TopicsError as error:
                recreated = error.detail.get("head_seq", seq) < seq  # the topic of this name ends before the cursor
                if not (recreated or isinstance(error, NotFound)):
                    raise
                log.info("%s was deleted, and its cursor %s with it", topic, cursor)
            self._committed[topic] = seq

    async def aclose(self) -> None:
        """Close the stream. The service forgets its session by itself."""
        response, self._response = self._response, None
        chunks, self._chunks = self._chunks, None
        if response is None or chunks is None:
            return
        with anyio.move_on_after(1, shield=True):
            await response.aclose()
            try:
                async for _ in chunks:  # generators inside generators end only if they are run to their end
                    pass
            except (httpx.HTTPError, RuntimeError):
                pass  # of the latter: a read that Ctrl-C interrupted is still waiting in them, and ends them itself

    async def _begin(self) -> None:
        if self._begun:
            return
        if self._cursor is not None:
            for topic in self._start:
                path = f"/v0/topics/{segment(topic)}/cursors/{segment(self._cursor)}"
                try:
                    self._start[topic] = (await self._connection.call("GET", path))["seq"]
                except CursorNotFound:
                    pass
        await self._make_session(self._start, lenient=False)
        self._begun = True
        self.positions = dict(self._received)
        # The service has no position of a new cursor that begins at the head: it is stored as the first one.
        self._committed = {topic: seq for topic, seq in self._received.items() if self._start.get(topic) is not None}

    async def _make_session(self, positions: Mapping[str, int | None], *, lenient: bool) -> None:
        topics = {topic: {"tail": True} if seq is None else {"from_seq": seq} for topic, seq in positions.items()}
        body = {"topics": topics, **self._options}
        try:
            told = await self._connection.call("POST", "/v0/watch", body, params={"lenient": lenient or None})
        except TopicNotFound:
            if not lenient:
                raise
            told = {"topics": {}}
        for topic in set(topics) - set(told["topics"]):
            self._deleted(topic)
        for topic, state in told["topics"].items():
            position = positions.get(topic)
            self._received[topic] = state["from_seq"] if position is None else position
        self._stream_url, self._last_id, self._opened = told.get("stream_url"), None, False
        if self._prefix:
            self._options["tail"] = False  # what a later session finds besides was made meanwhile

    def _deleted(self, topic: str) -> None:
        self._items.append(TopicDeleted(topic, self._received.pop(topic, 0)))

    def _lost(self, gap: Gap) -> None:
        """Take the part of a gap after the position: a session that was set back repeats it, and it may have grown."""
        position = self._received.get(gap.topic, 0)
        if gap.reason != "recreated":
            if gap.last_seq <= position:
                return
            gap = replace(gap, first_seq=max(gap.first_seq, position + 1))
        self._items.append(gap)
        self._received[gap.topic] = gap.seq

    async def _receive(self) -> None:
        """Read one chunk of the stream, open it if it is not, or wait after a failure."""
        try:
            if self._chunks is None and not await self._open():
                return
            assert self._chunks is not None
            content = await anext(self._chunks, b"")
            if not content:
                raise Unavailable("the stream ended")
            for event, identity, data in self._events.feed(content):
                self._take(event, self._connection.parsed(data))
                self._last_id = identity or self._last_id
            self._pauses.reset()
        except (TopicsError, httpx.TransportError) as failure:
            await self.aclose()
            error = failure if isinstance(failure, TopicsError) else Unavailable(f"{type(failure).__name__}: {failure}")
            if isinstance(failure, NotFound):
                self._stream_url = None
                error = Unavailable(f"the watch session is gone: {failure}")
            log.info("tail of %s goes on after: %s", ", ".join(self._received), error)
            await self._pauses.after(error)

    async def _open(self) -> bool:
        """Open the stream. False if no topic is left."""
        if self._stream_url is None or (self._opened and self._last_id is None):
            await self._make_session(dict(self._received), lenient=True)
        if self._stream_url is None:
            return False
        self._opened = True
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        self._response = await self._connection.open(self._stream_url, headers, silence_s=self._silence_s)
        self._events = EventLines()
        self._chunks = self._response.aiter_bytes()
        return True

    def _take(self, event: str, told: Any) -> None:
        """Take one frame: its items and the new position of its topic."""
        topic, code = told.get("topic", ""), told.get("code")
        if event == "error" and code in (404, 410):
            raise NotFound(str(told.get("error")))  # the session is gone
        if event == "error" and code != 429:
            pause = told.get("retry_after_ms")
            seconds = pause / 1000 if isinstance(pause, int) else None
            raise Unavailable(f"the stream ends with {code}: {told.get('error')}", retry_after=seconds)
        if event == "error":
            log.info("the service slows the tail down: %s", told.get("error"))
        elif topic not in self._received and not self._prefix:
            return
        elif event == "record":
            position = self._received.get(topic, 0)
            self._items.extend(Record.of(topic, each) for each in told["records"] if each["$seq"] > position)
            self._received[topic] = max(position, told["to_seq"])
        elif event == "tombstone":
            self._lost(Gap.of(topic, told))
        elif event == "topic-deleted":
            self._deleted(topic)

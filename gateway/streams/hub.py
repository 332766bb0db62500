"""The hub of live delivery: all streams, their feeds and sessions, and the timer they share."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import Any

import trio

from gateway.admission.body_budget import Budget
from gateway.contract.auth import Keyring
from gateway.http.messages import Gone, Request, Response, Write
from gateway.shards.client import Shards
from gateway.streams import event_ids
from gateway.streams.prefix_feeds import PrefixFeeds
from gateway.streams.session_caps import SessionCaps
from gateway.streams.sse import (
    CONTENT_TYPE,
    HEADERS,
    LAST_EVENT_ID,
    RETRY,
    TAKEN_OVER,
    EventStream,
    check_accept,
    error_frame,
)
from gateway.streams.stream import Stream
from gateway.streams.subscription import Item
from gateway.streams.topic_feed import TopicFeeds
from gateway.streams.watch_request import begun, described, heartbeat_of, options_of
from gateway.streams.watch_sessions import Opened, Sessions
from proto.api.requests import WatchRequest
from proto.model.errors import ErrorCode, TopicsError, shutting_down
from proto.model.keys import Key, check_name
from proto.model.limits import Limits
from proto.process.faults import faults

TICK_S = 0.2
ESTABLISH_S = 10.0
"""How long the opening of a stream waits for a shard that is starting."""


class Live:
    def __init__(
        self, shards: Shards, limits: Limits, keyring: Keyring, budget: Budget, *, several_gateways: bool = False
    ) -> None:
        self.keyring = keyring
        self.limits = limits
        self.shards = shards
        self.feeds = TopicFeeds(shards, limits, budget)
        self.names = PrefixFeeds(shards, limits)
        self.sessions = Sessions(shards, limits)
        self.session_caps = SessionCaps(shards, limits, keyring, several_gateways=several_gateways)
        self.streams: dict[Stream, None] = {}
        self._draining = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            self.feeds.nursery = self.names.nursery = nursery
            await nursery.start(self.sessions.run)
            task_status.started()
            while True:
                await trio.sleep(TICK_S)
                now = monotonic()
                for stream in tuple(self.streams):
                    try:
                        stream.tick(now)
                    except Exception:
                        # A bug in one stream must not end the others.
                        faults.failed("stream")
                        stream.abort()

    async def watch(self, asked: WatchRequest, key: Key, *, lenient: bool) -> dict[str, Any]:
        """Make a session and return the fields of the response. Raises `400`, `403`, `404`, `429`, `503`."""
        found = await begun(self.shards, asked.topics or {}, asked, key, self.limits, lenient=lenient)
        options = options_of(asked, self.limits)
        positions = {name: each.position for name, each in found.items()}
        wid = await self.session_caps.make(key, options, heartbeat_of(asked), positions, asked.prefix)
        return {
            "wid": wid,
            "stream_url": f"/v0/watch/{wid}",
            "session_ttl_ms": self.limits.watch_session_ttl_ms,
            "topics": described(found),
        }

    async def open(self, wid: str, request: Request, key: Key) -> Response:
        """Return the response that streams a session. Raises `400`, `401`, `403`, `404`, `503`, and `406` if nothing
        else is wrong."""
        last_event_id = request.header(b"last-event-id").decode("latin-1")
        if last_event_id:
            event_ids.check(last_event_id, LAST_EVENT_ID)
        opened = await self._found(wid, key)
        for name in opened.topics:
            check_name(key, name)  # the key may have changed since the session was made
        if last_event_id:
            event_ids.decode(last_event_id, opened.topics, opened.prefix, LAST_EVENT_ID)
        check_accept(request.header(b"accept"))
        return Response(
            200, content_type=CONTENT_TYPE, headers=HEADERS, live=partial(self._events, wid, key, last_event_id)
        )

    async def _found(self, wid: str, key: Key) -> Opened:
        """Return the session. Waits up to `ESTABLISH_S` for a shard that is starting, because a browser's EventSource
        never retries after an error status."""
        patience = monotonic() + ESTABLISH_S
        while True:
            try:
                return await self.sessions.look(wid, key)
            except TopicsError as error:
                if error.code is not ErrorCode.NOT_READY or monotonic() > patience:
                    raise
            await trio.sleep(TICK_S)

    async def _events(self, wid: str, key: Key, last_event_id: str, write: Write, gone: Gone) -> bool:
        """Stream a session until it ends. Returns True when it ended with a last frame, False when the client left."""
        try:
            taken = await self.sessions.take(wid, key)
        except TopicsError as error:
            return await self._refuse(error, write)
        if taken is None:
            await write(RETRY + error_frame(*TAKEN_OVER))
            return True
        opened, progress = taken
        try:
            try:
                stream = EventStream(self, key, opened, progress, last_event_id, write)
            except TopicsError as error:
                return await self._refuse(error, write)
            progress.begin(stream)
            self.admit(stream)
            await stream.run(gone)
        finally:
            self.sessions.end(progress)
        return not stream.gone

    async def _refuse(self, error: TopicsError, write: Write) -> bool:
        """End a stream before its first frame: the session, or its shard, has ended since `open`."""
        code = 410 if error.code is ErrorCode.NOT_FOUND else error.status
        await write(RETRY + error_frame(code, error.message))
        return True

    def admit(self, stream: Stream) -> None:
        """End a stream that begins while the service drains. To be called before it runs."""
        if self._draining:
            stream.end(self._farewell(stream))

    async def drain(self) -> None:
        """End every stream with a last frame, and tell the shards its last positions. Waits for both."""
        self._draining = True
        for stream in tuple(self.streams):
            stream.end(self._farewell(stream))
        while self.streams:
            await next(iter(self.streams)).ended.wait()
        self.sessions.tell()
        await self.sessions.told()

    def _farewell(self, stream: Stream) -> Item:
        error = shutting_down()
        stream.service_stops = True
        return stream.problem(error.status, error.message, retry_after_ms=error.retry_after_ms)

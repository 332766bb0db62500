"""`AsyncClient`: the operations of the service, for asyncio and trio."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Literal, Self, Unpack, cast, overload

from topics_client.connection import Connection, ConnectionOptions, segment
from topics_client.items import (
    CursorState,
    Gap,
    Match,
    NewRecord,
    Published,
    Record,
    RouterConfig,
    RouterState,
    TopicConfig,
    TopicDeleted,
    TopicState,
)
from topics_client.options import check
from topics_client.publishing import Publisher, PublishOptions
from topics_client.reading import Gaps, Reading, ReadOptions
from topics_client.tailing import Item, Tail, TailOptions, Topics
from topics_client.working import Handler, Leasing, Work, Worker

OnlyRecords = Literal["raise"]


class AsyncClient(Leasing):
    """A client of one service. Use it as a context manager, in one event loop.

    `token` is an API key. Missing arguments come from TOPICS_URL and TOPICS_TOKEN, or from a context of the command
    line: that in TOPICS_CONTEXT or the one in use, or `context`. Without any, the service is that on port 4000 here.

    `patience_s` is how long a request is repeated while the service is away or busy; an append that may have been
    carried out, at most 100 s, as topics forget its key after their idempotency window (120 s). `encode` makes values
    that JSON does not have into some that it has, and `decode(data, type)` makes values of a `type=`; by default they
    are `to_json` and `from_json`. `loads` parses answers: with `partial(json.loads, parse_float=Decimal)` of
    functools, numbers keep their digits. `transport` replaces that of httpx, in tests for example.
    """

    def __init__(self, url: str | None = None, token: str | None = None, **options: Unpack[ConnectionOptions]) -> None:
        check("AsyncClient", options, ConnectionOptions, "url", "token")
        self.connection = Connection(url, token, **options)
        self._call = self.connection.call

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self.connection.close()

    # -- records

    async def publish(
        self,
        topic: str,
        data: Any = None,
        *,
        records: Iterable[NewRecord | Mapping[str, Any]] | None = None,
        tag: str | None = None,
        meta: Mapping[str, Any] | None = None,
        delay_ms: int | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[PublishOptions],
    ) -> Published:
        """Append one record with `data`, or all of `records` in batches, one after the other.

        Each batch is written once, all of it or nothing. With an `idempotency_key` of the caller, the whole publish can
        be repeated with the same records. Raises `ValueError` if `records` is empty.
        """
        check("publish", options, PublishOptions, "data", "records", "tag", "meta", "delay_ms", "idempotency_key")
        given = [NewRecord(data, tag, None, meta, delay_ms)] if records is None else records
        return await Publisher(self.connection, topic, **options).publish(given, idempotency_key)

    def publisher(self, topic: str, *, linger_s: float | None = None, **options: Unpack[PublishOptions]) -> Publisher:
        """A context manager that gathers records into batches: `await publisher.send(data)`. Its end flushes.

        With `linger_s`, a batch that is not full is written that long after its first record.
        """
        check("publisher", options, PublishOptions, "linger_s")
        return Publisher(self.connection, topic, linger_s=linger_s, **options)

    @overload
    def read(self, topic: str, *, gaps: OnlyRecords = "raise", **options: Unpack[ReadOptions]) -> Reading[Record]: ...
    @overload
    def read(self, topic: str, *, gaps: Gaps, **options: Unpack[ReadOptions]) -> Reading[Record | Gap]: ...
    def read(self, topic: str, *, gaps: Gaps = "raise", **options: Unpack[ReadOptions]) -> Reading[Any]:
        """The records after `from_seq`, or after a named cursor, up to the head. A gap is raised or given."""
        check("read", options, ReadOptions, "gaps")
        return Reading(self.connection, topic, gaps, **options)

    @overload
    def tail(
        self, topics: Topics = (), *, gaps: OnlyRecords = "raise", **options: Unpack[TailOptions]
    ) -> Tail[Record | TopicDeleted]: ...
    @overload
    def tail(self, topics: Topics = (), *, gaps: Gaps, **options: Unpack[TailOptions]) -> Tail[Item]: ...
    def tail(self, topics: Topics = (), *, gaps: Gaps = "raise", **options: Unpack[TailOptions]) -> Tail[Any]:
        """Records as they are written, of one topic or of many.

        It begins after the named cursor, without one (or before its first commit) after `from_seq`; None means: only
        new records. A mapping gives each topic its own. `prefix` adds all topics so named, and later ones; no cursor.
        """
        check("tail", options, TailOptions, "gaps")
        return Tail(self.connection, topics, gaps, **options)

    async def delete_records(self, topic: str, *, before_seq: int | None = None, match: Match | None = None) -> int:
        """Delete records for good: those below `before_seq`, those with a tag, or those for which both hold."""
        body = {"before_seq": before_seq, "match": match}
        path = f"/v0/topics/{segment(topic)}/delete"
        # Repeated, a match alone would also delete what was written meanwhile.
        return int((await self._call("POST", path, body, repeat=before_seq is not None))["deleted"])

    # -- topics

    async def configure(self, topic: str, **config: Unpack[TopicConfig]) -> TopicConfig:
        """Create a topic, or change the fields of its configuration that are named. Returns the whole configuration."""
        told = await self._call("PUT", f"/v0/topics/{segment(topic)}", json.dumps(config).encode())
        return cast(TopicConfig, told["config"])

    async def state(self, topic: str, *, touch: bool = True) -> TopicState:
        params = None if touch else {"touch": False}
        return cast(TopicState, await self._call("GET", f"/v0/topics/{segment(topic)}", params=params))

    async def topics(self, prefix: str | None = None) -> list[TopicState]:
        return [cast(TopicState, each) async for each in self._pages("/v0/topics", "topics", {"prefix": prefix})]

    async def delete_topic(self, topic: str, *, if_empty: bool = False) -> bool:
        """Delete a topic and all its records; false if there is none (any more)."""
        params = {"if_empty": if_empty or None}
        return bool((await self._call("DELETE", f"/v0/topics/{segment(topic)}", params=params))["deleted"])

    # -- named cursors

    async def cursor(self, topic: str, name: str) -> CursorState:
        return cast(CursorState, await self._call("GET", f"/v0/topics/{segment(topic)}/cursors/{segment(name)}"))

    async def set_cursor(self, topic: str, name: str, seq: int, *, force: bool = False) -> CursorState:
        """Store a position. It moves forward only, unless `force` is given."""
        body = {"seq": seq, "force": force or None}
        return cast(CursorState, await self._call("PUT", f"/v0/topics/{segment(topic)}/cursors/{segment(name)}", body))

    async def cursors(self, topic: str) -> list[CursorState]:
        path = f"/v0/topics/{segment(topic)}/cursors"
        return [cast(CursorState, each) async for each in self._pages(path, "cursors", {})]

    async def delete_cursor(self, topic: str, name: str) -> bool:
        return bool((await self._call("DELETE", f"/v0/topics/{segment(topic)}/cursors/{segment(name)}"))["deleted"])

    # -- routers

    async def set_router(self, router: str, **config: Unpack[RouterConfig]) -> RouterState:
        """Forward records that are appended to `source` from now on to `dest`."""
        return cast(RouterState, await self._call("PUT", f"/v0/routers/{segment(router)}", json.dumps(config).encode()))

    async def router(self, router: str) -> RouterState:
        return cast(RouterState, await self._call("GET", f"/v0/routers/{segment(router)}"))

    async def routers(
        self, prefix: str | None = None, *, source: str | None = None, dest: str | None = None
    ) -> list[RouterState]:
        params = {"prefix": prefix, "source": source, "dest": dest}
        return [cast(RouterState, each) async for each in self._pages("/v0/routers", "routers", params)]

    async def delete_router(self, router: str) -> bool:
        return bool((await self._call("DELETE", f"/v0/routers/{segment(router)}"))["deleted"])

    # -- queues

    async def work(self, queue: str | Work, handler: Handler | None = None, **options: Any) -> None:
        """Work on a queue until SIGTERM, SIGINT or a cancellation: `work(queue, handler)`, or `work` of a `@worker`.

        `options` are the fields of `Work`: `concurrency`, `lease_ms`, `grace_s`, …
        """
        await self.worker(queue, handler, **options).run()

    def worker(self, queue: str | Work, handler: Handler | None = None, **options: Any) -> Worker:
        """The worker that `work` runs; its `stop` ends it."""
        if isinstance(queue, Work):
            if handler is not None or options:
                raise TypeError("a Work has its handler and its options")
            return Worker(self, queue)
        if handler is None:
            raise TypeError("a worker needs a handler")
        check("work", options, Work)
        return Worker(self, Work(queue, handler, **options))

    async def peek(self, queue: str, *, first_seq: int | None = None, max: int | None = None) -> list[dict[str, Any]]:
        """Look at jobs and their states without leasing any."""
        body = {"first_seq": first_seq, "max": max}
        return list((await self._call("POST", f"/v0/topics/{segment(queue)}/peek", body))["jobs"])

    async def redrive(
        self,
        topic: str,
        queue: str,
        *,
        first_seq: int | None = None,
        last_seq: int | None = None,
        match: Match | None = None,
        max: int | None = None,
    ) -> dict[str, Any]:
        """Send dead letters of a topic back to their queue. It is not repeated after an unknown outcome."""
        body = {"queue": queue, "first_seq": first_seq, "last_seq": last_seq, "match": match, "max": max}
        return dict(await self._call("POST", f"/v0/topics/{segment(topic)}/redrive", body, repeat=False))

    # --

    async def _pages(self, path: str, name: str, params: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        cursor = None
        while True:
            told = await self._call("GET", path, params={**params, "page_size": 1000, "cursor": cursor})
            for each in told[name]:
                yield each
            if not (cursor := told.get("next_cursor")):
                return

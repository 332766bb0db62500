"""The HTTP API, whichever server carries it: from a request to the answer.

Bodies of topic operations go to the topic's shard as they came, its JSON answer goes to the client as it came, with
`performance` added. Only lists, probes, metrics and the OpenAPI document are made here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import lru_cache
from time import perf_counter
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import structlog
import trio

from gateway import answers, exchange, lists, metrics, openapi, probes, sse, websocket
from gateway.access import EVERYBODY, Keyring, check_name, check_scope, restrictions
from gateway.budget import Budget
from gateway.encoding import SMALLEST_ANSWER, accepts_gzip, deflated, inflated
from gateway.flight import Flight
from gateway.http import Channel, ClientGone, Request, Response
from gateway.live import Live
from gateway.live_ws import Conversation
from gateway.operations import OPERATIONS, Body, Operation, QueryValue
from gateway.quota import Quota
from gateway.routers import Routers
from gateway.routes import Routes, defaults, parse_query
from gateway.shards import Shards
from gateway.slots import Bound, Slots
from gateway.subscription import decode_wish
from gateway.work import Work
from proto import trace
from proto.body import parse
from proto.errors import ErrorCode, TopicsError, invalid, shutting_down
from proto.keys import Key
from proto.limits import Limits
from proto.message import Reply
from proto.names import check_router, check_topic, is_router

MAX_INFLATED = 8
"""Compressed bodies that are held inflated at a time."""
MAX_PARAMETERS_BYTES = 1 << 20
"""What a compressed body may hold that brings no records. It may be kept for as long as a long poll waits."""

_log: Any = structlog.get_logger()
_Options = dict[str, QueryValue]
_Handler = Callable[[Request, Key, _Options, float], Awaitable[Response]]


@lru_cache(256)
def is_json(content_type: bytes) -> bool:
    """Whether a Content-Type says JSON in UTF-8: `application/json`, with no charset or `utf-8`, in any case."""
    essence, *parameters = [part.strip().lower() for part in content_type.split(b";")]
    if essence != b"application/json":
        return False
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"charset" and value.strip().strip(b'"') not in (b"utf-8", b"utf8"):
            return False
    return True


class Api:
    def __init__(
        self,
        shards: Shards,
        flight: Flight,
        limits: Limits,
        keyring: Keyring,
        budget: Budget,
        *,
        probe_auth: bool = False,
    ) -> None:
        self.in_flight = Slots(None, Bound("max_inflight_per_key", limits.max_inflight_per_key))
        self.streams = Slots(
            Bound("max_sse_connections", limits.max_sse_connections),
            Bound("max_sse_connections_per_key", limits.max_sse_connections_per_key),
        )
        self._keyring = keyring
        self._limits = limits
        self._budget = budget
        self._inflated = trio.Semaphore(MAX_INFLATED)
        self._probe_auth = probe_auth
        self.quota = Quota(shards, limits)
        self._routers = Routers(shards, self.quota, limits)
        self.live = Live(shards, limits)
        self.work = Work(shards, limits)
        self.witnesses: list[exchange.Witness] = []
        """Who looks on; each is told of every request."""
        self.protocols: list[Callable[[], metrics.Protocol]] = []
        """Of the protocols besides HTTP: what they have to show."""
        self._shards = shards
        self._flight = flight
        self._routes = Routes(OPERATIONS)
        self._defaults = {operation.name: defaults(operation) for operation in OPERATIONS}
        self._operations = {operation.name: operation for operation in OPERATIONS}
        self._served: Counter[tuple[str, int]] = Counter()
        self._scraper = metrics.Scraper(shards, limits.metrics_max_topics)
        self._local: dict[str, _Handler] = {
            "list_topics": self._list_topics,
            "list_cursors": self._list_cursors,
            "put_router": self._put_router,
            "get_router": self._get_router,
            "list_routers": self._list_routers,
            "delete_router": self._delete_router,
            "watch": self._watch,
            "watch_stream": self._watch_stream,
            "websocket": self._websocket,
            "work": self._work,
            "health": self._health,
            "ready": self._ready,
            "metrics": self._metrics,
            "openapi": self._openapi,
        }
        for operation in OPERATIONS:
            assert operation.shard_op or operation.name in self._local, f"nobody handles {operation.name}"

    async def handle(self, request: Request) -> Response:
        """The answer; errors become answers here. Raises `ClientGone` when there is nobody to answer."""
        started = perf_counter()
        name = "none"
        timed: float | None = None
        operation: Operation | None = None
        if (header := request.headers.get(trace.HEADER)) is not None:
            request.traceparent = trace.valid(header)
            trace.begin(request.traceparent)
        try:
            operation, values = self._routes.find(request.method, request.path)
            name = operation.name
            if operation.timed:
                timed = started
            response = await self._serve(operation, values, request, started)
        except TopicsError as error:
            if operation is not None and operation.event_stream and sse.retries(error, request.header(b"accept")):
                response = sse.come_back(error)
            else:
                response = answers.failure(error, timed)
        except ClientGone:
            for each in self.witnesses:
                each.answered(exchange.of(request, operation, exchange.CLIENT_GONE, started))
            raise
        except Exception:
            _log.exception("request_failed", operation=name)
            response = answers.failure(answers.internal(), timed)
        self._served[name, response.status] += 1
        if len(response.body) >= SMALLEST_ANSWER:
            headers = [*response.headers, (b"vary", b"Accept-Encoding")]
            if accepts_gzip(request.headers.get(b"accept-encoding", b"")):
                response.body = await deflated(response.body)
                headers.append((b"content-encoding", b"gzip"))
            response.headers = tuple(headers)
        if self.witnesses:
            exchange.witnessed(response, exchange.of(request, operation, response.status, started), self.witnesses)
        return response

    def refused(self, error: TopicsError) -> None:
        """What came over a connection could not be read as a request, and this is its answer."""
        for each in self.witnesses:
            now = perf_counter()
            each.answered(exchange.Exchange("", "", error.status, now, now))

    async def _serve(self, operation: Operation, values: list[str], request: Request, started: float) -> Response:
        if self._flight.draining and not operation.always:
            raise shutting_down()
        key = self._admit(operation, request)
        topic = check_topic(values[0]) if "{topic}" in operation.path else ""
        router = check_router(values[0]) if "{router}" in operation.path else ""
        if topic or router:
            check_name(key, topic or router)
        options: _Options = self._defaults[operation.name]
        if request.query and operation.query:
            options = parse_query(operation, request.query)
        if len(values) > 1:
            options = {**options, "cursor": values[1]}
        if not operation.shard_op:
            if topic:
                options = {**options, "topic": topic}
            elif values:
                options = {**options, "router" if router else "wid": values[0]}
            return await self._local[operation.name](request, key, options, started)
        body, packed = b"", False
        if operation.body is not Body.NONE:
            body, packed = await self._body(operation, request)
            if operation.name == "append" and b"idempotency-key" in request.headers:
                options = {**options, "idempotency_key": _text(request.headers[b"idempotency-key"], "Idempotency-Key")}
        if packed:
            # What is inflated was not counted when it came in, so only a few such bodies are held at a time. The place
            # is taken when all of a body is here, and not for as long as a long poll waits.
            limit = self._limits.max_body_bytes
            async with self._inflated:
                body = await inflated(body, limit if operation.grows else min(limit, MAX_PARAMETERS_BYTES))
                _check_present(operation, body)
                if operation.grows:
                    return await self._forward(operation, topic, key, options, body, request, started)
        return await self._forward(operation, topic, key, options, body, request, started)

    async def _forward(
        self,
        operation: Operation,
        topic: str,
        key: Key,
        options: _Options,
        body: bytes,
        request: Request,
        started: float,
    ) -> Response:
        if operation.name == "delete_topic":
            reply = await self._routers.delete_topic(topic, options, key)
        elif operation.grows:
            reply = await self.quota.call(operation.shard_op, topic, options | restrictions(key, operation), body)
        else:
            reply = await self._shards.call(operation.shard_op, topic, options, body, request.disconnected)
        if reply.error is not None:
            return answers.failure(reply.error, started, reply.performance)
        return answers.success(reply, started)

    def _admit(self, operation: Operation, request: Request) -> Key:
        """The key that asks, allowed to, and with a slot in hand. Raises `401`, `403`, `429`."""
        if operation.scope is None:
            if operation.probe and self._probe_auth:
                self._keyring.identify(request.header(b"authorization"))
            return EVERYBODY
        authorization = request.header(b"authorization")
        if operation.event_stream and not authorization and request.query:
            authorization = token_of(request.query)
        key = request.key = self._keyring.identify(authorization)
        request.slot = (self.streams if operation.streams else self.in_flight).take(key)
        check_scope(key, operation.scope)
        return key

    async def _body(self, operation: Operation, request: Request) -> tuple[bytes, bool]:
        """The body as it came, and whether it is compressed."""
        body, packed = b"", False
        if request.has_body:
            content_type = request.headers.get(b"content-type", b"")
            if not is_json(content_type):
                raise _unsupported(f"Content-Type must be application/json, not {_shown(content_type)}")
            encoding = request.headers.get(b"content-encoding", b"identity").lower()
            if encoding not in (b"identity", b"gzip", b"x-gzip"):
                raise _unsupported(f"Content-Encoding {_shown(encoding)} is not understood; send gzip, or as it is")
            body = await request.body()
            request.received_bytes = len(body)
            packed = encoding != b"identity"
        _check_present(operation, body)
        return body, packed

    async def _list_topics(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        size = lists.page_size(int(options["page_size"]))
        after = lists.decode_cursor(str(options["cursor"])) if options["cursor"] else ""
        asked: dict[str, Any] = {
            "prefix": options["prefix"],
            "after": after,
            "page_size": size,
            "touch": options["touch"],
        }
        if key.prefixes:
            asked["prefixes"] = list(key.prefixes)
        replies = await self._shards.ask_all("list", asked)
        page = Reply(0, lists.merge_pages("topics", replies, size))
        return answers.success(page, started)

    async def _watch(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        body, packed = await self._body(_WATCH, request)
        if packed:
            async with self._inflated:
                body = await inflated(body, min(self._limits.max_body_bytes, MAX_PARAMETERS_BYTES))
        made = await self.live.watch(parse(decode_wish, body), key, lenient=bool(options["lenient"]))
        return answers.success(Reply(0, msgspec.json.encode(made)), started)

    async def _watch_stream(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        return await self.live.open(str(options["wid"]), request, key)

    async def _work(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        return await self.work.open(str(options["topic"]), options, request)

    async def _websocket(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        if request.upgrade != b"websocket" or request.method != "GET" or request.has_body:
            raise websocket.not_an_upgrade()
        if self._keyring.open:
            websocket.check_origin(request.headers)
        answer, connection = websocket.accept(request.path, request.headers)

        async def converse(channel: Channel) -> None:
            socket = websocket.WebSocket(connection, channel, key, self._limits, self._budget)
            await Conversation(self.live, self._shards, self.quota, socket).run()

        return Response(101, answer, upgraded=converse)

    async def _list_cursors(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        size = lists.page_size(int(options["page_size"]))
        after = lists.decode_cursor(str(options["cursor"]), bool) if options["cursor"] else ""
        reply = await self._shards.call("cursor_list", str(options["topic"]), {"after": after, "page_size": size}, b"")
        if reply.error is not None:
            raise reply.error
        return answers.success(Reply(0, lists.merge_pages("cursors", [reply], size)), started)

    async def _put_router(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        body, packed = await self._body(self._operations["put_router"], request)
        if packed:
            body = await inflated(body, MAX_PARAMETERS_BYTES)
        return answers.success(await self._routers.put(str(options["router"]), body, key), started)

    async def _get_router(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        return answers.success(await self._routers.get(str(options["router"]), key), started)

    async def _delete_router(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        return answers.success(await self._routers.delete(str(options["router"]), key), started)

    async def _list_routers(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        size = lists.page_size(int(options["page_size"]))
        after = lists.decode_cursor(str(options["cursor"]), is_router) if options["cursor"] else ""
        asked: dict[str, Any] = {**options, "after": after, "page_size": size}
        if key.prefixes:
            asked["prefixes"] = list(key.prefixes)
        replies = await self._shards.ask_all("router_list", asked)
        return answers.success(Reply(0, lists.merge_pages("routers", replies, size)), started)

    async def _health(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        return probes.health()

    async def _ready(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        return probes.ready(self._shards, draining=self._flight.draining)

    async def _metrics(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        stats = await self._scraper.stats(key)
        shards = self._shards
        snapshot = metrics.Snapshot(
            phases=[state.phase for state in shards.states],
            serving=[shards.serving(state.index) for state in shards.states],
            progress=shards.progress,
            counters=shards.counters,
            shard_stats=stats,
            draining=self._flight.draining,
            requests=self._served,
            in_flight=self._flight.count,
            streams=self.streams.open,
            protocols=[each() for each in self.protocols],
            max_topics=self._limits.metrics_max_topics,
            incarnations=[state.incarnation for state in shards.states],
        )
        if b"application/json" in request.header(b"accept").lower():
            return Response(200, metrics.json(snapshot))
        return Response(200, metrics.text(snapshot), metrics.TEXT)

    async def _openapi(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        return Response(200, openapi.rendered())


def token_of(query: str) -> bytes:
    """The key in a query, `token=…`, as an Authorization header; the first one if there are more."""
    found = [value for name, value in parse_qsl(query, keep_blank_values=True) if name == "token"]
    return b"Bearer " + found[0].encode() if found else b""


_WATCH = next(operation for operation in OPERATIONS if operation.name == "watch")


def _check_present(operation: Operation, body: bytes) -> None:
    if not body and operation.body is Body.REQUIRED:
        raise invalid("the request needs a JSON body")


def _unsupported(message: str) -> TopicsError:
    return TopicsError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, message)


def _shown(value: bytes) -> str:
    return repr(value[:64].decode("latin-1")) if value else "absent"


def _text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid(f"header {what} is not UTF-8") from None

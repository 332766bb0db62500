"""The HTTP API: turns a request of any server into its response.

The bodies of topic operations go to the topic's shard unchanged. The shard's JSON reply goes to the client unchanged,
with `performance` added. The gateway itself makes only lists, probes, metrics and the OpenAPI document.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
import trio
from msgspec import Struct

from gateway.admission.body_budget import FREE_BYTES, Budget
from gateway.admission.in_flight import Flight
from gateway.admission.slots import Bound, Slots, fair
from gateway.api import health, pagination
from gateway.api.plan import Plan, remembered
from gateway.api.router_graph import Routers
from gateway.contract import openapi, responses
from gateway.contract.auth import (
    EVERYBODY,
    UNPROVEN,
    Keyring,
    check_name,
    check_scope,
    key_is_gone,
    restrictions,
    unauthorized,
)
from gateway.contract.operations import OPERATIONS, Body, Operation, QueryValue
from gateway.contract.origins import Origins
from gateway.contract.routes import Routes, defaults, parse_query
from gateway.contract.tickets import TTL_S, Tickets, check_form
from gateway.http import upgrade
from gateway.http.chunked_body import too_large
from gateway.http.gzip_coding import MAX_RATIO, SMALLEST_ANSWER, accepts_gzip, deflated, inflated
from gateway.http.messages import Channel, ClientGone, Request, Response
from gateway.observe import exchange, metrics
from gateway.observe.audit import Audit
from gateway.observe.history import Recorder
from gateway.shards.client import Shards
from gateway.shards.quota import Quota
from gateway.streams import asyncapi, sse
from gateway.streams.hub import Live
from gateway.streams.job_stream import Work
from gateway.streams.watch_request import WATCH_REQUEST
from proto.api.requests import TicketRequest
from proto.ipc.message import Reply
from proto.ipc.operations import (
    AllCursors,
    Configure,
    CursorList,
    CursorPut,
    DeleteTopic,
    Growing,
    LettersSent,
    ListTopics,
    RouterList,
)
from proto.ipc.operations import Operation as ShardOperation
from proto.model.body import Form
from proto.model.errors import ErrorCode, TopicsError, invalid, shutting_down
from proto.model.keys import Key
from proto.model.limits import DEFAULT_BATCH_BYTES, MAX_BATCH_BYTES, Limits
from proto.model.names import WATCH_SESSION, check_router, check_topic, is_cursor, is_place_of_cursor, is_router
from proto.model.surrogates import apply
from proto.process import trace
from proto.process.driven import in_task
from proto.process.faults import faults

if TYPE_CHECKING:
    from gateway.http.websocket import WebSocket

MAX_PARAMETERS_BYTES = 1 << 20
"""Largest body that the gateway parses, or that is compressed and brings no records."""

MAKING_S = 2.0
"""How long a claim's response waits for the dead-letter topics to be made."""

AUTH_S = 5.0
"""How long a client that opened a WebSocket without a key may take to send one."""
MAX_AUTH_BYTES = 8 << 10
MAX_UNPROVEN = 256
"""WebSockets open at a time without a key."""

_AT_ONCE = frozenset({"health", "ready", "metrics_history", "openapi", "asyncapi"})
"""The gateway's own operations that wait for nothing. All others of them run in a task."""

A = TypeVar("A")
_TICKET = Form(TicketRequest)
_Options = dict[str, QueryValue]
_Handler = Callable[[Request, Key, _Options, float], Awaitable[Response]]


@lru_cache(256)
def is_json(content_type: bytes) -> bool:
    """Whether a Content-Type means JSON in UTF-8: `application/json` with charset `utf-8` or none, in any case."""
    essence, *parameters = [part.strip().lower() for part in content_type.split(b";")]
    if essence != b"application/json":
        return False
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"charset" and value.strip().strip(b'"') not in (b"utf-8", b"utf8"):
            return False
    return True


class _Asked(Struct):
    max_batch_bytes: int | None = None


_decode_asked = msgspec.json.Decoder(_Asked).decode


def answer_bytes(body: bytes) -> int:
    """Return the most bytes that the response to a read may have, by the `max_batch_bytes` of its body."""
    try:
        asked = apply(_decode_asked, body)[0].max_batch_bytes if body else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        asked = None  # the shard refuses the body
    return min(asked if asked is not None and asked > 0 else DEFAULT_BATCH_BYTES, MAX_BATCH_BYTES)


class Api:
    audit: Audit | None = None

    def __init__(
        self,
        shards: Shards,
        flight: Flight,
        limits: Limits,
        keyring: Keyring,
        budget: Budget,
        *,
        probe_auth: bool = False,
        hosts: Sequence[str] = (),
        cors_origins: Sequence[str] = (),
    ) -> None:
        self.origins = Origins(open=keyring.open, hosts=hosts, origins=cors_origins)
        self.in_flight = Slots(None, Bound("max_inflight_per_key", limits.max_inflight_per_key))
        self.streams = Slots(
            Bound("max_sse_connections", limits.max_sse_connections),
            Bound("max_sse_connections_per_key", limits.max_sse_connections_per_key),
            lambda: keyring.several,
        )
        self.unproven = Slots(Bound("max_unauthenticated_sockets", MAX_UNPROVEN), Bound("", 0))
        self.tickets = Tickets(keyring, limits.max_tickets_per_key)
        self._keyring = keyring
        self._limits = limits
        self._budget = budget
        self._probe_auth = probe_auth
        self.quota = Quota(shards, limits)
        self._routers = Routers(shards, self.quota, limits)
        self.live = Live(shards, limits, keyring, budget)
        self.work = Work(shards, limits, keyring)
        self.observers: list[exchange.RequestObserver] = []
        """The observers: each sees every request."""
        self.protocols: list[Callable[[], metrics.Protocol]] = []
        """Functions that return the metrics of the other protocols."""
        self._shards = shards
        self._flight = flight
        self._routes = Routes(OPERATIONS)
        self._defaults = {operation.name: defaults(operation) for operation in OPERATIONS}
        self._operations = {operation.name: operation for operation in OPERATIONS}
        self._served: Counter[tuple[str, int]] = Counter()
        self.history = Recorder(shards, self._served)
        self._scraper = metrics.Scraper(shards, limits.metrics_max_topics)
        self._local = self._handlers()
        for operation in OPERATIONS:
            assert operation.shard_op or operation.name in self._local, f"no handler for {operation.name}"

    def _handlers(self) -> dict[str, _Handler]:
        """The operations that no single shard carries out, by name."""
        return {
            "list_topics": self._list_topics,
            "list_cursors": self._list_cursors,
            "list_all_cursors": self._list_all_cursors,
            "put_router": self._put_router,
            "get_router": self._get_router,
            "list_routers": self._list_routers,
            "delete_router": self._delete_router,
            "watch": self._watch,
            "watch_stream": self._watch_stream,
            "websocket": self._websocket,
            "make_ticket": self._make_ticket,
            "work": self._work,
            "health": self._health,
            "ready": self._ready,
            "metrics": self._metrics,
            "metrics_history": self._metrics_history,
            "openapi": self._openapi,
            "asyncapi": self._asyncapi,
        }

    async def handle(self, request: Request) -> Response:
        """Serve a request and return its response; errors become responses too. Raises `ClientGone` when the client
        left."""
        started = perf_counter()
        name = "none"
        if (header := request.headers.get(trace.HEADER)) is not None:
            request.traceparent = trace.valid(header)
            trace.begin(request.traceparent)
        plan = remembered(request, self.origins.rule, self._keyring.version)
        try:
            if plan is None:
                self.origins.check(request)
                if not self.origins.is_preflight(request):
                    operation, values = self._routes.find(request.method, request.path)
                    if operation.changes:
                        self.origins.check(request, changes=True)
                    plan = Plan(operation, values, self.origins.rule, self._keyring.version)
            if plan is not None:
                name = plan.operation.name
                response = await self._serve(plan, request, started)
            else:
                name = "preflight"
                response = self.origins.preflight(request, self._routes.methods(request.path))
        except TopicsError as error:
            response = _failure(error, plan, request, started)
        except ClientGone:
            self._audit(plan, request, exchange.CLIENT_GONE)
            for each in self.observers:
                each.answered(
                    exchange.of(request, None if plan is None else plan.operation, exchange.CLIENT_GONE, started)
                )
            raise
        except Exception:
            response = _failure(faults.failed(name), plan, request, started)
        self._served[name, response.status] += 1
        if self.audit is not None:
            self._audit(plan, request, response.status)
        if len(response.body) >= SMALLEST_ANSWER:
            request.hold_answer().set(len(response.body))
            headers = [*response.headers, (b"vary", b"Accept-Encoding")]
            if accepts_gzip(request.headers.get(b"accept-encoding", b"")):
                response.body = await deflated(response.body)
                headers.append((b"content-encoding", b"gzip"))
            response.headers = tuple(headers)
        self.origins.tell(request, response)
        if self.observers:
            exchange.observed(
                response,
                exchange.of(request, None if plan is None else plan.operation, response.status, started),
                self.observers,
            )
        return response

    def _audit(self, plan: Plan | None, request: Request, status: int) -> None:
        if self.audit is None:
            return
        operation, names = (plan.operation, plan.values) if plan is not None else (None, [])
        self.audit.answered(operation, names, request, status)

    def refused(self, error: TopicsError) -> None:
        """Tell the observers that a connection answered `error` to bytes that are no valid request."""
        for each in self.observers:
            now = perf_counter()
            each.answered(exchange.Exchange("", "", error.status, now, now))

    async def _serve(self, plan: Plan, request: Request, started: float) -> Response:
        operation = plan.operation
        if self._flight.draining and not operation.always:
            raise shutting_down()
        if plan.key is None:
            key = self._admit(operation, request)
            self._check(plan, key, request)
        else:
            key = plan.key
            if operation.scope is not None:
                request.key = key
                request.slot = self.in_flight.take(key)
        if not operation.shard_op:
            if operation.name not in _AT_ONCE:
                await in_task()
            elif request.plan is not plan:
                self._remember(request, plan)
            return await self._local[operation.name](request, key, plan.options, started)
        body, packed = b"", False
        if operation.body is not Body.NONE:
            body, packed = await self._body(operation, request, plan)
        if plan.asked is None:
            plan.asked = self._asked(plan, request)
            self._remember(request, plan)
        if packed:
            limit = self._limits.max_body_bytes
            body = await self._inflated(request, body, limit if operation.grows else min(limit, MAX_PARAMETERS_BYTES))
            _check_present(operation, body)
        return await self._forward(plan, key, body, request, started)

    def _asked(self, plan: Plan, request: Request) -> ShardOperation[Any]:
        """Return what the shard is asked for. Raises `400`."""
        operation, options = plan.operation, plan.options
        assert operation.shard_op is not None
        assert plan.key is not None
        if operation.name == "append" and b"idempotency-key" in request.headers:
            options = {**options, "idempotency_key": _text(request.headers[b"idempotency-key"], "Idempotency-Key")}
        key = plan.key
        asked: ShardOperation[Any] = operation.shard_op(*(restrictions(key) if operation.grows else ()), **options)
        if isinstance(asked, CursorPut) and key.digest:
            most = fair(self._limits.max_cursors_per_topic, 0, self._keyring.several)
            return CursorPut(asked.cursor, key.id, most)
        return asked

    def _remember(self, request: Request, plan: Plan) -> None:
        """Have the plan serve requests with an equal head, unless the keys changed while the body was read."""
        if plan.keys == self._keyring.version:
            request.remember(plan)

    def _check(self, plan: Plan, key: Key, request: Request) -> None:
        """Check the names in a path and the query, and set them in the plan. Raises `400`, `403`."""
        operation, values = plan.operation, plan.values
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
        plan.key, plan.topic, plan.options = key, topic, options

    async def _inflated(self, request: Request, body: bytes, limit: int) -> bytes:
        """Decompress a body. Until its size is known, the budget counts the most that it can be. Raises `400`, `413`,
        `429`."""
        hold = request.hold_body()
        await hold.grow(len(body) + min(limit, MAX_RATIO * len(body)))
        body = await inflated(body, limit)
        hold.set(len(body))
        return body

    async def _parameters(self, operation: Operation, request: Request) -> bytes:
        """Read a body that the gateway parses. It may be small only, because Python objects take many times the memory
        of their JSON."""
        body, packed = await self._body(operation, request)
        most = min(self._limits.max_body_bytes, MAX_PARAMETERS_BYTES)
        if packed:
            return await self._inflated(request, body, most)
        if len(body) > most:
            raise too_large(most)
        return body

    async def _forward(self, plan: Plan, key: Key, body: bytes, request: Request, started: float) -> Response:
        operation, topic, asked = plan.operation, plan.topic, plan.asked
        assert asked is not None
        reply: Reply
        if isinstance(asked, Growing):
            reply = await self.quota.call(asked, topic, body)
        elif operation.name == "delete_topic":
            await in_task()
            reply = await self._routers.delete_topic(topic, DeleteTopic(bool(plan.options["if_empty"])), key)
        elif operation.records:
            reply = await self._read(operation, topic, key, asked, body, request)
            if isinstance(reply.extra, LettersSent):
                await in_task()
                await self._make(reply.extra.dead_letters)
        else:
            reply = await self._shards.call(asked, topic, body, request.disconnected)
        if reply.error is not None:
            return responses.failure(reply.error, started, reply.performance)
        return responses.success(reply, started)

    async def _read(
        self, operation: Operation, topic: str, key: Key, asked: ShardOperation[A], body: bytes, request: Request
    ) -> Reply[A]:
        """Ask for a reply that holds records. The budget reserves its bytes before the shard is asked; a parked request
        releases them and reserves them when its reply arrives. A parked request ends with its client or its key."""
        hold = request.hold_answer()
        most = answer_bytes(body)

        async def gone() -> None:
            with trio.CancelScope() as scope, self._keyring.while_known(key, scope.cancel):
                await request.disconnected()

        while True:
            await hold.grow(most)
            try:
                reply = await self._shards.call(asked, topic, body, gone, parked=hold.release)
            except ClientGone:
                if self._keyring.knows(key):
                    raise
                raise key_is_gone() from None
            if hold.size or operation.name != "diff" or len(reply.body) <= FREE_BYTES or hold.take(len(reply.body)):
                hold.set(len(reply.body))
                return reply
            # Many parked requests were answered at once, and the budget is full. A diff may be asked again; other
            # replies are kept, because their jobs are leased by now.

    async def _make(self, topics: Sequence[str]) -> None:
        """Make the topics that a claim's dead letters go to. The first letter would create its topic anyway, but the
        client of the claim may read the topic at once. Errors are ignored, because the claim itself succeeded."""
        with trio.move_on_after(MAKING_S):
            for topic in topics:
                with contextlib.suppress(TopicsError):
                    await self.quota.call(Configure(if_absent=True), topic, b"")

    def _admit(self, operation: Operation, request: Request) -> Key:
        """Return the request's key after checking its scope and taking a slot. Raises `400`, `401`, `403`, `429`."""
        if operation.scope is None:
            if operation.probe and self._probe_auth:
                self._keyring.identify(request.header(b"authorization"))
            return EVERYBODY
        authorization = request.header(b"authorization")
        ticket = parameter(request.query, "ticket") if operation.streams else ""
        if ticket:
            check_form(ticket)
        if operation.streams and not authorization and not self._keyring.open:
            token = parameter(request.query, "token")
            if ticket:
                return self._admitted(self.tickets.redeem(ticket, request.path), operation, request)
            if token and operation.event_stream:
                authorization = b"Bearer " + token.encode()
            elif not token and request.upgrade == b"websocket" and b"authorization" not in request.headers:
                request.slot = self.unproven.take(UNPROVEN)
                return UNPROVEN
        return self._admitted(self._keyring.identify(authorization), operation, request)

    def _admitted(self, key: Key, operation: Operation, request: Request) -> Key:
        assert operation.scope is not None
        request.key = key
        request.slot = (self.streams if operation.streams else self.in_flight).take(key)
        check_scope(key, operation.scope)
        return key

    async def _body(self, operation: Operation, request: Request, plan: Plan | None = None) -> tuple[bytes, bool]:
        """Return the body as received, and whether it is compressed. Raises `400`, `413`, `415`, `429`."""
        body, packed = b"", False
        if await request.has_body():
            if plan is None or plan.packed is None:
                packed = _packed(request)
                if plan is not None:
                    plan.packed = packed
            else:
                packed = plan.packed
            body = await request.body()
            request.received_bytes = len(body)
        _check_present(operation, body)
        return body, packed

    async def _list_topics(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        size = pagination.page_size(int(options["page_size"]))
        after = pagination.decode_cursor(str(options["cursor"])) if options["cursor"] else ""
        asked = ListTopics(size, after, str(options["prefix"]), key.prefixes, bool(options["touch"]))
        replies = await self._shards.ask_all(asked)
        page = Reply(0, pagination.merge_pages("topics", replies, size))
        return responses.success(page, started)

    async def _watch(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        asked, ignored = WATCH_REQUEST.read(await self._parameters(_WATCH, request))
        made = await self.live.watch(asked, key, lenient=bool(options["lenient"]))
        if ignored:
            made["ignored"] = ignored
        return responses.success(Reply(0, msgspec.json.encode(made)), started)

    async def _watch_stream(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        return await self.live.open(str(options["wid"]), request, key)

    async def _work(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        return await self.work.open(str(options["topic"]), options, request, key)

    async def _websocket(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        if request.upgrade != b"websocket" or request.method != "GET" or await request.has_body():
            raise upgrade.not_an_upgrade()
        from gateway.http import websocket  # loads wsproto, which no other request needs
        from gateway.streams.websocket_commands import Conversation

        answer, connection = websocket.accept(request.path, request.headers)

        def audited(name: str, names: list[str], status: int, grave: bool) -> None:
            if self.audit is not None:
                self.audit.answered(self._operations[name], names, request, status, grave=grave)

        async def converse(channel: Channel) -> None:
            socket = websocket.WebSocket(connection, channel, key, self._limits, self._budget)
            if key is UNPROVEN and not await self._prove(socket, request):
                return
            await Conversation(self.live, self._shards, self.quota, socket, audited).run()

        return Response(101, answer, upgraded=converse)

    async def _prove(self, socket: WebSocket, request: Request) -> bool:
        """Take the key from the first message of a socket; return whether it brought one. Otherwise, or after `AUTH_S`,
        close the socket."""
        from gateway.http.websocket import POLICY, TRY_LATER
        from gateway.streams.websocket_commands import prove, refusal

        try:
            try:
                with trio.fail_after(AUTH_S):
                    message = await socket.first(MAX_AUTH_BYTES)
                key, answer = prove(message, self._keyring)
                assert request.slot is not None
                request.slot.release()
                request.slot = self.streams.take(key)
            except trio.TooSlowError:
                raise unauthorized(f"no key came within {AUTH_S:g} s") from None
        except TopicsError as error:
            if self.audit is not None:
                self.audit.answered(self._operations["websocket"], [], request, error.status)
            with contextlib.suppress(OSError, ClientGone), trio.move_on_after(AUTH_S):
                await socket.send(refusal(error))
                again = error.code is ErrorCode.THROTTLED
                await socket.close(TRY_LATER if again else POLICY, error.code.value)
            return False
        except (OSError, ClientGone):
            return False
        request.key = key
        socket.belongs_to(key)
        with contextlib.suppress(OSError, ClientGone):
            await socket.send(answer)
            return True
        return False

    async def _make_ticket(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        asked, ignored = _TICKET.read(await self._parameters(self._operations["make_ticket"], request))
        path = asked.path.partition("?")[0]
        try:
            operation, values = self._routes.find("GET", path)
        except TopicsError as error:
            raise invalid(f"path: {error.message}", field="path") from None
        if not operation.streams:
            paths = ", ".join(each.path for each in OPERATIONS if each.streams)
            raise invalid(f"a ticket is for a stream or a WebSocket: {paths}", field="path")
        assert operation.scope is not None
        check_scope(key, operation.scope)
        if "{topic}" in operation.path:
            check_name(key, check_topic(values[0]))
        elif values and WATCH_SESSION.fullmatch(values[0]) is None:
            raise invalid("path: no watch session has this name", field="path")
        ticket = self.tickets.issue(key, path)
        answer: dict[str, Any] = {
            "ticket": ticket,
            "path": path,
            "url": f"{path}?ticket={ticket}",
            "ttl_ms": round(TTL_S * 1000),
        }
        if ignored:
            answer["ignored"] = ignored
        return responses.success(Reply(0, msgspec.json.encode(answer)), started)

    async def _list_cursors(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        size = pagination.page_size(int(options["page_size"]))
        after = pagination.decode_cursor(str(options["cursor"]), is_cursor) if options["cursor"] else ""
        reply = await self._shards.call(CursorList(size, after), str(options["topic"]))
        if reply.error is not None:
            raise reply.error
        return responses.success(Reply(0, pagination.merge_pages("cursors", [reply], size)), started)

    async def _list_all_cursors(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        size = pagination.page_size(int(options["page_size"]))
        after = pagination.decode_cursor(str(options["cursor"]), is_place_of_cursor) if options["cursor"] else ""
        replies = await self._shards.ask_all(AllCursors(size, after, str(options["prefix"]), key.prefixes))
        return responses.success(Reply(0, pagination.merge_pages("cursors", replies, size)), started)

    async def _put_router(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        body = await self._parameters(self._operations["put_router"], request)
        return responses.success(await self._routers.put(str(options["router"]), body, key), started)

    async def _get_router(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        return responses.success(await self._routers.get(str(options["router"]), key), started)

    async def _delete_router(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        return responses.success(await self._routers.delete(str(options["router"]), key), started)

    async def _list_routers(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        size = pagination.page_size(int(options["page_size"]))
        after = pagination.decode_cursor(str(options["cursor"]), is_router) if options["cursor"] else ""
        source, dest = str(options["source"]), str(options["dest"])
        asked = RouterList(size, after, str(options["prefix"]), key.prefixes, source, dest)
        replies = await self._shards.ask_all(asked)
        return responses.success(Reply(0, pagination.merge_pages("routers", replies, size)), started)

    async def _health(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        return health.health()

    async def _ready(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        return health.ready(self._shards, draining=self._flight.draining)

    async def _metrics(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        from gateway.observe import families  # loads prometheus_client, which no other request needs

        stats = await self._scraper.stats(key)
        shards = self._shards
        snapshot = metrics.Snapshot(
            phases=[state.phase for state in shards.states],
            serving=[shards.answering(state.index) for state in shards.states],
            hangs=[state.hangs for state in shards.states],
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
        if metrics.as_json(request.header(b"accept")):
            return Response(200, families.json(snapshot) + b"\n")
        return Response(200, families.text(snapshot), metrics.TEXT)

    async def _metrics_history(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        return Response(200, msgspec.json.encode(self.history.answer()) + b"\n")

    async def _openapi(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        text = openapi.rendered(self._limits, keys=not self._keyring.open, probe_auth=self._probe_auth)
        return Response(200, text + b"\n")

    async def _asyncapi(self, request: Request, key: Key, options: _Options, started: float) -> Response:
        return Response(200, asyncapi.rendered(self._limits, keys=not self._keyring.open) + b"\n")


def parameter(query: str, name: str) -> str:
    """Return the first value of a query parameter, "" when it is absent."""
    if name not in query:
        return ""
    return next((value for each, value in parse_qsl(query, keep_blank_values=True) if each == name), "")


_WATCH = next(operation for operation in OPERATIONS if operation.name == "watch")


def _failure(error: TopicsError, plan: Plan | None, request: Request, started: float) -> Response:
    if plan is None:
        return responses.failure(error, None)
    if plan.operation.event_stream and sse.retries(error, request.header(b"accept")):
        return sse.come_back(error)
    return responses.failure(error, started if plan.operation.timed else None)


def _packed(request: Request) -> bool:
    """Whether the body is compressed, by its headers. Raises `415`."""
    content_type = request.headers.get(b"content-type", b"")
    if not is_json(content_type):
        raise _unsupported(f"Content-Type must be application/json, not {_shown(content_type)}")
    encoding = request.headers.get(b"content-encoding", b"identity").lower()
    if encoding not in (b"identity", b"gzip", b"x-gzip"):
        raise _unsupported(f"Content-Encoding {_shown(encoding)} is not understood; send gzip, or as it is")
    return encoding != b"identity"


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

"""The operations that open streams, or make what opens one: watch sessions, streams of jobs, tickets."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.api.plan import Handler, Plan
from gateway.api.tickets import Tickets
from gateway.contract.auth import check_scope
from gateway.contract.operations import OPERATIONS
from gateway.contract.routes import Routes
from gateway.http.messages import Request, Response
from gateway.streams.hub import Live
from gateway.streams.job_stream import Work
from gateway.streams.watch_request import WATCH_REQUEST
from proto.api.requests import TicketRequest
from proto.ipc.message import Reply
from proto.model.body import Form
from proto.model.errors import TopicsError, invalid
from proto.model.keys import check_name
from proto.model.limits import TICKET_TTL_S
from proto.model.names import WATCH_SESSION, check_topic

_TICKET = Form(TicketRequest)


class StreamRequests:
    def __init__(self, live: Live, work: Work, tickets: Tickets) -> None:
        self._live = live
        self._work = work
        self._tickets = tickets
        self._routes = Routes(OPERATIONS)
        self.handlers: dict[str, Handler] = {
            "watch": self._watch,
            "watch_stream": self._watch_stream,
            "work": self._jobs,
            "make_ticket": self._make_ticket,
        }

    async def _watch(self, plan: Plan, body: bytes, request: Request) -> Reply:
        asked, ignored = WATCH_REQUEST.read(body)
        made = await self._live.watch(asked, plan.key, lenient=bool(plan.options["lenient"]))
        if ignored:
            made["ignored"] = ignored
        return Reply(0, msgspec.json.encode(made))

    async def _watch_stream(self, plan: Plan, body: bytes, request: Request) -> Response:
        return await self._live.open(str(plan.options["wid"]), request, plan.key)

    async def _jobs(self, plan: Plan, body: bytes, request: Request) -> Response:
        return await self._work.open(plan.topic, plan.options, request, plan.key)

    async def _make_ticket(self, plan: Plan, body: bytes, request: Request) -> Reply:
        asked, ignored = _TICKET.read(body)
        path = asked.path.partition("?")[0]
        try:
            operation, values = self._routes.find("GET", path)
        except TopicsError as error:
            raise invalid(f"path: {error.message}", field="path") from None
        if not operation.streams:
            paths = ", ".join(each.path for each in OPERATIONS if each.streams)
            raise invalid(f"a ticket is for a stream or a WebSocket: {paths}", field="path")
        assert operation.scope is not None
        check_scope(plan.key, operation.scope)
        if "{topic}" in operation.path:
            check_name(plan.key, check_topic(values[0]))
        elif values and WATCH_SESSION.fullmatch(values[0]) is None:
            raise invalid("path: no watch session has this name", field="path")
        ticket = await self._tickets.make(plan.key, path)
        answer: dict[str, Any] = {
            "ticket": ticket,
            "path": path,
            "url": f"{path}?ticket={ticket}",
            "ttl_ms": round(TICKET_TTL_S * 1000),
        }
        if ignored:
            answer["ignored"] = ignored
        return Reply(0, msgspec.json.encode(answer))

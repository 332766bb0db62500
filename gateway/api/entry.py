"""The second step of a request: whose key it has, and whether that key may do what it asks for now.

The checks have this order: draining, the key, its slot, its scopes, the names in the path, the query. A request with a
plan that was admitted before takes its slot only.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from gateway.admission.in_flight import Flight
from gateway.admission.slots import Bound, SharedSlots, Slots
from gateway.api.plan import Plan
from gateway.api.tickets import Tickets, check_form
from gateway.contract.auth import EVERYBODY, UNPROVEN, Keyring, check_scope
from gateway.contract.operation import Operation
from gateway.contract.operations import OPERATIONS
from gateway.contract.routes import defaults, parse_query
from gateway.http.messages import Request
from proto.ipc.gateway_page import Column, Row
from proto.model.errors import shutting_down
from proto.model.keys import Key, Scope, check_name
from proto.model.limits import Limits
from proto.model.names import check_router, check_topic

MAX_UNPROVEN = 256
"""WebSockets open at a time without a key."""


class Entry:
    def __init__(
        self,
        flight: Flight,
        keyring: Keyring,
        tickets: Tickets,
        limits: Limits,
        *,
        probe_auth: bool = False,
        row: Row | None = None,
    ) -> None:
        """`row` is this gateway's in the page of several gateways."""

        def slots(total: Bound | None, per_key: Bound, total_in: Column | None, keys_in: Column | None) -> Slots:
            if row is None:
                return Slots(total, per_key, lambda: keyring.several)
            return SharedSlots(total, per_key, lambda: keyring.several, row, total_in, keys_in)

        each = Bound("max_inflight_per_key", limits.max_inflight_per_key)
        self.requests = slots(None, each, None, Column.KEY_REQUESTS)
        self.streams = slots(
            Bound("max_sse_connections", limits.max_sse_connections),
            Bound("max_sse_connections_per_key", limits.max_sse_connections_per_key),
            Column.STREAMS,
            Column.KEY_STREAMS,
        )
        unproven = Bound("max_unauthenticated_sockets", MAX_UNPROVEN)
        self.unproven = slots(unproven, Bound("", 0), Column.UNPROVEN, None)
        self._flight = flight
        self._keyring = keyring
        self._tickets = tickets
        self._probe_auth = probe_auth
        self._defaults = {operation.name: defaults(operation) for operation in OPERATIONS}

    async def redeem(self, request: Request) -> Key | None:
        """Return the key of the ticket that a request for a stream has in place of a key, for `admit`; None if it has
        none. Raises `400`, `401`, `429`, `503`."""
        ticket = parameter(request.query, "ticket")
        if not ticket or self._flight.draining:
            return None
        check_form(ticket)
        if not request.headers.get(b"authorization", b"") and not self._keyring.open:
            return await self._tickets.use(ticket, request.path)
        return None

    def admit(self, plan: Plan, request: Request, holder: Key | None = None) -> None:
        """Set in the plan whose key asks for what, and take a slot. `holder` is the key of a ticket. Raises `400`,
        `401`, `403`, `429`, `503`."""
        operation = plan.operation
        if self._flight.draining and not operation.always:
            raise shutting_down()
        if plan.admitted:
            if operation.scope is not None:
                request.key = plan.key
                request.slot = self.requests.take(plan.key)
            return
        if operation.scope is not None:
            plan.key = self._holder(operation, operation.scope, request, holder)
        else:
            if operation.probe and self._probe_auth:
                self._keyring.identify(request.headers.get(b"authorization", b""))
            plan.key = EVERYBODY
        self._check(plan, request)
        plan.admitted = True

    def _holder(self, operation: Operation, scope: Scope, request: Request, holder: Key | None) -> Key:
        """Return the request's key after taking a slot for it and checking its scope."""
        if holder is not None:
            key = holder
        elif operation.streams:
            key = self._holder_of_stream(operation, request)
            if key is UNPROVEN:
                request.slot = self.unproven.take(key)
                return key
        else:
            key = self._keyring.identify(request.headers.get(b"authorization", b""))
        request.key = key
        request.slot = (self.streams if operation.streams else self.requests).take(key)
        check_scope(key, scope)
        return key

    def _holder_of_stream(self, operation: Operation, request: Request) -> Key:
        """Return the key of a stream, which may come in the query or in a first message."""
        authorization = request.headers.get(b"authorization", b"")
        if not authorization and not self._keyring.open:
            token = parameter(request.query, "token")
            if token and operation.event_stream:
                authorization = b"Bearer " + token.encode()
            elif not token and request.upgrade == b"websocket" and b"authorization" not in request.headers:
                return UNPROVEN
        return self._keyring.identify(authorization)

    def _check(self, plan: Plan, request: Request) -> None:
        """Check the names in the path and the query, and set them in the plan."""
        operation, values = plan.operation, plan.values
        topic = check_topic(values[0]) if "{topic}" in operation.path else ""
        router = check_router(values[0]) if "{router}" in operation.path else ""
        if topic or router:
            check_name(plan.key, topic or router)
        options = self._defaults[operation.name]
        if request.query and operation.query:
            options = parse_query(operation, request.query)
        if len(values) > 1:
            options = {**options, "cursor": values[1]}
        if not operation.shard_op:
            if topic:
                options = {**options, "topic": topic}
            elif values:
                options = {**options, "router" if router else "wid": values[0]}
        plan.topic, plan.options = topic, options


def parameter(query: str, name: str) -> str:
    """Return the first value of a query parameter, "" when it is absent."""
    if name not in query:
        return ""
    return next((value for each, value in parse_qsl(query, keep_blank_values=True) if each == name), "")

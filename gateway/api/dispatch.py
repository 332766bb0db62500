"""The HTTP API: turns a request of any server into its response, in five steps.

    recognition    Request → Plan                   which operation it asks for; or a plan of an equal head
    entry          Plan → admitted Plan             whose key it has, whether that may do so, a slot
    bodies         Plan → bytes                     the body, decompressed
    forwarding     Plan, bytes → Reply or Response  the topic's shard, or a handler of the gateway
    rendering      Reply → Response                 JSON with `performance`, compressed

Each step is a module here and takes what the one before it returned. The first error ends the way and becomes the
response. What an operation needs of a step stands in its row (`gateway.contract.operations`). `outcomes` counts,
audits and shows how each request ended.

The bodies of topic operations go to the topic's shard unchanged. The shard's JSON reply goes to the client unchanged,
with `performance` added. The gateway itself makes only lists, probes, metrics and documents, in the modules whose
`handlers` are the table of operations that no single shard carries out.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from gateway.admission.body_budget import Budget
from gateway.admission.in_flight import Flight
from gateway.api import rendering
from gateway.api.bodies import Bodies
from gateway.api.entry import Entry
from gateway.api.forwarding import Forwarding
from gateway.api.lists import Lists
from gateway.api.outcomes import Outcomes
from gateway.api.plan import Handler
from gateway.api.recognition import Recognition
from gateway.api.router_requests import RouterRequests
from gateway.api.service import Service
from gateway.api.sockets import Sockets
from gateway.api.stream_requests import StreamRequests
from gateway.api.tickets import Tickets
from gateway.contract.auth import Keyring
from gateway.contract.operations import OPERATIONS
from gateway.contract.origins import Origins
from gateway.http.gzip_coding import SMALLEST_ANSWER
from gateway.http.known_heads import KnownHeads
from gateway.http.messages import ClientGone, Request, Response
from gateway.shards.client import Shards
from gateway.streams.hub import Live
from gateway.streams.job_stream import Work
from proto.ipc.gateway_page import Row
from proto.model.errors import TopicsError
from proto.model.limits import Limits
from proto.process import trace
from proto.process.faults import faults


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
        hosts: Sequence[str] = (),
        cors_origins: Sequence[str] = (),
        row: Row | None = None,
    ) -> None:
        self.flight = flight
        self.limits = limits
        self.budget = budget
        self.heads = KnownHeads()
        keyring.on_change.append(self.heads.forget)
        self.origins = Origins(open=keyring.open, hosts=hosts, origins=cors_origins)
        tickets = Tickets(shards, keyring)
        self.live = Live(shards, limits, keyring, budget, several_gateways=row is not None)
        self.work = Work(shards, limits, keyring, budget)
        self.outcomes = Outcomes()
        self.recognition = Recognition(self.origins, keyring)
        self.entry = Entry(flight, keyring, tickets, limits, probe_auth=probe_auth, row=row)
        self.bodies = Bodies(limits)
        streams, outcomes = self.entry.streams, self.outcomes
        self.service = Service(
            shards, flight, keyring, limits, outcomes, streams, probe_auth=probe_auth, several=row is not None
        )
        handlers: dict[str, Handler] = {
            **Lists(shards).handlers,
            **RouterRequests(shards).handlers,
            **StreamRequests(self.live, self.work, tickets).handlers,
            **Sockets(self.live, budget, outcomes, streams).handlers,
            **self.service.handlers,
        }
        assert handlers.keys() == {operation.name for operation in OPERATIONS if operation.shard_op is None}
        self.forwarding = Forwarding(shards, keyring, limits, handlers)

    async def handle(self, request: Request) -> Response:
        """Serve a request and return its response; errors become responses too. Raises `ClientGone` when the client
        left."""
        started = perf_counter()
        name, plan = "none", None
        if (header := request.headers.get(trace.HEADER)) is not None:
            request.traceparent = trace.valid(header)
            trace.begin(request.traceparent)
        try:
            plan = self.recognition.recognise(request)
            if plan is None:
                name = "preflight"
                response = self.recognition.preflight(request)
            else:
                name = plan.operation.name
                streams = plan.operation.streams
                self.entry.admit(plan, request, await self.entry.redeem(request) if streams else None)
                body = b"" if plan.operation.request is None else await self.bodies.read(plan, request)
                response = rendering.rendered(await self.forwarding.forward(plan, body, request), started)
        except TopicsError as error:
            response = rendering.failed(error, plan, request, started)
        except ClientGone:
            self.outcomes.gone(plan, request, started)
            raise
        except Exception:
            response = rendering.failed(faults.failed(name), plan, request, started)
        if plan is not None and self.forwarding.several:
            self.forwarding.tell_holder(plan, response)
        self.outcomes.count(name, plan, request, response.status)
        if len(response.body) >= SMALLEST_ANSWER:
            await rendering.compress(response, request)
        if self.origins.rule.origins:
            self.origins.tell(request, response)
        if self.outcomes.observers:
            self.outcomes.tell(plan, request, response, started)
        return response

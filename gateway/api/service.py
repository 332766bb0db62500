"""The operations that tell about the service itself: probes, metrics and the documents of its API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic

import msgspec

from gateway.admission.in_flight import Flight
from gateway.admission.slots import Slots
from gateway.api import health
from gateway.api.outcomes import Outcomes
from gateway.api.plan import Handler, Plan
from gateway.contract import openapi
from gateway.contract.auth import Keyring
from gateway.http.messages import Request, Response
from gateway.observe import metrics
from gateway.observe.colleagues import Colleagues
from gateway.observe.history import Recorder
from gateway.shards.client import Shards
from gateway.streams import asyncapi
from proto.ipc.gateway_figures import GatewayFigures, ProtocolFigures, served
from proto.model.limits import Limits
from proto.process.faults import faults


class Service:
    def __init__(
        self,
        shards: Shards,
        flight: Flight,
        keyring: Keyring,
        limits: Limits,
        outcomes: Outcomes,
        streams: Slots,
        *,
        probe_auth: bool,
        several: bool,
    ) -> None:
        self.several = several
        """Whether the service has several gateways."""
        self.colleagues = Colleagues(self.figures)
        self.history = Recorder(shards, outcomes.served, self._others)
        self.protocols: list[Callable[[], ProtocolFigures]] = []
        """Functions that return the metrics of the other protocols."""
        self._shards = shards
        self._flight = flight
        self._keyring = keyring
        self._limits = limits
        self._outcomes = outcomes
        self._streams = streams
        self._probe_auth = probe_auth
        self._started = monotonic()
        self._scraper = metrics.Scraper(shards, self.colleagues, limits.metrics_max_topics)
        self.handlers: dict[str, Handler] = {
            "health": self._health,
            "ready": self._ready,
            "metrics": self._metrics,
            "metrics_history": self._metrics_history,
            "openapi": self._openapi,
            "asyncapi": self._asyncapi,
        }

    def figures(self) -> GatewayFigures:
        """What this gateway counts."""
        return GatewayFigures(
            gateways=1,
            requests=[(*key, number) for key, number in self._outcomes.served.items()],
            internal_errors=dict(faults.counts),
            in_flight=self._flight.count,
            streams=self._streams.open,
            uptime_ms=self._uptime_ms,
            protocols=[each() for each in self.protocols],
        )

    @property
    def _uptime_ms(self) -> int:
        return round((monotonic() - self._started) * 1000)

    async def _others(self) -> Mapping[tuple[str, int], int]:
        """The requests that other gateways have served."""
        return served((await self.colleagues.ask())[1])

    async def _health(self, plan: Plan, body: bytes, request: Request) -> Response:
        return health.health(self._uptime_ms)

    async def _ready(self, plan: Plan, body: bytes, request: Request) -> Response:
        return health.ready(self._shards, draining=self._flight.draining)

    async def _metrics(self, plan: Plan, body: bytes, request: Request) -> Response:
        from gateway.observe import families  # loads prometheus_client, which no other request needs

        stats, counted, gateways = await self._scraper.scrape(plan.key)
        shards = self._shards
        snapshot = metrics.Snapshot(
            states=shards.states,
            serving=[shards.answering(state.index) for state in shards.states],
            progress=shards.links.progress,
            counters=shards.counted,
            shard_stats=stats,
            counted=counted,
            draining=self._flight.draining,
            gateways=gateways,
            several_gateways=self.several,
            max_topics=self._limits.metrics_max_topics,
            members=[(each.node, each.address) for each in shards.machines if each.address],
            holders=[shards.holder(state.index) for state in shards.states] if shards.machine else (),
        )
        if metrics.as_json(request.header(b"accept")):
            return Response(200, families.json(snapshot) + b"\n")
        return Response(200, families.text(snapshot), metrics.TEXT)

    async def _metrics_history(self, plan: Plan, body: bytes, request: Request) -> Response:
        return Response(200, msgspec.json.encode(self.history.answer()) + b"\n")

    async def _openapi(self, plan: Plan, body: bytes, request: Request) -> Response:
        text = openapi.rendered(self._limits, keys=not self._keyring.open, probe_auth=self._probe_auth)
        return Response(200, text + b"\n")

    async def _asyncapi(self, plan: Plan, body: bytes, request: Request) -> Response:
        return Response(200, asyncapi.rendered(self._limits, keys=not self._keyring.open) + b"\n")

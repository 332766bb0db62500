"""The outcomes of requests: counted for the metrics, written to the audit log, and told to the observers."""

from __future__ import annotations

from collections import Counter
from time import perf_counter

from gateway.api.plan import Plan
from gateway.contract.operation import Operation
from gateway.http.messages import Request, Response
from gateway.observe import exchange
from gateway.observe.audit import Audit
from proto.model.errors import TopicsError


class Outcomes:
    def __init__(self) -> None:
        self.audit: Audit | None = None
        self.observers: list[exchange.RequestObserver] = []
        """The observers: each sees every request."""
        self.served: Counter[tuple[str, int]] = Counter()
        """Requests by name of their operation and status."""

    def count(self, name: str, plan: Plan | None, request: Request, status: int) -> None:
        """Count a response, and write it to the audit log."""
        self.served[name, status] += 1
        if self.audit is not None:
            self._write(self.audit, plan, request, status)

    def tell(self, plan: Plan | None, request: Request, response: Response, started: float) -> None:
        """Tell the observers of a response, and of its end if it is a stream."""
        exchange.observed(response, exchange.of(request, _operation(plan), response.status, started), self.observers)

    def gone(self, plan: Plan | None, request: Request, started: float) -> None:
        """Write and tell that a client left before its response."""
        if self.audit is not None:
            self._write(self.audit, plan, request, exchange.CLIENT_GONE)
        for each in self.observers:
            each.answered(exchange.of(request, _operation(plan), exchange.CLIENT_GONE, started))

    def refused(self, error: TopicsError) -> None:
        """Tell the observers that a connection answered `error` to bytes that are no valid request."""
        for each in self.observers:
            now = perf_counter()
            each.answered(exchange.Exchange("", "", error.status, now, now))

    @staticmethod
    def _write(audit: Audit, plan: Plan | None, request: Request, status: int) -> None:
        operation, names = (None, []) if plan is None else (plan.operation, plan.values)
        audit.answered(operation, names, request, status)


def _operation(plan: Plan | None) -> Operation | None:
    return None if plan is None else plan.operation

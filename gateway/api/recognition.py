"""The first step of a request: which operation it asks for, and whether its web page may use the service.

A request whose head equals an earlier one's has that one's plan, as long as it holds.
"""

from __future__ import annotations

from gateway.api.plan import Plan
from gateway.contract.auth import Keyring
from gateway.contract.operations import OPERATIONS
from gateway.contract.origins import Origins
from gateway.contract.routes import Routes
from gateway.http.messages import Request, Response


class Recognition:
    def __init__(self, origins: Origins, keyring: Keyring) -> None:
        self._origins = origins
        self._keyring = keyring
        self._routes = Routes(OPERATIONS)

    def recognise(self, request: Request) -> Plan | None:
        """Return the plan of a request, or None for a preflight request. Raises `400`, `403`, `404`, `405`."""
        rule, keys = self._origins.rule, self._keyring.version
        known: Plan | None = request.plan
        if known is not None and known.rule is rule and known.keys == keys:
            return known
        self._origins.check(request)
        if _is_preflight(request):
            return None
        operation, values = self._routes.find(request.method, request.path)
        if operation.changes:
            self._origins.check(request, changes=True)
        return Plan(operation, values, rule, keys)

    def preflight(self, request: Request) -> Response:
        """Return the response to a preflight request. Raises `400`, `403`, `404`."""
        return self._origins.preflight(request, self._routes.methods(request.path))


def _is_preflight(request: Request) -> bool:
    headers = request.headers
    return request.method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers

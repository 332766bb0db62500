"""What schemathesis loads beside its own checks: `SCHEMATHESIS_HOOKS=tests.support.schemathesis_hooks`."""

from __future__ import annotations

import re
from typing import Any

import schemathesis
from schemathesis import Case, CheckContext, GenerationMode, HookContext, Response
from schemathesis.openapi.checks import IgnoredAuth

from tests.support.untold import IN_BYTES, UNTOLD


@schemathesis.hook
def before_call(context: HookContext, case: Case, **_: Any) -> None:
    """Let no request wait for records or jobs longer than needed, and write integers as the service reads them."""
    case.body = _plain(case.body)
    if isinstance(case.body, dict) and isinstance(case.body.get("wait_ms"), int):
        case.body["wait_ms"] = min(case.body["wait_ms"], 5)


def _plain(value: Any) -> Any:
    """The value with 1 in the place of 1.0: to JSON Schema both are integers, and the service takes the first only."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@schemathesis.hook
def filter_failure(context: HookContext, failure: Any, case: Case, response: Response) -> bool:
    """Whether a failure counts. It does not when the request was to be refused and was valid after all, as the tool
    notes, or was wrong in the `config` of an append, which is ignored if the topic exists. Nor does it when a text
    that is no ticket by its form is `400`, not `401`: `response` may then be that to the request with the right key."""
    takes_tickets = any("ticket" in way for way in case.operation.definition.raw.get("security", ()))
    if isinstance(failure, IgnoredAuth) and takes_tickets and "got `400 " in failure.message:
        return False
    return not re.search("Invalid component: (positive test case|in body - config ->)", failure.message)


def _no_ticket(response: Response) -> bool:
    """Whether the request was refused for its ticket, which no gateway issued. The document has no form of tickets:
    that of a key in a query has none."""
    if response.status_code != 400:
        return False
    detail: dict[str, Any] = response.json()["error"].get("detail", {})
    return detail.get("field") == "ticket"


@schemathesis.check
def refused_for_a_known_reason(context: CheckContext, response: Response, case: Case) -> None:
    """A request that fits the document is refused for one of the reasons in `UNTOLD` only."""
    meta = case.meta
    if meta is None or meta.generation.mode is not GenerationMode.POSITIVE or response.status_code != 400:
        return
    error = response.json()["error"]
    field = error.get("detail", {}).get("field")
    if error["code"] == "record_too_large" or (field and field.rpartition(".")[2] in IN_BYTES) or _no_ticket(response):
        return
    operation = case.operation.definition.raw["operationId"]
    assert (operation, field) in UNTOLD, f"{operation}, {field}: {error['message']}"

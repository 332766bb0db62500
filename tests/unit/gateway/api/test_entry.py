"""Claims about the order in which a request is refused: a request with two faults gets the error of the first check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from proto.model.keys import Scope
from tests.support.gateway_stage import Stage, key, stage

READER = key("reader", Scope.READ, "tenant:")
WRONG_TYPE = {"Content-Type": "text/plain"}
BODY = b'{"records":[{"data":1}]}'


def drain(there: Stage) -> None:
    there.gateway.flight.drain()


def fill(there: Stage) -> None:
    there.gateway.api.entry.requests.take(READER)


def nothing(there: Stage) -> None:
    pass


@pytest.mark.parametrize(
    ("before", "method", "target", "secret", "code", "detail"),
    [
        (drain, "GET", "/v0/nothing", "", "not_found", {"path": "/v0/nothing"}),
        (drain, "GET", "/v0/topics/tenant:a", "unknown", "shutting_down", {}),
        (fill, "GET", "/v0/topics/tenant:a", "unknown", "unauthorized", {}),
        (fill, "POST", "/v0/topics/tenant:a", "reader", "throttled", {"limit": "max_inflight_per_key", "max": 1}),
        (nothing, "POST", "/v0/topics/other", "reader", "forbidden", {"reason": "scope", "missing": ["write"]}),
        (nothing, "GET", "/v0/topics/other?touch=x", "reader", "forbidden", {"reason": "prefix", "topic": "other"}),
        (nothing, "GET", "/v0/topics/-?touch=x", "reader", "invalid_request", {"field": "topic"}),
        (nothing, "GET", "/v0/topics/tenant:a?touch=x", "reader", "invalid_request", {"field": "touch"}),
        (nothing, "POST", "/v0/topics/a?return_seqs=x", "full", "invalid_request", {"field": "return_seqs"}),
        (nothing, "POST", "/v0/topics/a", "full", "unsupported_media_type", {}),
    ],
)
async def test_the_first_check_that_fails_is_the_answer(
    before: Callable[[Stage], None], method: str, target: str, secret: str, code: str, detail: dict[str, Any]
) -> None:
    async with stage(keys=[key("full"), READER], max_inflight_per_key=1) as there, there.client() as client:
        before(there)
        headers = WRONG_TYPE | ({"Authorization": f"Bearer {secret}"} if secret else {})
        answer = await client.ask(method, target, BODY if method == "POST" else None, headers)
        assert answer.code == code, answer.raw
        assert {name: answer.json["error"].get("detail", {}).get(name) for name in detail} == detail


async def test_a_known_head_is_refused_as_a_new_one_when_its_key_is_at_its_cap_or_the_service_drains() -> None:
    async with stage(keys=[READER], max_inflight_per_key=1) as there, there.client() as client:
        asked = {"Authorization": "Bearer reader"}
        assert (await client.ask("GET", "/v0/topics/tenant:a", headers=asked)).status == 200
        slot = there.gateway.api.entry.requests.take(READER)
        assert (await client.ask("GET", "/v0/topics/tenant:a", headers=asked)).code == "throttled"
        slot.release()
        assert (await client.ask("GET", "/v0/topics/tenant:a", headers=asked)).status == 200
        drain(there)
        assert (await client.ask("GET", "/v0/topics/tenant:a", headers=asked)).code == "shutting_down"

"""Claims about web pages of other sites: without keys the service refuses them, a listed origin gets CORS headers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.service import Service
from tests.support.websocket import UPGRADE

NewService = Callable[..., Service]
RECORD = json.dumps({"records": [{"data": 1}]})


def ask(service: Service, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, Any]:
    connection = service.connect()
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"Content-Type": "application/json", **named})
        response = connection.getresponse()
        if response.status == 101 or response.headers.get("content-type", "").startswith("text/"):
            return response.status, dict(response.headers)
        return response.status, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:4000"},
        {"Origin": "https://evil.example"},
        {"Sec_Fetch_Site": "cross-site"},
    ],
)
def test_a_page_of_another_site_reads_writes_and_leases_nothing(shared: Service, headers: dict[str, str]) -> None:
    shared.request("PUT", "/v0/topics/page-jobs", {"type": "queue"})
    before = shared.request("POST", "/v0/topics/page-jobs", {"records": [{"data": 1}]})[1]["last_seq"]
    assert ask(shared, "POST", "/v0/topics/page-jobs", RECORD, **headers)[0] == 403
    assert ask(shared, "GET", "/v0/topics/page-jobs/work?node=n&max=100", **headers)[0] == 403
    assert ask(shared, "GET", "/v0/ws", **headers, **UPGRADE)[0] == 403
    assert ask(shared, "GET", "/", **headers)[0] == 403
    state = shared.request("GET", "/v0/topics/page-jobs")[1]
    assert (state["head_seq"], state["queue"]["in_flight"]) == (before, 0)


def test_listed_origins_get_cors_and_named_hosts_are_served(new_service: NewService) -> None:
    app = "https://app.example"
    names = {"TOPICS_CORS_ORIGINS": f"{app}:443", "TOPICS_ALLOWED_HOSTS": "topics.example"}
    with new_service(shards=1, **names) as service:
        asking = {"Origin": app, "Access_Control_Request_Method": "POST"}
        assert ask(service, "OPTIONS", "/v0/topics/a", **asking)[0] == 204
        assert ask(service, "POST", "/v0/topics/a", RECORD, Origin=app, Sec_Fetch_Site="cross-site")[0] == 201
        assert ask(service, "GET", "/v0/ws", Origin=app, **UPGRADE)[0] == 101
        assert ask(service, "GET", "/v0/topics/a", Host="topics.example")[0] == 200
        assert ask(service, "GET", "/v0/topics/a", Host="other.example")[0] == 403

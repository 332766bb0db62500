"""Claims about the request log of real processes, and a client's trace in the lines of all of them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

from tests.support.service import Service, until

SECRET = "a-secret-of-mine"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def lines(service: Service, **wanted: Any) -> list[dict[str, Any]]:
    """Return the lines of the log that have these fields."""
    found = [json.loads(line) for line in service.log_text().splitlines() if line.startswith("{")]
    return [line for line in found if wanted.items() <= line.items()]


def test_requests_and_streams_are_logged_with_their_trace_and_nothing_secret(
    new_service: Callable[..., Service],
) -> None:
    service = new_service(
        TOPICS_REQUEST_LOG="1", TOPICS_LOG_LEVEL="debug", TOPICS_LOG_FORMAT="json", TOPICS_API_KEYS=SECRET
    ).start()
    bearer = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
    body = b'{"records":[{"data":"a-payload"}]}'
    connection = service.connect()
    try:
        headers = bearer | {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        connection.request("POST", "/v0/topics/a-name", body, headers)
        assert connection.getresponse().read()
        connection.request("POST", "/v0/watch", b'{"topics":{"a-name":{}}}', bearer)
        wid = json.loads(connection.getresponse().read())["wid"]
    finally:
        connection.close()
    stream = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
    stream.request("GET", f"/v0/watch/{wid}?token={SECRET}")
    assert stream.getresponse().readline()
    (opened,) = until(lambda: lines(service, event="request", path="/v0/watch/{wid}"), "the stream's first line")
    assert opened["stream"] is True
    stream.close()
    (ended,) = until(lambda: lines(service, event="stream_ended"), "the stream's last line")
    assert ended["sent_bytes"] > 0
    (line,) = [
        each for each in lines(service, event="request", trace_id=TRACE) if each["process"].startswith("gateway")
    ]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v0/topics/{topic}", 201)
    (by_shard,) = [each for each in lines(service, trace_id=TRACE) if each["process"].startswith("shard-")]
    assert by_shard["op"] == "append"
    assert service.stop() == 0
    for hidden in (SECRET, "a-payload", "token="):
        assert hidden not in service.log_text()


def test_it_is_off_unless_wanted(shared: Service) -> None:
    assert shared.request("GET", "/v0/topics")[0] == 200
    assert "event=request" not in shared.log_text()

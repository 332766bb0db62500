"""Claims about spans: they reach a collector over OTLP as children of the client's span, the last ones at the stop."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.events import Watch, watch, write
from tests.support.programs import free_port
from tests.support.service import Service, until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.port = 0

    def take(self, body: bytes) -> None:
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = attributes(of_resource.resource)
            self.services.add(named["service.name"])
            self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]

    def of(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def attributes(thing: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in thing.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            assert self.headers.get("content-encoding", "identity") == "identity"
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        collector.port = server.server_port
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def loaded(service: Service) -> bool:
    """Whether each gateway has loaded tracing."""
    return service.log_text().count("event=spans_are_sent") == int(service.environment["TOPICS_GATEWAYS"])


def test_each_request_is_a_span_below_its_client_s(new_service: Callable[..., Service]) -> None:
    with collecting() as collector:
        service = new_service(
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.port}", OTEL_BSP_SCHEDULE_DELAY="100"
        ).start()
        until(lambda: loaded(service), "tracing to be loaded")
        connection = service.connect()
        body = json.dumps({"records": [{"data": "a-payload"}], "config": {"durability": "fsync"}})
        headers = {"Content-Type": "application/json", "traceparent": f"00-{TRACE}-{PARENT}-01"}
        connection.request("POST", "/v0/topics/a-name", body, headers)
        assert connection.getresponse().read()
        connection.close()
        (span,) = until(lambda: collector.of("POST /v0/topics/{topic}"), "the span of the write")
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
        assert collector.services == {"topics"}
        found = attributes(span)
        assert (found["http.route"], found["http.response.status_code"]) == ("/v0/topics/{topic}", 201)
        assert found["http.request.body.size"] == len(body)
        took_ms = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
        assert 0 < found["topics.fsync_ms"] < took_ms < 20_000
        assert "a-payload" not in str(span)
        assert "a-name" not in str(span)

        service.request("GET", "/v0/topics/none")
        (span,) = until(lambda: collector.of("GET /v0/topics/{topic}"), "the span of the read")
        assert (span.parent_span_id, span.status.code) == (b"", 0), "a root; 404 is no failure of the server"

        # A stream's span is made when the stream ends, and the last spans are sent before the service ends.
        with Watch(service, watch(service, topics={"a-name": {}})) as stream:
            stream.wait_for("caught-up")
            assert collector.of("GET /v0/watch/{wid}") == []
            assert service.stop() == 0
        (span,) = collector.of("GET /v0/watch/{wid}")
        assert attributes(span)["http.response.body.size"] > 100


def test_a_collector_that_is_not_there_costs_log_lines_and_nothing_else(new_service: Callable[..., Service]) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with new_service(
        OTEL_EXPORTER_OTLP_ENDPOINT=nobody, OTEL_BSP_SCHEDULE_DELAY="50", OTEL_EXPORTER_OTLP_TIMEOUT="1"
    ) as service:
        until(lambda: loaded(service), "tracing to be loaded")
        until(
            lambda: write(service, "t", 1) and "event=spans_not_sent" in service.log_text(), "a complaint", timeout_s=40
        )
        assert service.stop() == 0
        assert "Traceback" not in service.log_text()

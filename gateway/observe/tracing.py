"""Spans for OpenTelemetry: one for each request, with the client's span as its parent. The one module that imports it.

Optional: `pip install 'topics-server[otel]'`, and the standard variables, of which OTEL_EXPORTER_OTLP_ENDPOINT (or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) switches it on; sampling, headers, timeouts are OpenTelemetry's own variables.
A span is made when its request is over, so serving waits for nothing: the exporter has a thread of its own, and what
it cannot send in time it drops. The parts that the shard did (`wal_append_ms`, `fsync_ms`, …) are attributes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib import import_module
from time import perf_counter, time_ns
from typing import Any

import structlog

from gateway.observe.exchange import Exchange
from proto import __version__

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
FLUSH_MS = 1000

_log: Any = structlog.get_logger()


def wanted(environment: Mapping[str, str]) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return environment.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp" and any(environment.get(v) for v in VARIABLES)


def load() -> Tracing | None:
    """Takes a good part of a second, so it is called in a thread. None, and a log line, where it cannot be had."""
    try:
        return Tracing()
    except ImportError as error:
        _log.warning("no_spans", reason=str(error), remedy="pip install 'topics-server[otel]'")
    except Exception as error:
        # A setting of OpenTelemetry's that it does not take. The service is worth more than its spans.
        _log.error("no_spans", reason=repr(error))
    return None


class Tracing:
    """An observer. Raises `ImportError` without the packages."""

    def __init__(self) -> None:
        sdk = import_module("opentelemetry.sdk.trace")
        export = import_module("opentelemetry.sdk.trace.export")
        exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        resources = import_module("opentelemetry.sdk.resources")
        api = import_module("opentelemetry.trace")
        propagation = import_module("opentelemetry.trace.propagation.tracecontext")
        # What is given here is not replaced by OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, so it gives way itself.
        named = os.environ.get("OTEL_SERVICE_NAME") or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        given = {"service.version": __version__} | ({} if named else {"service.name": "topics"})
        _complaints()
        self._provider = sdk.TracerProvider(resource=resources.Resource.create(given), shutdown_on_exit=False)
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter.OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("topics", __version__)
        self._extract = propagation.TraceContextTextMapPropagator().extract
        self._server = api.SpanKind.SERVER
        self._failed = api.Status(api.StatusCode.ERROR)

    def answered(self, exchange: Exchange) -> None:
        if not exchange.stream:
            self._export(exchange)

    def ended(self, exchange: Exchange) -> None:
        self._export(exchange)

    def _export(self, exchange: Exchange) -> None:
        end = time_ns() - round((perf_counter() - exchange.ended) * 1e9)
        attributes: dict[str, Any] = {
            "http.request.method": exchange.method,
            "http.response.status_code": exchange.status,
            "http.request.body.size": exchange.received_bytes,
            "http.response.body.size": exchange.sent_bytes,
        }
        if exchange.path:
            attributes["http.route"] = exchange.path
        if exchange.key:
            attributes["topics.key"] = exchange.key
        for name, value in exchange.figures.items():
            attributes[f"topics.{name}"] = value
        parent = None
        if exchange.traceparent:
            parent = self._extract({"traceparent": exchange.traceparent, "tracestate": exchange.tracestate})
        span = self._tracer.start_span(
            f"{exchange.method} {exchange.path}".strip() or "HTTP",
            # Without a parent of its own it must not become a child of whatever OpenTelemetry holds for current.
            context=parent if parent is not None else {},
            kind=self._server,
            attributes=attributes,
            start_time=end - round((exchange.ended - exchange.began) * 1e9),
        )
        if exchange.status >= 500:
            span.set_status(self._failed)
        span.end(end_time=end)

    def flush(self) -> None:
        """Send what waits; blocks for `FLUSH_MS` at most, so it is called in a thread."""
        self._provider.force_flush(FLUSH_MS)


class _ToLog(logging.Handler):
    """OpenTelemetry complains to Python's logging; here that becomes lines like all others."""

    def emit(self, record: logging.LogRecord) -> None:
        _log.warning("spans_not_sent", reason=record.getMessage())


def _complaints() -> None:
    theirs = logging.getLogger("opentelemetry")
    theirs.propagate = False
    theirs.setLevel(logging.WARNING)
    theirs.handlers[:] = [_ToLog()]

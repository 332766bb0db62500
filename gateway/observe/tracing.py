"""Tracing: one OpenTelemetry span for each request, with the client's span as its parent. The one module that imports
OpenTelemetry.

Tracing is optional and needs the packages of the extra `otel`. OTEL_EXPORTER_OTLP_ENDPOINT or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT switches it on. OpenTelemetry's own variables set sampling, headers and timeouts.
A span is made when its request is over, so no request waits for tracing. The exporter has a thread of its own and drops
spans that it cannot send in time. Durations in the shard (`wal_append_ms`, `fsync_ms`, …) are attributes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib import import_module
from time import perf_counter, time_ns
from typing import Any

import structlog
from structlog.typing import FilteringBoundLogger

from gateway.observe.exchange import Exchange
from proto import __version__

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PACKAGES = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
FLUSH_MS = 1000

_log: FilteringBoundLogger = structlog.get_logger()


def wanted(environment: Mapping[str, str]) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return environment.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp" and any(environment.get(v) for v in VARIABLES)


def load() -> Tracing | None:
    """Load OpenTelemetry and return the observer; return None and log a line where that fails. Blocks for a good part
    of a second, so call it in a thread."""
    try:
        return Tracing()
    except ImportError as error:
        _log.warning("no_spans", reason=str(error), remedy=f"pip install {PACKAGES}")
    except Exception as error:
        # OpenTelemetry refuses one of its settings. The service runs on without spans.
        _log.error("no_spans", reason=repr(error))
    return None


class Tracing:
    """The observer that exports spans. Raises `ImportError` when the packages are missing."""

    def __init__(self) -> None:
        sdk = import_module("opentelemetry.sdk.trace")
        export = import_module("opentelemetry.sdk.trace.export")
        exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        resources = import_module("opentelemetry.sdk.resources")
        api = import_module("opentelemetry.trace")
        propagation = import_module("opentelemetry.trace.propagation.tracecontext")
        # Attributes given here override OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, so a name set there is checked.
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
            # Without a parent, an empty context keeps the span from becoming a child of OpenTelemetry's current span.
            context=parent if parent is not None else {},
            kind=self._server,
            attributes=attributes,
            start_time=end - round((exchange.ended - exchange.began) * 1e9),
        )
        if exchange.status >= 500:
            span.set_status(self._failed)
        span.end(end_time=end)

    def flush(self) -> None:
        """Send the waiting spans. Blocks for up to `FLUSH_MS`, so call it in a thread."""
        self._provider.force_flush(FLUSH_MS)


class _ToLog(logging.Handler):
    """A logging handler that turns OpenTelemetry's warnings into structured log lines."""

    def emit(self, record: logging.LogRecord) -> None:
        _log.warning("spans_not_sent", reason=record.getMessage())


def _complaints() -> None:
    theirs = logging.getLogger("opentelemetry")
    theirs.propagate = False
    theirs.setLevel(logging.WARNING)
    theirs.handlers[:] = [_ToLog()]

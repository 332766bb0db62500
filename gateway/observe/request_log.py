"""The request log: one line for each request when its response is ready, and another for a stream when it ends.

    event=request method=POST path=/v0/topics/{topic} status=201 ms=0.61 received_bytes=77 sent_bytes=190 key=5d41402a
    event=stream_ended method=GET path=/v0/watch/{wid} status=200 ms=30211.4 received_bytes=0 sent_bytes=18230

`ms` counts from the arrival of the request's head: for `request` until the response is ready to be sent, for
`stream_ended` until the stream's end. A request with a `traceparent` has its `trace_id`.
"""

from __future__ import annotations

from typing import Any

import structlog
from structlog.typing import FilteringBoundLogger

from gateway.observe.exchange import Exchange

_FIELDS = ("method", "path", "status", "ms", "received_bytes", "sent_bytes")
_log: FilteringBoundLogger = structlog.get_logger()


class RequestLog:
    def answered(self, exchange: Exchange) -> None:
        _log.info("request", **_fields(exchange), **({"stream": True} if exchange.stream else {}))

    def ended(self, exchange: Exchange) -> None:
        _log.info("stream_ended", **_fields(exchange))


def _fields(exchange: Exchange) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(exchange, name) for name in _FIELDS}
    if exchange.key:
        fields["key"] = exchange.key
    return fields

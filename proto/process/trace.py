"""Trace context: the W3C `traceparent` of the current work.

A client's `traceparent` header is current in the task that serves its request. The request's message carries it to the
shard, where it is current while the request is handled. Log lines written meanwhile have its `trace_id`.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Any

HEADER = b"traceparent"
_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_CURRENT: ContextVar[str] = ContextVar("traceparent", default="")


def valid(header: bytes) -> str:
    """The header's text, or "" if W3C Trace Context does not allow it. A header of version 00 ends after the flags."""
    if len(header) > 256:
        return ""
    text = header.decode("latin-1")
    if _FORM.fullmatch(text) is None or (text.startswith("00") and len(text) != 55):
        return ""
    return text


def current() -> str:
    """The traceparent of the current work, or ""."""
    return _CURRENT.get()


def begin(traceparent: str) -> None:
    """Set the traceparent of the current task; "" for none."""
    _CURRENT.set(traceparent)


def trace_id(traceparent: str) -> str:
    return traceparent[3:35]


def with_trace(logger: Any, method: str, fields: Any) -> Any:
    """structlog processor: adds the current `trace_id`."""
    if traceparent := _CURRENT.get():
        fields.setdefault("trace_id", trace_id(traceparent))
    return fields

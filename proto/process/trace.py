"""Which trace the present work belongs to: W3C Trace Context, as far as it is passed on.

A client's `traceparent` header is current in the task that serves its request, goes to the shard in the request's
message, and is current there while the request is handled. Log lines written meanwhile have its `trace_id`.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Any

HEADER = b"traceparent"
_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_CURRENT: ContextVar[str] = ContextVar("traceparent", default="")


def valid(header: bytes) -> str:
    """The header's text; "" if it is none that the recommendation allows. Version 00 ends where the flags end."""
    if len(header) > 256:
        return ""
    text = header.decode("latin-1")
    if _FORM.fullmatch(text) is None or (text.startswith("00") and len(text) != 55):
        return ""
    return text


def current() -> str:
    """The traceparent of the present work, or ""."""
    return _CURRENT.get()


def begin(traceparent: str) -> None:
    """From now on this task works for that trace, or for none."""
    _CURRENT.set(traceparent)


def trace_id(traceparent: str) -> str:
    return traceparent[3:35]


def with_trace(logger: Any, method: str, fields: Any) -> Any:
    """A structlog processor."""
    if traceparent := _CURRENT.get():
        fields.setdefault("trace_id", trace_id(traceparent))
    return fields

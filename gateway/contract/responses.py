"""JSON responses: results, the canonical error body and the `performance` block.

Each body ends with a newline, so that a shell's prompt, or the next response in a file, begins on a new line.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from time import perf_counter
from typing import Any

import msgspec

from gateway.http.messages import JSON, Response
from proto.model.errors import ErrorCode, TopicsError

_encode = msgspec.json.Encoder().encode


def performance(started: float, figures: dict[str, float]) -> bytes:
    """Return the block as JSON. `started` is the `perf_counter` of the request's arrival; `figures` are the shard's
    durations in ms, and numbers of other things."""
    return _form(tuple(figures)) % ((perf_counter() - started) * 1000, *figures.values())


@lru_cache(256)
def _form(names: tuple[str, ...]) -> bytes:
    """The block with a place for each figure. The shards choose the names, so there are few different blocks."""
    forms = [b'"server_total_ms":%.3f']
    forms += [b"%b:%b" % (_encode(name), b"%.3f" if name.endswith("_ms") else b"%.15g") for name in names]
    return b"{" + b",".join(forms) + b"}"


def timed(body: bytes, started: float, figures: dict[str, float]) -> bytes:
    """Return `body`, a JSON object, with `performance` as its last member and a newline. The object is not parsed."""
    form = b'%b,"performance":%b}\n' if len(body) > 2 else b'%b"performance":%b}\n'
    return form % (memoryview(body)[:-1], performance(started, figures))


def plain(value: Any) -> Response:
    """Return a JSON response without `performance`, for probes and documents."""
    return Response(200, _encode(value) + b"\n")


def failure(error: TopicsError, started: float | None, figures: dict[str, float] | None = None) -> Response:
    """Return the response of an error, with the canonical body. `started` None, for requests refused before routing,
    leaves out `performance`."""
    content: dict[str, Any] = {"code": error.code.value, "message": error.message}
    if error.detail is not None:
        content["detail"] = error.detail
    body = _encode({"error": content})
    if started is not None:
        body = timed(body, started, figures or {})
    else:
        body += b"\n"
    headers: list[tuple[bytes, bytes]] = []
    if error.retry_after_ms is not None:
        headers.append((b"retry-after", b"%d" % max(1, ceil(error.retry_after_ms / 1000))))
    if error.code is ErrorCode.UNAUTHORIZED:
        headers.append((b"www-authenticate", b'Bearer realm="topics"'))
    if error.code is ErrorCode.METHOD_NOT_ALLOWED and error.detail is not None:
        headers.append((b"allow", ", ".join(error.detail["allow"]).encode()))
    return Response(error.status, body, JSON, tuple(headers), figures=figures)

"""How results and errors become JSON answers: the canonical error body and the `performance` block.

Each ends with a newline, so that a shell's prompt, and the next answer in a file, begin on a line of their own.
"""

from __future__ import annotations

from math import ceil
from time import perf_counter
from typing import Any

import msgspec

from gateway.http.messages import JSON, Response
from proto.ipc.message import Reply
from proto.model.errors import ErrorCode, TopicsError

_encode = msgspec.json.Encoder().encode


def performance(started: float, figures: dict[str, float]) -> bytes:
    """The block as JSON. `started` is the `perf_counter` of the request's arrival, `figures` the shard's, in ms."""
    block = {"server_total_ms": round((perf_counter() - started) * 1000, 3)}
    for name, value in figures.items():
        block[name] = round(value, 3)
    return _encode(block)


def timed(body: bytes, started: float, figures: dict[str, float]) -> bytes:
    """`body`, a JSON object, with `performance` as its last member, and a newline. The object itself is not parsed."""
    comma = b"," if len(body) > 2 else b""
    return b"".join((memoryview(body)[:-1], comma, b'"performance":', performance(started, figures), b"}\n"))


def success(reply: Reply, started: float) -> Response:
    """The answer to a call that a shard carried out. Raises the error in `reply` if there is one."""
    if reply.error is not None:
        raise reply.error
    return Response(
        201 if reply.created else 200, timed(reply.body, started, reply.performance), figures=reply.performance
    )


def plain(value: Any, status: int = 200) -> Response:
    """A JSON answer without `performance`: probes and documents."""
    return Response(status, _encode(value) + b"\n")


def failure(error: TopicsError, started: float | None, figures: dict[str, float] | None = None) -> Response:
    """The canonical error body; with `started` None, for what was refused before routing, without `performance`."""
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


def internal() -> TopicsError:
    """What a client learns of a bug: that there was one, not what it looked like."""
    return TopicsError(ErrorCode.INTERNAL, "internal error; the server's log has the cause")

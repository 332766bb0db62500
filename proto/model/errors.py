"""Error codes: one enum, which is the table from code to HTTP status, and one exception that carries them.

A `TopicsError` raised in a shard reaches the gateway as fields of the reply header. The gateway renders every error in
one place, so that each has the body `{"error": {"code", "message", "detail"?}}`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from proto.errors import ProtoError


class ErrorCode(StrEnum):
    """Stable, machine-readable codes that clients branch on, each with its HTTP status."""

    status: int

    def __new__(cls, word: str, status: int) -> ErrorCode:
        member = str.__new__(cls, word)
        member._value_ = word
        member.status = status
        return member

    INVALID_REQUEST = "invalid_request", 400
    BATCH_TOO_LARGE = "batch_too_large", 400
    RECORD_TOO_LARGE = "record_too_large", 400
    UNAUTHORIZED = "unauthorized", 401
    FORBIDDEN = "forbidden", 403
    NOT_FOUND = "not_found", 404
    TOPIC_NOT_FOUND = "topic_not_found", 404
    ROUTER_NOT_FOUND = "router_not_found", 404
    CURSOR_NOT_FOUND = "cursor_not_found", 404
    METHOD_NOT_ALLOWED = "method_not_allowed", 405
    NOT_ACCEPTABLE = "not_acceptable", 406
    REQUEST_TIMEOUT = "request_timeout", 408
    ROUTER_CYCLE = "router_cycle", 409
    TOPIC_EXISTS_INCOMPATIBLE = "topic_exists_incompatible", 409
    TOPIC_NOT_EMPTY = "topic_not_empty", 409
    NOT_A_QUEUE = "not_a_queue", 409
    PAYLOAD_TOO_LARGE = "payload_too_large", 413
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", 415
    TOPIC_FULL = "topic_full", 422
    THROTTLED = "throttled", 429
    HEADERS_TOO_LARGE = "headers_too_large", 431
    INTERNAL = "internal", 500
    NOT_READY = "not_ready", 503
    SHUTTING_DOWN = "shutting_down", 503


STATUS = {code: code.status for code in ErrorCode}


class TopicsError(ProtoError):
    """A request that cannot be served, with the error answer for the client.

    `detail` becomes `error.detail`. `retry_after_ms`, if set, becomes the `Retry-After` header, rounded up to whole
    seconds as HTTP requires.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        detail: dict[str, Any] | None = None,
        *,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail
        self.retry_after_ms = retry_after_ms

    @property
    def status(self) -> int:
        return self.code.status


def invalid(message: str, **detail: Any) -> TopicsError:
    """`400 invalid_request`: the request can never succeed as sent."""
    return TopicsError(ErrorCode.INVALID_REQUEST, message, detail or None)


def topic_not_found(topic: str) -> TopicsError:
    return TopicsError(ErrorCode.TOPIC_NOT_FOUND, f'topic "{topic}" does not exist', {"topic": topic})


def not_a_queue(topic: str) -> TopicsError:
    return TopicsError(
        ErrorCode.NOT_A_QUEUE,
        f'topic "{topic}" is a log; only a topic made with "type": "queue" has jobs',
        {"topic": topic, "type": "log"},
    )


def cap_reached(limit: str, most: int, remedy: str) -> TopicsError:
    """The `429 throttled` of every cap."""
    return throttled(limit, most, f"{limit} is {most}, and that many are there; {remedy}")


def throttled(limit: str, most: int, message: str, **detail: Any) -> TopicsError:
    """`429 throttled` by a limit on what there is, with `Retry-After`."""
    return TopicsError(ErrorCode.THROTTLED, message, {"limit": limit, "max": most, **detail}, retry_after_ms=1000)


def not_ready(message: str, **detail: Any) -> TopicsError:
    """`503 not_ready` with `Retry-After`: the same request may succeed later."""
    return TopicsError(ErrorCode.NOT_READY, message, detail or None, retry_after_ms=1000)


MOVING = "moving"
"""The reason of a refusal by a shard that is handed to another machine."""
STARTING = "starting"
"""The reason of a refusal by a shard that is not ready for clients yet."""


def moving(shard: int) -> TopicsError:
    """`503 not_ready`, `not_done`: the next holder of the shard takes the request."""
    return not_ready(
        f"shard {shard} moves to another machine; retry shortly", shard=shard, reason=MOVING, outcome="not_done"
    )


def starting(message: str) -> TopicsError:
    """`503 not_ready`, `not_done`: the shard takes the request in a moment."""
    return not_ready(message, reason=STARTING, outcome="not_done")


def not_renewed(outcome: str) -> TopicsError:
    """`503 not_ready`: the shard may not answer now, because its term in the bucket is not renewed."""
    return not_ready(
        "this machine could not renew its term in the bucket, so another one may hold the shard; retry shortly",
        reason="term_not_renewed",
        outcome=outcome,
    )


def is_passing(error: TopicsError | None, shard: int) -> bool:
    """Whether this shard refused a request, before any of it was done, that it or its next holder takes in a moment.
    False for an error that names another shard, or says what was done."""
    if error is None or error.code is not ErrorCode.NOT_READY:
        return False
    return error.detail in (moving(shard).detail, starting("").detail)


def shutting_down() -> TopicsError:
    return TopicsError(
        ErrorCode.SHUTTING_DOWN, "the service is shutting down; retry against its successor", retry_after_ms=1000
    )

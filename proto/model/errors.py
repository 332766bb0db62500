"""Error codes: one enum, one table from code to HTTP status, one exception that carries them.

A `TopicsError` raised in a shard reaches the gateway as fields of the reply header. The gateway renders every error in
one place, so that each has the body `{"error": {"code", "message", "detail"?}}`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from proto.errors import ProtoError


class ErrorCode(StrEnum):
    """Stable, machine-readable codes that clients branch on."""

    INVALID_REQUEST = "invalid_request"
    BATCH_TOO_LARGE = "batch_too_large"
    RECORD_TOO_LARGE = "record_too_large"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    TOPIC_NOT_FOUND = "topic_not_found"
    ROUTER_NOT_FOUND = "router_not_found"
    CURSOR_NOT_FOUND = "cursor_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOT_ACCEPTABLE = "not_acceptable"
    REQUEST_TIMEOUT = "request_timeout"
    ROUTER_CYCLE = "router_cycle"
    TOPIC_EXISTS_INCOMPATIBLE = "topic_exists_incompatible"
    TOPIC_NOT_EMPTY = "topic_not_empty"
    NOT_A_QUEUE = "not_a_queue"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    TOPIC_FULL = "topic_full"
    THROTTLED = "throttled"
    HEADERS_TOO_LARGE = "headers_too_large"
    INTERNAL = "internal"
    NOT_READY = "not_ready"
    SHUTTING_DOWN = "shutting_down"


STATUS: dict[ErrorCode, int] = {
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.BATCH_TOO_LARGE: 400,
    ErrorCode.RECORD_TOO_LARGE: 400,
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.TOPIC_NOT_FOUND: 404,
    ErrorCode.ROUTER_NOT_FOUND: 404,
    ErrorCode.CURSOR_NOT_FOUND: 404,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.NOT_ACCEPTABLE: 406,
    ErrorCode.REQUEST_TIMEOUT: 408,
    ErrorCode.ROUTER_CYCLE: 409,
    ErrorCode.TOPIC_EXISTS_INCOMPATIBLE: 409,
    ErrorCode.TOPIC_NOT_EMPTY: 409,
    ErrorCode.NOT_A_QUEUE: 409,
    ErrorCode.PAYLOAD_TOO_LARGE: 413,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: 415,
    ErrorCode.TOPIC_FULL: 422,
    ErrorCode.THROTTLED: 429,
    ErrorCode.HEADERS_TOO_LARGE: 431,
    ErrorCode.INTERNAL: 500,
    ErrorCode.NOT_READY: 503,
    ErrorCode.SHUTTING_DOWN: 503,
}


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
        return STATUS[self.code]


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

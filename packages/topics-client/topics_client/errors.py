"""Errors: a class per error code of the service, `Unavailable` if no whole answer came, `GapError` for lost records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from topics_client.items import Gap, Record

__all__ = [
    "BatchTooLarge", "CursorNotFound", "DecodeError", "Forbidden", "GapError", "HeadersTooLarge", "Internal",
    "InvalidRequest", "MethodNotAllowed", "NotAQueue", "NotAcceptable", "NotFound", "NotReady", "PayloadTooLarge",
    "RecordTooLarge", "RequestTimeout", "RouterCycle", "RouterNotFound", "ShuttingDown", "Throttled",
    "TopicExistsIncompatible", "TopicFull", "TopicNotEmpty", "TopicNotFound", "TopicsError", "Unauthorized",
    "Unavailable", "UnsupportedMediaType",
]  # fmt: skip


class TopicsError(Exception):
    """A request that failed.

    `code` is stable and `message` is for people. `detail` is what the service adds, `status` the HTTP status (0 without
    an answer), `retry_after` the pause in seconds that the service asks for. `idempotency_key` is that of a publish:
    with this key, it can be repeated safely.
    """

    code = ""
    transient: ClassVar[bool] = False
    """Whether the same request may succeed later."""

    def __init_subclass__(cls) -> None:
        """The code of a class is its name in lower case, with an underscore before each word but the first."""
        cls.code = re.sub(r"(?<=.)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        detail: Mapping[str, Any] | None = None,
        status: int = 0,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.detail = dict(detail or {})
        self.status = status
        self.retry_after = retry_after
        self.idempotency_key: str | None = None

    @property
    def outcome(self) -> str:
        """`not_done` if the request was certainly not carried out, else `unknown`."""
        return str(self.detail.get("outcome", "not_done" if 400 <= self.status < 500 else "unknown"))


class Unavailable(TopicsError):
    """No connection, or no whole answer; also the answer of a proxy that has no connection."""

    transient = True


class GapError(Exception):
    """Records are lost; `gap` says which. The iterator is behind the gap and can be read on."""

    def __init__(self, gap: Gap) -> None:
        super().__init__(f"{gap.topic}: records {gap.first_seq} to {gap.last_seq} are lost ({gap.reason})")
        self.gap = gap


class DecodeError(Exception):
    """The data of a record is not of the type that was asked for; `record` has it as it came.

    The iterator is after the record and can be read on.
    """

    def __init__(self, record: Record, cause: Exception) -> None:
        super().__init__(f"{record.topic}: record {record.seq} is not of the type asked for: {cause}")
        self.record = record


class InvalidRequest(TopicsError): ...


class BatchTooLarge(TopicsError): ...


class RecordTooLarge(TopicsError): ...


class Unauthorized(TopicsError): ...


class Forbidden(TopicsError): ...


class NotFound(TopicsError):
    """The base of errors for things that do not exist: a topic, a router, a cursor, a watch session."""


class TopicNotFound(NotFound): ...


class RouterNotFound(NotFound): ...


class CursorNotFound(NotFound): ...


class MethodNotAllowed(TopicsError): ...


class NotAcceptable(TopicsError): ...


class RequestTimeout(TopicsError): ...


class RouterCycle(TopicsError): ...


class TopicExistsIncompatible(TopicsError): ...


class TopicNotEmpty(TopicsError): ...


class NotAQueue(TopicsError): ...


class PayloadTooLarge(TopicsError): ...


class UnsupportedMediaType(TopicsError): ...


class TopicFull(TopicsError): ...


class Throttled(TopicsError):
    """The service is busy, or a cap is reached: `detail["limit"]` names it."""

    transient = True


class HeadersTooLarge(TopicsError): ...


class Internal(TopicsError): ...


class NotReady(TopicsError):
    """The topic's shard is starting, or the topic is set apart: `detail["reason"]` says which."""

    transient = True


class ShuttingDown(TopicsError):
    transient = True


def _classes(base: type[TopicsError]) -> dict[str, type[TopicsError]]:
    found = {base.code: base} if base.code else {}
    for each in base.__subclasses__():
        found |= _classes(each)
    return found


BY_CODE = _classes(TopicsError)


def error_of(status: int, body: Any, retry_after: str | None) -> TopicsError:
    """The error that an answer tells. An answer without the service's error body is that of a proxy."""
    told = body.get("error") if isinstance(body, dict) else None
    if not isinstance(told, dict):
        kind = Unavailable if status in (429, 502, 503, 504) else TopicsError
        return kind(f"HTTP status {status}", status=status, retry_after=_seconds(retry_after))
    code, detail = str(told.get("code", "")), told.get("detail") or {}
    exact_ms = detail.get("retry_after_ms")
    pause = exact_ms / 1000 if isinstance(exact_ms, int) else _seconds(retry_after)
    kind = BY_CODE.get(code, TopicsError)
    return kind(str(told.get("message", code)), code=code, detail=detail, status=status, retry_after=pause)


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None  # a date, which the service never sends

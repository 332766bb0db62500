"""The third step of a request: its body, as JSON that nothing has parsed yet.

A body that the gateway or the registrar parses may be small only, because Python objects take many times the memory of
their JSON. The body of a shard's operation goes to the shard unchanged, so it may be as large as `max_body_bytes`.
"""

from __future__ import annotations

from gateway.api.plan import Plan
from gateway.contract.operation import Operation
from gateway.http.chunked_body import too_large
from gateway.http.gzip_coding import MAX_RATIO, inflated
from gateway.http.messages import Request
from gateway.http.short_cache import short_cache
from proto.model.errors import ErrorCode, TopicsError, invalid
from proto.model.limits import Limits

MAX_PARAMETERS_BYTES = 1 << 20
"""Largest body that the gateway parses, or that is compressed and brings no records."""


class Bodies:
    def __init__(self, limits: Limits) -> None:
        self._most = limits.max_body_bytes
        self._most_parameters = min(limits.max_body_bytes, MAX_PARAMETERS_BYTES)

    async def read(self, plan: Plan, request: Request) -> bytes:
        """Return the body, decompressed. Raises `400`, `413`, `415`, `429`."""
        operation = plan.operation
        body = b""
        if await request.has_body():
            if plan.packed is None:
                plan.packed = _packed(request)
            body = await request.body()
            request.received_bytes = len(body)
            if plan.packed and body:
                return await self._inflated(operation, body, request)
        _check_present(operation, body)
        if len(body) > self._most_parameters and not operation.shard_op:
            raise too_large(self._most_parameters)
        return body

    async def _inflated(self, operation: Operation, body: bytes, request: Request) -> bytes:
        """Decompress a body. Until its size is known, the budget counts the most that it can be."""
        limit = self._most if operation.grows else self._most_parameters
        hold = request.hold_body()
        await hold.grow(len(body) + min(limit, MAX_RATIO * len(body)))
        body = await inflated(body, limit)
        hold.set(len(body))
        _check_present(operation, body)
        return body


def _check_present(operation: Operation, body: bytes) -> None:
    if not body and not operation.body_optional:
        raise invalid("the request needs a JSON body")


def _packed(request: Request) -> bool:
    """Whether the body is compressed, by its headers. Raises `415`."""
    content_type = request.headers.get(b"content-type", b"")
    if not is_json(content_type):
        raise _unsupported(f"Content-Type must be application/json, not {_shown(content_type)}")
    encoding = request.headers.get(b"content-encoding", b"identity").lower()
    if encoding not in (b"identity", b"gzip", b"x-gzip"):
        raise _unsupported(f"Content-Encoding {_shown(encoding)} is not understood; send gzip, or as it is")
    return encoding != b"identity"


@short_cache(256)
def is_json(content_type: bytes) -> bool:
    """Whether a Content-Type means JSON in UTF-8: `application/json` with charset `utf-8` or none, in any case."""
    essence, *parameters = [part.strip().lower() for part in content_type.split(b";")]
    if essence != b"application/json":
        return False
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"charset" and value.strip().strip(b'"') not in (b"utf-8", b"utf8"):
            return False
    return True


def _unsupported(message: str) -> TopicsError:
    return TopicsError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, message)


def _shown(value: bytes) -> str:
    return repr(value[:64].decode("latin-1")) if value else "absent"

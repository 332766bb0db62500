"""The fifth step of a request: what was answered becomes an HTTP response, compressed if the client reads gzip."""

from __future__ import annotations

from typing import Any

from gateway.api.plan import Plan
from gateway.contract import responses
from gateway.http.gzip_coding import accepts_gzip, deflated
from gateway.http.messages import Request, Response
from gateway.streams import sse
from proto.ipc.message import Reply
from proto.model.errors import TopicsError


def rendered(result: Reply[Any] | Response, started: float) -> Response:
    """Return the response for a reply: 201 when something was created, 200, or its error. A response stays as it is."""
    if isinstance(result, Response):
        return result
    figures = result.performance
    if result.error is not None:
        return responses.failure(result.error, started, figures)
    body = responses.timed(result.body, started, figures)
    return Response(201 if result.created else 200, body, figures=figures)


def failed(error: TopicsError, plan: Plan | None, request: Request, started: float) -> Response:
    """Return the response for an error that a step raised."""
    if plan is None:
        return responses.failure(error, None)
    if plan.operation.event_stream and sse.retries(error, request.header(b"accept")):
        return sse.come_back(error)
    return responses.failure(error, None if plan.operation.always else started)


async def compress(response: Response, request: Request) -> None:
    """Compress a large response if the client accepts that."""
    request.hold_answer().set(len(response.body))
    headers = [*response.headers, (b"vary", b"Accept-Encoding")]
    if accepts_gzip(request.headers.get(b"accept-encoding", b"")):
        response.body = await deflated(response.body)
        headers.append((b"content-encoding", b"gzip"))
    response.headers = tuple(headers)

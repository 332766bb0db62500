"""The exchange: one request and its outcome, as the observers see it (the request log, tracing).

Without observers, no exchange is made. An exchange holds no payloads, topic names or secrets: its path is the
operation's template, its key the beginning of the key's digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from gateway.contract.operation import Operation
from gateway.http.messages import Channel, DirectWrite, Gone, Request, Response, Write


@dataclass(slots=True)
class Exchange:
    """One request and its response. `began` and `ended` are `perf_counter` values in seconds. For a stream the response
    is its head, and `stream` is true."""

    method: str
    path: str
    status: int
    began: float
    ended: float
    received_bytes: int = 0
    sent_bytes: int = 0
    """Bytes of the body as sent over the wire."""
    key: str = ""
    """The first 8 hex digits of the SHA-256 of the key; "" without keys."""
    traceparent: str = ""
    tracestate: str = ""
    stream: bool = False
    figures: Mapping[str, float] = field(default_factory=dict)
    """Durations in the shard, in ms, by name."""

    @property
    def ms(self) -> float:
        return round((self.ended - self.began) * 1000, 3)


class RequestObserver(Protocol):
    def answered(self, exchange: Exchange) -> None:
        """A response is ready to be sent, or the client left before that (status 499, as in nginx)."""

    def ended(self, exchange: Exchange) -> None:
        """A stream that was `answered` before is over; `ended` and `sent_bytes` now cover all of it."""


CLIENT_GONE = 499


def of(request: Request, operation: Operation | None, status: int, began: float) -> Exchange:
    return Exchange(
        request.method if operation is not None else _known(request.method),
        operation.path if operation is not None else "",
        status,
        began,
        perf_counter(),
        request.received_bytes,
        key=request.key.digest.hex()[:8] if request.key is not None else "",
        traceparent=request.traceparent,
        tracestate=request.header(b"tracestate").decode("latin-1")[:512] if request.traceparent else "",
    )


def _known(method: str) -> str:
    """The method, or `_OTHER` for an unknown one: a client must not choose fields of log lines or names of spans."""
    return method if method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS") else "_OTHER"


def observed(response: Response, exchange: Exchange, observers: list[RequestObserver]) -> None:
    """Tell the observers of a response, and of its end if it is a stream. Wraps `live` and `upgraded` of `response`."""
    exchange.sent_bytes = len(response.body)
    exchange.figures = response.figures or {}
    exchange.stream = response.live is not None or response.upgraded is not None
    for each in observers:
        each.answered(exchange)
    if (live := response.live) is not None:

        async def counted(write: Write, gone: Gone) -> bool:
            with _told_at_the_end(exchange, observers):
                if isinstance(write, DirectWrite):
                    try:
                        return await live(write, gone)
                    finally:
                        exchange.sent_bytes += write.sent_bytes

                async def send(piece: bytes) -> None:
                    await write(piece)
                    exchange.sent_bytes += len(piece)

                return await live(send, gone)

        response.live = counted
    if (upgraded := response.upgraded) is not None:

        async def conversed(channel: Channel) -> None:
            with _told_at_the_end(exchange, observers):
                await upgraded(_Counting(channel, exchange))

        response.upgraded = conversed


@contextmanager
def _told_at_the_end(exchange: Exchange, observers: list[RequestObserver]) -> Iterator[None]:
    try:
        yield
    finally:
        exchange.ended = perf_counter()
        for each in observers:
            each.ended(exchange)


class _Counting:
    """A channel that counts the bytes of both directions in the exchange."""

    def __init__(self, channel: Channel, exchange: Exchange) -> None:
        self._channel = channel
        self._exchange = exchange

    async def receive_some(self) -> bytes:
        data = await self._channel.receive_some()
        self._exchange.received_bytes += len(data)
        return data

    async def send_some(self, data: bytes) -> None:
        await self._channel.send_some(data)
        self._exchange.sent_bytes += len(data)

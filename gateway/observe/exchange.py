"""One request and what became of it, for those who only look on: the request log, tracing.

Without anybody who looks on, nothing here is made. Nothing here holds payloads, names of topics or secrets: the path is
the operation's template, the key is the beginning of its digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from gateway.contract.operations import Operation
from gateway.http.messages import Channel, Gone, Request, Response, Write

_NO_FIGURES: Mapping[str, float] = {}


@dataclass(slots=True)
class Exchange:
    """`began` and `ended` are of `perf_counter`. For a stream the answer is its head, and `stream` is true."""

    method: str
    path: str
    status: int
    began: float
    ended: float
    received_bytes: int = 0
    sent_bytes: int = 0
    """Of the body, as it goes over the wire."""
    key: str = ""
    """The first 8 hex digits of the SHA-256 of the key; "" without keys."""
    traceparent: str = ""
    tracestate: str = ""
    stream: bool = False
    figures: Mapping[str, float] = field(default_factory=dict)
    """The shard's, in ms."""

    @property
    def ms(self) -> float:
        return round((self.ended - self.began) * 1000, 3)


class RequestObserver(Protocol):
    def answered(self, exchange: Exchange) -> None:
        """An answer is ready to be sent, or a client is gone before (status 499, as nginx has it)."""

    def ended(self, exchange: Exchange) -> None:
        """A stream that was `answered` before is over; `ended` and `sent_bytes` tell of all of it."""


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
    """Not what a client made up: it would be a field of a log line, or the name of a span."""
    return method if method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS") else "_OTHER"


def observed(response: Response, exchange: Exchange, observers: list[RequestObserver]) -> None:
    """Tell the observers of an answer, and later of its end if it is a stream."""
    exchange.sent_bytes = len(response.body)
    exchange.figures = response.figures or _NO_FIGURES
    live, upgraded = response.live, response.upgraded
    exchange.stream = live is not None or upgraded is not None
    for each in observers:
        each.answered(exchange)

    def over() -> None:
        exchange.ended = perf_counter()
        for each in observers:
            each.ended(exchange)

    if live is not None:

        async def counted(write: Write, gone: Gone) -> bool:
            async def send(piece: bytes) -> None:
                await write(piece)
                exchange.sent_bytes += len(piece)

            try:
                return await live(send, gone)
            finally:
                over()

        response.live = counted
    if upgraded is not None:

        async def conversed(channel: Channel) -> None:
            counting = _Counting(channel, exchange)
            try:
                await upgraded(counting)
            finally:
                over()

        response.upgraded = conversed


class _Counting:
    """A channel, and what goes over it in either direction."""

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

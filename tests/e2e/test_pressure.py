"""Claims about backpressure over real HTTP: a write to a full queue is refused with `Retry-After`, and not stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.service import Service

WRITERS = 8
ROUNDS = 500


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One write may wait for the disk."""
    directory: Path = tmp_path_factory.mktemp("service")
    with Service(directory, shards=1, TOPICS_WAL_QUEUE_MAX="1") as running:
        running.request("PUT", "/v0/topics/safe", {"durability": "fsync"})
        yield running


def write(client: httpx.Client, number: int, **fields: Any) -> httpx.Response:
    return client.post("/v0/topics/safe", json={"records": [{"data": number}], **fields})


def at_once(service: Service, rounds: int, **fields: Any) -> Iterator[tuple[int, httpx.Response]]:
    """Write with several clients at the same time until one write is refused, for at most `rounds` rounds. Yields the
    data of each write with its response."""
    with httpx.Client(base_url=service.url, timeout=20) as client, ThreadPoolExecutor(WRITERS) as writers:
        for start in range(0, rounds * WRITERS, WRITERS):
            numbers = range(start, start + WRITERS)
            responses = list(writers.map(lambda number: write(client, number, **fields), numbers))
            yield from zip(numbers, responses, strict=True)
            if any(response.status_code == 429 for response in responses):
                return


def stored(service: Service) -> list[int]:
    data: list[int] = []
    cursor = 0
    while True:
        found = service.request("POST", "/v0/topics/safe/diff", {"from_seq": cursor, "limit": 1000})[1]
        data += [record["data"] for record in found["records"]]
        cursor = found["next_from_seq"]
        if found["caught_up"]:
            return data


def submit_full(service: Service) -> int:
    metrics = httpx.get(f"{service.url}/v0/metrics", headers={"Accept": "application/json"}).json()
    return int(metrics["topics_wal_submit_full_total"])


def test_a_full_queue_is_429_and_nothing_is_lost_or_doubled(service: Service) -> None:
    """`429 throttled` with `Retry-After` and `retry_after_ms`; `submit_full_total` counts it."""
    before = stored(service)
    acked, refused = [], []
    for number, response in at_once(service, ROUNDS):
        if response.status_code == 200:
            acked.append(number)
        else:
            refused.append(response)
    assert refused, "no write was refused"
    for response in refused:
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (429, "throttled")
        assert 100 <= error["detail"]["retry_after_ms"] <= 5000
        assert int(response.headers["retry-after"]) >= error["detail"]["retry_after_ms"] / 1000
        assert "performance" in response.json()
    assert Counter(stored(service)[len(before) :]) == Counter(acked)
    assert submit_full(service) == len(refused)


def test_a_trusted_loader_is_never_refused(service: Service) -> None:
    """`disable_backpressure`."""
    before, refused = len(stored(service)), submit_full(service)
    responses = [response for _, response in at_once(service, 20, disable_backpressure=True)]
    assert {response.status_code for response in responses} == {200}
    assert len(stored(service)) - before == 20 * WRITERS
    assert submit_full(service) == refused

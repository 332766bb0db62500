"""Claims about shards that need each other, and are held by different machines, as real services."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from proto.model.names import shard_of
from tests.e2e.test_forwarding import FSYNC, HEARS, PATIENCE_S, asks, done, publish
from tests.e2e.test_roles import machine, records
from tests.support.service import Service, until

SHARDS = 2
MOST = 12
"""Topics in all."""


def name(index: int, number: int = 0) -> str:
    """The name of a topic of a shard."""
    return [found for n in range(200) if shard_of(found := f"t{n}", SHARDS) == index][number]


def holder(running: list[Service], index: int) -> Service:
    return next(each for each in running if index in each.held())


def serves(running: Service) -> bool:
    running.port = int(running.status().get("url", ":0").rpartition(":")[2])
    return running.port > 0 and running.is_ready()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Service]]:
    """Two machines; the first one serves, and the other one has not been started."""
    with ExitStack() as stack:
        made = [machine(tmp_path, each, **HEARS, TOPICS_MAX_TOPICS=str(MOST)) for each in ("one", "two")]
        for each in made:
            stack.callback(each.close)
        made[0].start(wait=False)
        until(lambda: serves(made[0]), "a machine that serves", PATIENCE_S)
        yield made


@pytest.fixture
def spread(two: list[Service]) -> list[Service]:
    """Two machines, each of which holds a shard."""
    join(two)
    return two


def join(machines: list[Service]) -> None:
    machines[1].start(wait=False)
    until(lambda: serves(machines[1]), "another machine that serves", PATIENCE_S)
    until(lambda: [len(each.held()) for each in machines] == [1, 1], "each to hold a shard", PATIENCE_S)


def make(running: Service, topic: str) -> None:
    """Make a topic. A shard that has just moved may grow when the treasurer has heard of its holder."""
    until(lambda: asks(running, "PUT", f"/v0/topics/{topic}", FSYNC)[0] in (200, 201), "a topic", PATIENCE_S)


def test_routers_dead_letters_and_caps_reach_over_machines(spread: list[Service]) -> None:
    one, two = spread
    source, dest, queue, letters = name(0), name(1), name(1, 1), name(0, 1)
    for each in (source, dest, letters):
        make(one, each)
    done(two, "PUT", "/v0/routers/r", {"source": source, "dest": dest})
    publish(two, source, "routed")
    until(lambda: records(one, dest) == ["routed"], "the copy", PATIENCE_S)
    done(two, "PUT", f"/v0/topics/{queue}", {"type": "queue", "max_deliveries": 1, "dead_letter": letters, **FSYNC})
    publish(one, queue, "job")
    for _ in range(2):
        claimed = done(one, "POST", f"/v0/topics/{queue}/claim", {"node": "n", "lease_ms": 60_000})["claimed"]
        if claimed:
            done(two, "POST", f"/v0/topics/{queue}/nack", {"node": "n", "seqs": [1]})
    until(lambda: records(two, letters) == ["job"], "the letter", PATIENCE_S)
    assert fill(one) + 4 == MOST, "neither more nor fewer topics than allowed"
    assert asks(two, "DELETE", f"/v0/topics/{source}")[1]["routers_removed"] == ["r"]


def fill(running: Service) -> int:
    """Make topics until the cap is reached. Returns how many."""
    count = 0
    for number in range(10, 10 + 2 * MOST):
        status, answer = asks(running, "PUT", f"/v0/topics/t{number}", FSYNC)
        while status == 503:  # what all shards hold is not known yet
            status, answer = asks(running, "PUT", f"/v0/topics/t{number}", FSYNC)
        if status == 429:
            assert answer["error"]["detail"]["limit"] == "max_topics"
            return count
        assert status in (200, 201), answer
        count += status == 201
    raise AssertionError(f"{count} topics")


def test_when_the_holder_of_shard_0_is_lost_the_other_one_has_its_jobs(spread: list[Service]) -> None:
    lost = holder(spread, 0)
    left = next(each for each in spread if each is not lost)
    for index in (0, 1):
        make(left, name(index))
        publish(left, name(index), index)
    lost.kill_group()
    publish(left, name(1), "shard 1 serves on")
    until(lambda: left.held() == {0, 1}, "a takeover", PATIENCE_S)
    until(lambda: asks(left, "PUT", "/v0/routers/r", {"source": name(0), "dest": name(1)})[0] == 201, "a router", 60)
    publish(left, name(0), "routed")
    until(lambda: "routed" in records(left, name(1)), "the copy", PATIENCE_S)
    assert records(left, name(0))[0] == 0
    assert fill(left) + 2 == MOST


def test_a_machine_that_joins_costs_latency_and_no_error(two: list[Service]) -> None:
    first, over = two[0], threading.Event()
    written: list[list[int]] = [[], []]
    failed: list[Any] = []
    for index in (0, 1):
        make(first, name(index))

    def write(index: int) -> None:
        while not over.is_set():
            number = len(written[index])
            answer = asks(first, "POST", f"/v0/topics/{name(index)}", {"records": [{"data": number}]})
            if answer[0] != 200:
                failed.append(answer)
                return
            written[index].append(number)

    workers = [threading.Thread(target=write, args=(index,)) for index in (0, 1)]
    for each in workers:
        each.start()
    try:
        join(two)
        counts = [len(each) for each in written]
        until(
            lambda: failed or all(len(each) > count for each, count in zip(written, counts, strict=True)),
            "writes",
            PATIENCE_S,
        )
    finally:
        over.set()
        for each in workers:
            each.join()
    assert not failed
    for index in (0, 1):
        for running in two:
            assert records(running, name(index)) == written[index], "each once, in order"

"""Claims about three machines, each of which holds its part of the shards, as real services with one bucket.

A machine that joins or leaves costs latency; one that is lost costs its shards the time to live, and the others
nothing. Every acknowledged `fsync` write is there once, in order, whatever happens.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import machines
import pytest

from proto.model.names import shard_of
from tests.e2e.test_forwarding import FSYNC, HEARS, PATIENCE_S, asks, done
from tests.e2e.test_roles import machine, records
from tests.support.service import Service, until

SHARDS = 3
TTL_MS = 4000
"""Long enough for a busy machine to renew its terms in time."""
TOPICS = [next(name for n in range(200) if shard_of(name := f"t{n}", SHARDS) == index) for index in range(SHARDS)]
"""One of each shard."""
SLOW_S = 8
"""By how much longer things may take on a machine that does something else."""


def serves(running: Service) -> bool:
    running.port = int(running.status().get("url", ":0").rpartition(":")[2])
    return running.port > 0 and running.is_ready()


def spread(*machines: Service) -> bool:
    """Whether each shard is held once, and each machine holds its part."""
    parts = [each.held() for each in machines]
    loads = sorted(map(len, parts))
    return set().union(*parts) == set(range(SHARDS)) and sum(loads) == SHARDS and loads[-1] - loads[0] <= 1


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Service]]:
    """Three machines that have not been started."""
    with ExitStack() as stack:
        more = HEARS | {"TOPICS_SHARDS": str(SHARDS), "TOPICS_TERM_TTL_MS": str(TTL_MS)}
        made = [machine(tmp_path, name, **more) for name in ("one", "two", "three")]
        for each in made:
            stack.callback(each.close)
        yield made


def started(*machines: Service) -> None:
    """Start machines, and wait until they have their parts and serve. The first one makes the service."""
    for each in machines:
        each.start(wait=False)
        until(lambda each=each: serves(each), "a machine that serves", PATIENCE_S)
    until(lambda: spread(*machines), "an even spread", PATIENCE_S)


class Load:
    """A writer for each shard, through one machine after the other."""

    def __init__(self, *machines: Service) -> None:
        for topic in TOPICS:
            done(machines[0], "PUT", f"/v0/topics/{topic}", FSYNC)
        self.machines = machines
        self.acknowledged: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        self.failed: dict[str, list[Any]] = {topic: [] for topic in TOPICS}
        self.slowest_s = 0.0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(topic,)) for topic in TOPICS]

    def _write(self, topic: str) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            through = self.machines[number % len(self.machines)]
            began = time.monotonic()
            answer = asks(through, "POST", f"/v0/topics/{topic}", {"records": [{"data": number}]})
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            if answer[0] == 200:
                self.acknowledged[topic].append(number)
            else:
                self.failed[topic].append(answer)
                self._over.wait(0.01)

    def __enter__(self) -> Load:
        for each in self._threads:
            each.start()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def goes_on(self, *topics: str) -> None:
        """Return when each of these topics, or of all, has more acknowledged writes."""
        before = {topic: len(numbers) for topic, numbers in self.acknowledged.items()}

        def more() -> bool:
            return all(len(self.acknowledged[topic]) > before[topic] + 5 for topic in topics or TOPICS)

        until(more, "acknowledged writes", PATIENCE_S)

    def check(self, *machines: Service) -> None:
        """Every acknowledged write is there once, in order, through each of these machines."""
        for topic, numbers in self.acknowledged.items():
            for each in machines:
                found = records(each, topic)
                assert found == sorted(set(found)), topic
                assert [number for number in found if number in set(numbers)] == numbers, topic


def test_machines_have_even_parts_and_any_of_them_serves_all_shards(three: list[Service]) -> None:
    started(*three)
    with Load(*three) as load:
        pass
    assert not any(load.failed.values())
    load.check(*three)


def test_a_machine_that_joins_gets_its_part_and_costs_no_error(three: list[Service]) -> None:
    one, two, joins = three
    started(one, two)
    with Load(one, two) as load:
        joins.start(wait=False)
        until(lambda: spread(*three) and serves(joins), "an even spread", PATIENCE_S)
        load.goes_on()
    assert not any(load.failed.values())
    assert load.slowest_s < 5, "requests are held for no longer"
    load.check(one, two, joins)


def test_the_loss_of_a_machine_costs_its_shards_the_time_to_live_and_the_others_nothing(three: list[Service]) -> None:
    started(*three)
    lost, *left = three
    shards = lost.held()
    topics = [TOPICS[shard] for shard in shards]
    with Load(*left) as load:
        lost.kill_group()
        began = time.monotonic()
        load.goes_on(*topics)
        assert time.monotonic() - began < TTL_MS / 1000 + 2 + SLOW_S
        until(lambda: spread(*left), "an even spread", PATIENCE_S)
        load.goes_on()
    assert {topic for topic, failed in load.failed.items() if failed} <= set(topics)
    load.check(*left)


def test_a_machine_that_comes_back_gets_its_part_again(three: list[Service]) -> None:
    started(*three)
    back, *left = three
    with Load(*left) as load:
        back.kill_group()
        until(lambda: spread(*left), "a takeover", PATIENCE_S)
        back.start(wait=False)
        until(lambda: spread(*three), "an even spread", PATIENCE_S)
        load.goes_on()
        failed = {topic: len(each) for topic, each in load.failed.items()}
        back.stop(timeout_s=60)
        until(lambda: spread(*left), "an even spread", PATIENCE_S)
        load.goes_on()
    assert {topic: len(each) for topic, each in load.failed.items()} == failed, "a stop in order costs no error"
    load.check(*left)


def test_a_machine_that_leaves_gives_its_shards_away_first(three: list[Service], tmp_path: Path) -> None:
    started(*three)
    leaves, *left = three
    with Load(*left) as load:
        command = [sys.executable, "-m", "supervisor.cli", "leave", "--within", str(PATIENCE_S)]
        ended = subprocess.run(
            command, env=leaves.environment, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
        )
        assert (ended.returncode, "has left" in ended.stdout) == (0, True), ended.stderr
        assert leaves.wait_exit() == 0
        assert spread(*left)
        load.goes_on()
    assert not any(load.failed.values())
    assert len(os.listdir(tmp_path / "bucket" / "members")) == 2
    load.check(*left)
    for each in three:
        assert "Traceback" not in each.log_text()


def test_when_its_roster_dies_a_machine_serves_on(three: list[Service]) -> None:
    one, two, _ = three
    started(one, two)
    with Load(one, two) as load:
        for each in (one, two):
            each.kill_child("roster")
        load.goes_on()
        until(lambda: spread(one, two), "an even spread", PATIENCE_S)
    assert not any(load.failed.values())
    load.check(one, two)


def test_a_kill_costs_writers_the_time_to_live_a_move_next_to_nothing_and_other_shards_no_write(tmp_path: Path) -> None:
    events = list(machines.run(tmp_path, 1, TTL_MS, patience_s=PATIENCE_S))
    assert [each.what for each in events] == ["joins", "is killed", "joins", "leaves"]
    for each in events:
        assert each.away_s < each.aim_s(TTL_MS) + SLOW_S, each
        assert not each.others_failed, each
        assert each.what == "is killed" or not each.failed, each

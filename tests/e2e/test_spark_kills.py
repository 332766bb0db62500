"""Claims about a stream from topics to a topic while its driver and the service are killed: the sink has every record
once.

A driver dies with its JVM, but the Python workers that are writing go on for a moment, like an executor that outlives
its driver.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_topics.client import Client
from tests.support.service import Service, until
from tests.support.spark import ROOT

pytestmark = pytest.mark.spark

TOPICS = 3
PER_WRITE = 20
DRIVER = r"""
import json, sys
from pyspark.sql import SparkSession

given = json.loads(sys.argv[1])
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
stream = spark.readStream.format("topics").options(**given["source"]).load().select("value", "key")
query = stream.writeStream.format("topics").options(**given["sink"]).trigger(**given["trigger"]).start()
query.awaitTermination()
"""


class Driver:
    """A Spark driver that runs the stream, in a process group of its own."""

    def __init__(self, log: Path, source: dict[str, str], sink: dict[str, str], trigger: dict[str, Any]) -> None:
        self.log = log
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        given = json.dumps({"source": source, "sink": sink, "trigger": trigger})
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, given],
                env=environment | {"SPARK_LOCAL_IP": "127.0.0.1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def check(self) -> None:
        assert self._process.poll() is None, f"the driver ended by itself:\n{self.log.read_text()[-4000:]}"

    def kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()


class Writer(threading.Thread):
    """Writes numbered records until told to stop, each once, through all kills of the service."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._stop_now = threading.Event()
        self.written = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Client(self._url, patience_s=120) as client:
                while not self._stop_now.wait(0.1):
                    for topic in range(TOPICS):
                        records = [{"data": [topic, self.written + n], "tag": "x"} for n in range(PER_WRITE)]
                        body = {"records": records, "idempotency_key": f"w/{self.written}"}
                        client.append(f"in:{topic}", json.dumps(body).encode())
                    self.written += PER_WRITE
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        self._stop_now.set()

    def finish(self) -> int:
        self.stop()
        self.join(150)
        assert not self.is_alive()
        assert self.failure is None, self.failure
        return self.written


def head(service: Service) -> int:
    try:
        return int(service.request("GET", "/v0/topics/out?touch=false", timeout_s=30)[1].get("head_seq", -1))
    except OSError:
        return -1


def survive(
    new_service: Callable[..., Service], tmp_path: Path, reading: str, kills: int, seed: int, longest_s: float
) -> None:
    print(f"seed {seed}")  # noqa: T201 - to run it again
    chance = random.Random(seed)
    service = new_service(
        TOPICS_CHECKPOINT_INTERVAL_MS="500", TOPICS_SEGMENT_MAX_EVENTS="1000", TOPICS_WAL_SEGMENT_BYTES="65536"
    ).start()
    for topic in range(TOPICS):
        service.request("PUT", f"/v0/topics/in:{topic}", {})
    # Starting Spark may take long on a busy machine: longer than keys are remembered otherwise.
    service.request("PUT", "/v0/topics/out", {"idempotency_window_ms": 3_600_000})
    place = {"url": service.url} if reading == "url" else {"path": str(service.data_dir)}
    source = {**place, "subscribePattern": "in:.*", "startingOffsets": "earliest", "minPartitions": "4"}
    source |= {"maxOffsetsPerTrigger": "2000"}  # small batches, so that kills come between them as well
    source |= {"retryTimeoutMs": "120000"} if reading == "url" else {}
    sink = {"url": service.url, "topic": "out", "checkpointLocation": str(tmp_path / "checkpoint")}
    sink |= {"maxRecordsPerRequest": "37", "retryTimeoutMs": "120000"}
    running = {"processingTime": "50 milliseconds"}
    log = tmp_path / "driver.log"
    writer = Writer(service.url)
    writer.start()
    drivers = [Driver(log, source, sink, running)]

    def moves_on() -> None:
        before = head(service)

        def moved() -> bool:
            drivers[-1].check()
            return head(service) > before

        until(moved, "the stream to go on", 120)

    try:
        for number in range(kills):
            moves_on()
            time.sleep(chance.uniform(0, longest_s))  # the moment itself is what is random here
            drivers[-1].check()
            if number % 2 == 0 if number < 2 else chance.random() < 0.5:
                drivers[-1].kill()
                drivers.append(Driver(log, source, sink, running))
            else:
                service.kill_group()
                service.start()
        moves_on()
        count = writer.finish()
        until(lambda: drivers[-1].check() or head(service) >= TOPICS * count, "the last records", 120)
    finally:
        drivers[-1].kill()
        writer.stop()
    found: Counter[tuple[int, int]] = Counter()
    with Client(service.url) as client:
        position = 0
        while True:
            diff = client.diff("out", position, 1000)
            for data in diff.records["data"].to_pylist():
                topic, number = json.loads(data)
                found[topic, number] += 1
            position = diff.next_from_seq
            if position >= diff.head_seq:
                break
    expected = {(topic, number) for topic in range(TOPICS) for number in range(count)}
    assert count
    assert not expected - found.keys(), f"{len(expected - found.keys())} of {len(expected)} records are missing"
    assert {record: n for record, n in found.items() if n > 1} == {}
    assert found.keys() == expected


def test_a_driver_and_the_service_are_killed_once(new_service: Callable[..., Service], tmp_path: Path) -> None:
    survive(new_service, tmp_path, "url", 2, random.randrange(2**32), 1.0)


@pytest.mark.long
@pytest.mark.parametrize("reading", ["url", "path"])
def test_drivers_and_the_service_are_killed_ten_times(
    new_service: Callable[..., Service], tmp_path: Path, reading: str
) -> None:
    survive(new_service, tmp_path, reading, 10, random.randrange(2**32), 3.0)

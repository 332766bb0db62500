"""Claims about two machines with one bucket and TOPICS_REPLICATION=sync: two services with a directory each.

Whatever becomes of the machine that holds the shards, the other one has every acknowledged `fsync` write once and in
order, and takes over by itself. The one that was replaced becomes a standby.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_backup import topics
from tests.support.service import Service, until

TTL_MS = 1500
SHARDS = 2
TOPICS = [f"t{n}" for n in range(3)]


def machine(directory: Path, name: str, **more: str) -> Service:
    bucket = directory / "bucket"
    bucket.mkdir(exist_ok=True)
    (directory / name).mkdir()
    settings = {
        "TOPICS_BUCKET": bucket.as_uri(),
        "TOPICS_REPLICATION": "sync",
        "TOPICS_TERM_TTL_MS": str(TTL_MS),
        "TOPICS_ADVERTISE": f"http://{name}.example:4000",
    }
    return Service(directory / name, shards=None, **(settings | {"TOPICS_SHARDS": str(SHARDS)} | more))


def stands_by(running: Service) -> Any:
    """The detail of a standby's answer to the readiness probe, if it is one."""
    try:
        running.port = int(running.status().get("url", ":0").rpartition(":")[2])
        status, answer = running.request("GET", "/v0/ready", timeout_s=2)
    except (OSError, http.client.HTTPException):
        return None
    detail = answer.get("error", {}).get("detail", {})
    return detail if status == 503 and detail.get("standby") else None


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Service, Service]]:
    """A holder with topics, and a standby. The parameter is the time to live, ms, or `async`."""
    given = getattr(request, "param", TTL_MS)
    more = {"TOPICS_REPLICATION": "async"} if given == "async" else {"TOPICS_TERM_TTL_MS": str(given)}
    one, two = machine(tmp_path, "one", **more), machine(tmp_path, "two", **more)
    try:
        one.start(wait=False)
        until(lambda: len(list(tmp_path.glob("bucket/shard-*/terms/*"))) == SHARDS, "the terms of the first one", 60)
        two.start(wait=False)
        one.wait_ready()
        for topic in TOPICS:
            assert one.request("PUT", f"/v0/topics/{topic}", {"durability": "fsync"})[0] in (200, 201)
        until(lambda: stands_by(two), "a standby", 60)
        yield one, two
    finally:
        one.close()
        two.close()


def records(running: Service, topic: str) -> list[Any]:
    return [record["data"] for record in all_records(running, topic)]


def all_records(running: Service, topic: str) -> list[Any]:
    found: list[Any] = []
    cursor, caught_up = 0, False
    while not caught_up:
        status, answer = running.request("POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000})
        assert status == 200, answer
        found += answer["records"]
        cursor, caught_up = answer["next_from_seq"], answer["caught_up"]
    return found


class Writers:
    """A writer for each topic, which notes what was acknowledged. It goes to the other machine when one fails it."""

    def __init__(self, *machines: Service) -> None:
        self.machines = machines
        self.acknowledged: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        self.stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(topic,)) for topic in TOPICS]

    def __enter__(self) -> Writers:
        for each in self._threads:
            each.start()
        self.wait(5)
        return self

    def wait(self, more: int) -> None:
        """Return when each writer has so many more acknowledgements."""
        before = {topic: len(numbers) for topic, numbers in self.acknowledged.items()}
        until(lambda: all(len(self.acknowledged[t]) >= before[t] + more for t in TOPICS), "acknowledged writes", 30)

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for each in self._threads:
            each.join()

    def _write(self, topic: str) -> None:
        number = at = 0
        while not self.stop.is_set():
            number += 1
            try:
                status, _ = self.machines[at].request(
                    "POST", f"/v0/topics/{topic}", {"records": [{"data": number}]}, timeout_s=1
                )
            except (OSError, http.client.HTTPException):
                status = 0
            if status == 200:
                self.acknowledged[topic].append(number)
                self.stop.wait(0.002)
            else:
                at = (at + 1) % len(self.machines)
                self.stop.wait(0.02)

    def check(self, running: Service) -> None:
        for topic, numbers in self.acknowledged.items():
            found = records(running, topic)
            assert found == sorted(set(found)), "every write once, in order"
            assert [number for number in found if number in set(numbers)] == numbers


def status_of(running: Service, status: int = 0) -> str:
    return topics("status", "--json", status=status, **running.environment).stdout


def test_a_standby_says_who_holds_the_shards(pair: tuple[Service, Service]) -> None:
    one, two = pair
    detail = stands_by(two)
    assert detail["holder"] == "http://one.example:4000"
    connection = two.connect()
    connection.request("GET", "/v0/topics/t0")
    response = connection.getresponse()
    assert (response.status, response.getheader("Retry-After")) == (503, "1")
    assert b"not_ready" in response.read()
    connection.close()
    shown = json.loads(status_of(two, 3))
    assert (shown["state"], shown["holder"]) == ("standby", "http://one.example:4000")
    assert {each["term"] for each in json.loads(status_of(one))["processes"] if "shard" in each["process"]} == {1}
    assert one.is_ready()


def test_a_killed_holder_is_replaced_and_nothing_acknowledged_is_lost(pair: tuple[Service, Service]) -> None:
    one, two = pair
    with Writers(one, two) as writers:
        one.kill_group()
        killed = time.monotonic()
        until(two.is_ready, "the takeover", 60)
        took = time.monotonic() - killed
        writers.wait(5)
    assert took < TTL_MS / 1000 + 4
    writers.check(two)


def test_a_holder_that_was_stopped_for_longer_than_the_time_to_live_becomes_a_standby(
    pair: tuple[Service, Service],
) -> None:
    one, two = pair
    with Writers(one, two) as writers:
        assert one.process is not None
        pids = one.pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        until(two.is_ready, "the takeover", 60)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        until(lambda: stands_by(one), "the deposed holder as a standby", 60)
        writers.wait(5)
    assert stands_by(one)["holder"] == "http://two.example:4000"
    writers.check(two)
    two.kill_group()
    until(one.is_ready, "the way back", 60)
    writers.check(one)


@pytest.mark.parametrize("pair", [60_000], indirect=True)
def test_a_drained_holder_is_replaced_at_once(pair: tuple[Service, Service]) -> None:
    one, two = pair
    for topic in TOPICS[1:]:
        assert one.request("PUT", f"/v0/topics/{topic}", {"durability": "disk"})[0] in (200, 201)
    with Writers(one, two) as writers:
        one.stop()
        until(two.is_ready, "the takeover, long before the time to live is over", 45)
        writers.wait(5)
    writers.check(two)
    one.start(wait=False)
    until(lambda: stands_by(one), "a standby", 60)


def test_an_operator_may_have_a_standby_take_over(pair: tuple[Service, Service]) -> None:
    one, two = pair
    with Writers(one, two) as writers:
        assert take_over(two) == (0, "this machine holds the shards now\n")
        until(lambda: stands_by(one), "the replaced holder as a standby", 60)
        writers.wait(5)
    writers.check(two)


@pytest.mark.parametrize("pair", ["async"], indirect=True)
def test_without_waiting_for_the_bucket_an_operator_decides_and_no_seq_names_two_records(
    pair: tuple[Service, Service], tmp_path: Path
) -> None:
    one, two = pair
    with Writers(one, two) as writers:
        shipped = {topic: numbers[-1] for topic, numbers in writers.acknowledged.items()}
        before = parts(one)  # one more may have been read before these writes
        until(lambda: all(now > then + 1 for now, then in zip(parts(one), before, strict=True)), "parts", 30)
        one.kill_group()
        time.sleep(2 * TTL_MS / 1000)
        assert stands_by(two), "nothing is lost without an operator's word"
        killed = {topic: numbers[-1] for topic, numbers in writers.acknowledged.items()}
        assert take_over(two) == (0, "this machine holds the shards now\n")
        writers.wait(5)
    for topic, numbers in writers.acknowledged.items():
        found = all_records(two, topic)
        data, seqs = [record["data"] for record in found], [record["$seq"] for record in found]
        assert data == sorted(set(data))
        assert seqs == sorted(set(seqs))
        assert {number for number in numbers if number <= shipped[topic] or number > killed[topic]} <= set(data)
        jump = max(after - before for before, after in pairwise(seqs))
        assert jump > 1 << 20, "seqs that the lost machine may have given are left out"
    one.start(wait=False)
    until(lambda: stands_by(one), "the lost machine as a standby", 60)


def take_over(running: Service) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.cli", "takeover"],
        env=running.environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def asked_at(running: Service) -> float:
    """When the machine was told last to take over, in seconds since 1970."""
    told = re.findall(r"timestamp=(\S+) .*event=taking_over", running.log_text())
    return datetime.fromisoformat(told[-1]).timestamp()


def parts(running: Service) -> list[int]:
    """Number of parts that each shard has created."""
    connection = running.connect()
    try:
        connection.request("GET", "/v0/metrics", headers={"Accept": "application/json"})
        metrics = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return [int(each["value"]) for each in metrics["topics_replica_parts_total"]]


def test_a_holder_that_cannot_reach_its_bucket_is_silent_before_another_could_take_over(
    pair: tuple[Service, Service], tmp_path: Path
) -> None:
    one, two = pair
    with Writers(one, two) as writers:
        (tmp_path / "bucket").rename(tmp_path / "gone")

        def silent() -> bool:
            status, answer = one.request("POST", "/v0/topics/t0/diff", {"from_seq": 0})
            return status == 503 and answer["error"].get("detail", {}).get("reason") == "term_not_renewed"

        until(silent, "silence", 30)
        # Another gateway has it from the shard's next packet to it.
        until(lambda: one.request("GET", "/v0/ready")[0] == 503, "readiness to say so", 30)
        shutil.rmtree(tmp_path / "bucket", ignore_errors=True)  # a write that began before may have made it
        (tmp_path / "gone").rename(tmp_path / "bucket")
        until(lambda: one.is_ready() or two.is_ready(), "a holder", 60)
        writers.wait(5)
    writers.check(one if one.is_ready() else two)


@pytest.mark.parametrize("pair", [20_000], indirect=True)
def test_of_two_standbys_that_are_told_to_take_over_at_once_one_says_at_once_that_it_did_not(
    pair: tuple[Service, Service], tmp_path: Path
) -> None:
    one, two = pair
    three = machine(tmp_path, "three", TOPICS_TERM_TTL_MS="20000")
    try:
        three.start(wait=False)
        until(lambda: stands_by(three), "the other standby", 60)
        machines = {"one": one, "two": two, "three": three}
        lost: list[tuple[str, str, float]] = []
        for _ in range(3):
            asked = time.time()
            told = [name for name, each in machines.items() if stands_by(each)]
            with ThreadPoolExecutor(2) as threads:
                answers = list(threads.map(lambda name: (*take_over(machines[name]), time.time()), told))
            lost = [
                (name, text, ended - asked) for name, (status, text, ended) in zip(told, answers, strict=True) if status
            ]
            if lost:
                break
            # Both hold the shards in turn only if one was asked after the other one's command had ended.
            assert max(asked_at(machines[name]) for name in told) > min(ended for _, _, ended in answers), answers
            until(lambda: sum(bool(stands_by(each)) for each in machines.values()) == 2, "two standbys", 40)
        ((loser, text, took),) = lost
        assert ".example:4000 holds the shards" in text
        assert took < 20, "long before the command gives up"
        (holder,) = set(told) - {loser}
        until(machines[holder].is_ready, "readiness", 20)
        for name in machines.keys() - {holder}:
            detail = until(lambda each=machines[name]: stands_by(each), "a standby", 20)
            assert detail["holder"] == f"http://{holder}.example:4000"
    finally:
        three.close()


OTHERS = {
    "TOPICS_REPLICATION": ("async", "has TOPICS_REPLICATION=sync, this machine TOPICS_REPLICATION=async"),
    "TOPICS_TERM_TTL_MS": ("2500", f"has TOPICS_TERM_TTL_MS={TTL_MS}, this machine TOPICS_TERM_TTL_MS=2500"),
    "TOPICS_SHARDS": ("3", f"TOPICS_SHARDS=3, but {{bucket}} holds a service with {SHARDS} shards"),
    "TOPICS_BUCKET_ENCRYPT": ("true", "has TOPICS_BUCKET_ENCRYPT=false, this machine TOPICS_BUCKET_ENCRYPT=true"),
    "TOPICS_BUCKET_KEY_FILE": ("{other}", "is sealed with another key than that of TOPICS_BUCKET_KEY_FILE"),
}
"""Each setting that two machines have alike, another value for the second one, and what that one says."""


@pytest.mark.parametrize("name", OTHERS)
def test_a_machine_with_another_setting_does_not_start_and_replaces_nothing(tmp_path: Path, name: str) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    key.write_text("k" * 64)
    other.write_text("o" * 64)
    value, sentence = (
        text.format(bucket=(tmp_path / "bucket").as_uri(), other=other) if "{" in text else text
        for text in OTHERS[name]
    )
    alike = {"TOPICS_BUCKET_KEY_FILE": str(key), "TOPICS_BUCKET_ENCRYPT": "false"}
    one, two = machine(tmp_path, "one", **alike), machine(tmp_path, "two", **(alike | {name: value}))
    try:
        one.start()
        two.start(wait=False)
        until(lambda: sentence in two.log_text(), "the refusal", 30)
        time.sleep(2 * TTL_MS / 1000)
        assert one.is_ready()
        assert not two.is_ready()
        assert len(list(tmp_path.glob("bucket/shard-*/terms/*"))) == SHARDS
    finally:
        one.close()
        two.close()

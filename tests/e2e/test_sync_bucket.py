"""Claims about TOPICS_REPLICATION=sync, with real processes and an S3 server.

What was acknowledged as `fsync` is in the bucket, so it outlives the machine. While the bucket is silent, such changes
are refused with the reason, and all else goes on.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bucket import S3Server
from tests.support.service import Service, until

FSYNC = {"durability": "fsync"}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


def service(directory: Path, server: S3Server, prefix: str, **more: str) -> Service:
    settings = {
        "TOPICS_BUCKET": f"s3://{server.bucket}/{prefix}",
        "TOPICS_REPLICATION": "sync",
        "TOPICS_BUCKET_TIMEOUT_MS": "1000",
    }
    directory.mkdir(exist_ok=True)
    return Service(directory, **(settings | server.environment | more))


def write(running: Service, topic: str, data: Any) -> tuple[int, Any]:
    return running.request("POST", f"/v0/topics/{topic}", {"records": [{"data": data}]})


def records(running: Service, topic: str) -> list[Any]:
    status, answer = running.request("POST", f"/v0/topics/{topic}/diff", {"from_seq": 0, "limit": 1000})
    assert status == 200, answer
    return [record["data"] for record in answer["records"]]


def restore(into: Service) -> None:
    """Make the data directory of a service that is not running from its bucket."""
    subprocess.run(
        [sys.executable, "-m", "supervisor.cli", "restore", "--from", into.environment["TOPICS_BUCKET"]],
        env=into.environment,
        check=True,
        timeout=60,
        capture_output=True,
    )


def refused(running: Service) -> bool:
    """Whether the gateway answers, and says that the service is not ready."""
    try:
        return running.request("GET", "/v0/ready")[0] == 503
    except OSError:
        return False


def test_what_was_acknowledged_outlives_the_machine(tmp_path: Path, server: S3Server) -> None:
    acknowledged: dict[str, list[int]] = {f"t{n}": [] for n in range(4)}
    enough = threading.Event()
    with service(tmp_path / "one", server, "lost") as running:
        for topic in acknowledged:
            assert running.request("PUT", f"/v0/topics/{topic}", FSYNC)[0] in (200, 201)

        def writing(topic: str) -> None:
            for number in range(10_000):
                try:
                    status, _ = write(running, topic, number)
                except OSError:
                    return
                if status == 200:
                    acknowledged[topic].append(number)
                if len(acknowledged[topic]) >= 15:
                    enough.set()

        threads = [threading.Thread(target=writing, args=(topic,)) for topic in acknowledged]
        for thread in threads:
            thread.start()
        assert enough.wait(30)
        running.kill_group()
        for thread in threads:
            thread.join()
    shutil.rmtree(running.data_dir)
    after = service(tmp_path / "two", server, "lost")
    restore(after)
    after.environment.pop("TOPICS_BUCKET")
    with after:
        for topic, numbers in acknowledged.items():
            found = records(after, topic)
            assert found[: len(numbers)] == numbers
            assert found == list(range(len(found))), "every write once, in order"


def test_a_silent_bucket_refuses_what_waits_for_it_and_nothing_else(tmp_path: Path, server: S3Server) -> None:
    with service(tmp_path, server, "silent", TOPICS_SHARDS="1") as running:
        running.request("PUT", "/v0/topics/safe", FSYNC)
        running.request("PUT", "/v0/topics/fast", {"durability": "disk"})
        assert write(running, "safe", 1)[0] == 200
        server.signal(signal.SIGSTOP)
        try:
            status, answer = write(running, "safe", 2)
            assert (status, answer["error"]["detail"]["reason"]) == (503, "bucket_away")
            assert answer["error"]["detail"]["outcome"] == "unknown"
            status, answer = write(running, "safe", 3)
            assert (status, answer["error"]["detail"]["outcome"]) == (503, "not_done")
            assert write(running, "fast", 1)[0] == 200
            assert records(running, "safe") == [1]
        finally:
            server.signal(signal.SIGCONT)
        until(lambda: write(running, "safe", 4)[0] == 200, "the bucket", 40)
        assert records(running, "safe")[:2] == [1, 2]
        assert 3 not in records(running, "safe")


def test_a_start_serves_only_when_the_bucket_has_all_that_the_log_has(tmp_path: Path, server: S3Server) -> None:
    with service(tmp_path, server, "start", TOPICS_SHARDS="1") as running:
        running.request("PUT", "/v0/topics/safe", FSYNC)
        server.signal(signal.SIGSTOP)
        try:
            assert write(running, "safe", 1)[0] == 503
            running.kill_group()
            running.start(wait=False)
            until(lambda: refused(running), "the gateway")
            assert write(running, "safe", 2)[0] == 503
            assert refused(running)
        finally:
            server.signal(signal.SIGCONT)
        running.wait_ready(40)
        assert records(running, "safe") == [1]


@pytest.mark.parametrize("made", ["copied", "restored"])
def test_a_service_whose_bucket_goes_on_elsewhere_becomes_a_standby(
    tmp_path: Path, server: S3Server, made: str
) -> None:
    """A service on a copied directory takes the term for its own past, one on a restored directory was made for it."""
    with service(tmp_path / "one", server, f"twice-{made}", TOPICS_SHARDS="1") as first:
        first.request("PUT", "/v0/topics/safe", FSYNC)
        assert write(first, "safe", 1)[0] == 200
        second = service(tmp_path / "two", server, f"twice-{made}", TOPICS_SHARDS="1")
        if made == "copied":
            shutil.copytree(first.data_dir, second.data_dir)
            (second.data_dir / "LOCK").unlink(missing_ok=True)
        else:
            restore(second)
        with second:
            assert write(second, "safe", 2)[0] == 200
            until(lambda: "standing_by" in first.log_text(), "a standby", 30)
            assert "event=deposed" in first.log_text()
            assert write(first, "safe", 3)[0] == 503
            assert write(second, "safe", 4)[0] == 200
            assert records(second, "safe") == [1, 2, 4]

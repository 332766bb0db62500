"""`topics status` and `topics top` against a real service."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.status_view import percentile
from supervisor.cli.top_view import Sample, _Topic, rates
from tests.support.service import Service, until
from topics_client import Client, NewRecord


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("status"), TOPICS_API_KEYS="s3cret") as service:
        yield service


def topics(service: Service, *arguments: str, status: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "supervisor.cli", *arguments]
    env = {**service.environment, "TOPICS_TOKEN": "s3cret", "COLUMNS": "200", **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=env)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def write(service: Service, topic: str, count: int) -> None:
    with Client(service.url, "s3cret") as client:
        client.publish(topic, records=[NewRecord(1)] * count)


def test_status_tells_of_processes_shards_log_and_disk(service: Service) -> None:
    write(service, "a", 10)
    found: dict[str, Any] = json.loads(topics(service, "status", "--json").stdout)
    assert (found["url"], found["state"], found["problems"]) == (service.url, "ready", [])
    assert {each["process"]: each["pid"] for each in found["processes"]} == {
        "supervisor": service.status()["pid"],
        **{name: child["pid"] for name, child in service.status()["children"].items()},
    }
    assert [(shard["shard"], shard["up"], shard["phase"]) for shard in found["shards"]] == [
        (0, True, "ready"),
        (1, True, "ready"),
    ]
    assert found["disk"]["total_bytes"] >= found["disk"]["free_bytes"] > 0
    text = topics(service, "status").stdout
    for shown in ("ready", "shard-01", "writes wait", "free of"):
        assert shown in text


def test_lag_is_shown_for_who_is_behind(service: Service) -> None:
    write(service, "lagging", 7)
    with Client(service.url, "s3cret") as client:
        client.set_cursor("lagging", "me", 2)
    found = json.loads(topics(service, "status", "--json").stdout)
    assert found["lag"] == [{"topic": "lagging", "cursor": "me", "lag": 5}]


def test_without_a_key_readiness_is_shown_and_the_rest_is_said_to_be_refused(service: Service) -> None:
    found = json.loads(topics(service, "status", "--json", status=1, TOPICS_TOKEN="").stdout)
    assert found["state"] == "ready"
    assert "401" in found["problems"][0]
    assert "processes" in found


def test_a_service_that_is_not_there_is_status_3(service: Service, tmp_path: Path) -> None:
    done = topics(service, "status", "--url", "http://127.0.0.1:1", "--json", status=3)
    assert json.loads(done.stdout)["state"] == "unreachable"
    assert "processes" not in json.loads(done.stdout)
    assert "no URL" in topics(service, "status", "--url", "nonsense", status=2).stderr
    assert "refused" in topics(service, "top", "--url", "http://127.0.0.1:1", status=3).stderr


def test_a_shard_that_is_down_is_told(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        service.kill_child("shard-01")
        until(lambda: service.child("shard-01")["incarnation"] == 2 and service.is_ready(), "the shard to be back")
        found = json.loads(topics(service, "status", "--json").stdout)
        assert {each["shard"]: each["restarts"] for each in found["shards"]} == {0: 0, 1: 1}
        service.kill_group()
        # The status file still exists, but must not count.
        found = json.loads(topics(service, "status", "--json", "--url", service.url, status=3).stdout)
        assert "processes" not in found


@pytest.mark.parametrize("arguments", [("status", "--watch", "--json"), ("status", "--watch")])
def test_watching_goes_on_until_it_is_interrupted(service: Service, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "supervisor.cli", *arguments, "--interval", "0.1"]
    environment = {**service.environment, "TOPICS_TOKEN": "s3cret", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for _ in range(3):
            line = process.stdout.readline()
            assert json.loads(line)["state"] == "ready" if "--json" in arguments else line
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(60) == 0


def test_top_is_about_what_grows(service: Service) -> None:
    write(service, "top:a", 3)
    rows = [
        json.loads(line) for line in topics(service, "top", "top:", "--json", "--interval", "0.1").stdout.splitlines()
    ]
    assert [(row["topic"], row["records"], row["head_seq"], row["records_per_s"]) for row in rows] == [
        ("top:a", 3, 3, 0)
    ]
    assert "top:a" in topics(service, "top", "top:", "--interval", "0.1").stdout
    assert "401" in topics(service, "top", status=1, TOPICS_TOKEN="").stderr


def test_rates_are_of_heads_and_a_topic_made_anew_counts_from_its_beginning() -> None:
    def sample(at: float, **heads: int) -> Sample:
        return Sample(at, {name: _Topic(name, head, 1, 5, 100) for name, head in heads.items()}, {"b": 7}, {})

    rows = rates(sample(10, a=5, b=100, gone=9), sample(12, a=25, b=4, new=1), 3)
    assert [(row["topic"], row["records_per_s"], row["lag"]) for row in rows] == [
        ("a", 10.0, None),
        ("b", 2.0, 7),
        ("new", 0.5, None),
    ]
    assert len(rates(sample(0), sample(1, a=1, b=1), 1)) == 1


def test_a_percentile_is_the_bound_it_is_below() -> None:
    buckets = [{"le": "50", "count": 98}, {"le": "100", "count": 99}, {"le": "+Inf", "count": 100}]
    histogram = {"buckets": buckets, "count": 100, "sum": 1}
    assert percentile(histogram, 0.5) == 50
    assert percentile(histogram, 0.99) == 100
    assert percentile(histogram, 1.0) is None
    assert percentile({"buckets": buckets, "count": 0, "sum": 0}, 0.5) is None

"""Claims about three machines of four shards, each of which runs only the shards that it holds or is the second for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from proto.model.limits import Limits
from proto.model.names import shard_of
from shardd.replication.objects import Objects
from shardd.replication.store import open_store
from shardd.roster.members import Standing
from shardd.roster.placement import ranks
from shardd.standby.closed_log import ClosedLog
from shardd.storage.disk import RealDisk
from tests.e2e.test_forwarding import FSYNC, HEARS, asks, done, publish
from tests.e2e.test_roles import machine, records
from tests.support.service import Service, until

SHARDS = 4
TTL_MS = 3000
PATIENCE_S = 120
"""A shard that is not needed runs for six times the time to live more."""
TOPICS = [next(name for n in range(200) if shard_of(name := f"t{n}", SHARDS) == index) for index in range(SHARDS)]
"""One of each shard."""


def phases(running: Service) -> list[str]:
    children = running.status().get("children", {})
    return [children.get(f"shard-{n:02d}", {}).get("phase", "") for n in range(SHARDS)]


def held(running: Service) -> set[int]:
    return {n for n, phase in enumerate(phases(running)) if phase == "ready"}


def serves(running: Service) -> bool:
    running.port = int(running.status().get("url", ":0").rpartition(":")[2])
    return running.port > 0 and running.is_ready()


def named(running: Service) -> str:
    return str(json.loads((running.data_dir / "machine.json").read_text())["machine"])


def spread(*machines: Service) -> bool:
    """Whether each shard is held once, its second follows it, and no other machine has a process of it."""
    parts = {named(each): held(each) for each in machines}
    loads = sorted(map(len, parts.values()))
    if sum(loads) != SHARDS or set().union(*parts.values()) != set(range(SHARDS)) or loads[-1] - loads[0] > 1:
        return False
    there = dict.fromkeys(parts, Standing.PLACEABLE)
    for each in machines:
        children = each.status()["children"]
        for shard in range(SHARDS):
            child = children[f"shard-{shard:02d}"]
            holder = next(name for name, part in parts.items() if shard in part)
            second = ranks(shard, there, holder)[0] == named(each)
            assert child["phase"] != "elsewhere" or child["pid"] is None
            if child["phase"] != ("ready" if holder == named(each) else "standby" if second else "elsewhere"):
                return False
    return True


def metrics(running: Service, family: str) -> dict[str, float]:
    """The rows of a family that are not 0, by shard; with their phases, if they have some."""
    rows = asks(running, "GET", "/v0/metrics", Accept="application/json")[1][family]
    return {each["labels"]["shard"] + each["labels"].get("phase", ""): each["value"] for each in rows if each["value"]}


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Service]]:
    """Three machines that have their parts."""
    with ExitStack() as stack:
        more = HEARS | {"TOPICS_SHARDS": str(SHARDS), "TOPICS_TERM_TTL_MS": str(TTL_MS)}
        made = [machine(tmp_path, name, **more) for name in ("one", "two", "three")]
        for each in made:
            stack.callback(each.close)
        for each in made:
            each.start(wait=False)
            until(lambda each=each: serves(each), "a machine that serves", PATIENCE_S)
        until(lambda: spread(*made), "each to run its shards and no other", PATIENCE_S)
        yield made


def check(*machines: Service, expected: dict[str, list[Any]]) -> None:
    """All records are there, through each machine."""
    for each in machines:
        assert {topic: records(each, topic) for topic in TOPICS} == expected


def cleared(bucket: Path, *machines: Service) -> int:
    """Remove the files of the shards that machines do not run, as a roster does after a day. Returns how many had
    some."""
    count = 0
    for each in machines:
        for shard, phase in enumerate(phases(each)):
            path = each.data_dir / f"shard-{shard:02d}"
            if phase == "elsewhere" and list(path.iterdir()):
                objects = Objects(open_store(bucket.as_uri()), shard)
                closed = ClosedLog(RealDisk(), path, objects, Limits())
                closed.open()
                assert closed.clear(), "what its process followed is in the bucket"
                assert list(path.iterdir()) == []
                count += 1
    return count


@pytest.mark.slow
def test_each_machine_runs_its_shards_and_no_other_and_serves_all(three: list[Service], tmp_path: Path) -> None:
    expected: dict[str, list[Any]] = {topic: [] for topic in TOPICS}
    for topic in TOPICS:
        done(three[0], "PUT", f"/v0/topics/{topic}", FSYNC)
    for number, each in enumerate(three):
        for topic in TOPICS:
            publish(each, topic, number)
            expected[topic].append(number)
    check(*three, expected=expected)
    for each in three:
        shown = {f"{shard}{phase}" for shard, phase in enumerate(phases(each))}
        assert set(metrics(each, "topics_shard_phase")) == shown
        assert len(metrics(each, "topics_shard_up")) == SHARDS, "the holders of the others are reached"
        assert asks(each, "GET", "/v0/ready")[0] == 200

    assert cleared(tmp_path / "bucket", *three) > 0, "the first machine had all shards"
    lost, *left = three
    lost.kill_group()

    def write() -> bool:
        topic = next((topic for topic in TOPICS if len(expected[topic]) == 3), None)
        if topic is not None and asks(left[0], "POST", f"/v0/topics/{topic}", {"records": [{"data": 3}]})[0] == 200:
            expected[topic].append(3)
        return topic is None

    until(write, "writes to all topics", PATIENCE_S)
    until(lambda: spread(*left), "each to follow what the other holds", PATIENCE_S)
    check(*left, expected=expected)

    left[1].kill_group()
    last = left[0]
    until(lambda: held(last) == set(range(SHARDS)), "one machine to hold all", PATIENCE_S)
    check(last, expected=expected)

    lost.start(wait=False)
    until(lambda: serves(lost) and spread(last, lost), "a machine that comes back to get its part", PATIENCE_S)
    check(last, lost, expected=expected)
    for each in (last, lost):
        assert "Traceback" not in each.log_text()

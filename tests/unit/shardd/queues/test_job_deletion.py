"""Jobs that are deleted."""

from __future__ import annotations

from errno import EIO

import pytest

from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness
from tests.support.queues import claim, counters, got, hold, queue, seqs


@pytest.fixture
def shard() -> Harness:
    return queue(Harness())


def test_an_ack_deletes_the_jobs_and_is_idempotent(shard: Harness) -> None:
    shard.append("q", *range(4))
    claim(shard, most=3)
    answer = hold(shard, "ack", 1, 3)
    assert (answer["acked"], answer["skipped"], answer["ready"], answer["in_flight"]) == (2, [], 1, 1)
    assert seqs(shard.everything("q")) == [2, 4]
    assert shard.call("state", "q")["count"] == 2
    answer = hold(shard, "ack", 1, 3, 4, 99, 2, 2)
    assert (answer["acked"], answer["skipped"]) == (1, [1, 3, 4, 99, 2])


@pytest.mark.parametrize("how", ["before", "match", "cap", "ttl"])
def test_jobs_that_are_removed_are_in_no_counter(shard: Harness, how: str) -> None:
    shard.call("append", "q", {"records": [{"data": n, "tag": f"t{n}"} for n in range(1, 6)]})
    claim(shard, most=3)
    hold(shard, "nack", 3)
    if how == "before":
        shard.call("delete_records", "q", {"before_seq": 4})
    elif how == "match":
        for tag in ("t1", "t2", "t3"):
            shard.call("delete_records", "q", {"match": tag})
    elif how == "cap":
        shard.call("configure", "q", {"cap_records": 2})
    else:
        shard.call("configure", "q", {"ttl_ms": 1000})
        shard.clock.advance(500)
        shard.append("q", 6, 7)
        shard.clock.advance(501)
    assert counters(shard) == (2, 0)
    assert hold(shard, "ack", 1, 2, 3)["acked"] == 0
    assert len(claim(shard)) == 2


def test_a_claim_that_waits_gets_a_job_whose_late_ack_is_not_written(shard: Harness) -> None:
    shard.append("q", 0)
    claim(shard, "a", lease_ms=100)
    shard.shard.commits.sync_now()
    shard.clock.advance(101)
    shard.send("ack", "q", {"node": "a", "seqs": [1]})
    waiting = shard.send("claim", "q", {"node": "b", "wait_ms": 5000})
    assert shard.parked(waiting)
    assert isinstance(shard.disk, FaultDisk)
    shard.disk.fail["write"] = OSError(EIO, "the test says so")
    shard.shard.commits.flush()
    del shard.disk.fail["write"]
    shard.shard.deliver()
    assert got(shard, waiting) == [1]

"""Jobs published with a delay, an extension of the API."""

from __future__ import annotations

from typing import Any

import pytest

from proto.model.errors import ErrorCode, TopicsError
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness


def publish(shard: Harness, *delays: int | None, topic: str = "q", **fields: Any) -> Any:
    return shard.call(
        "append", topic, {"records": [{"data": n, "delay_ms": d} for n, d in enumerate(delays)], **fields}
    )


def claimed(shard: Harness, most: int = 100) -> list[int]:
    return [job["$seq"] for job in shard.call("claim", "q", {"node": "w", "max": most})["claimed"]]


def counters(shard: Harness) -> tuple[int, int, int]:
    seen = shard.call("peek_jobs", "q")
    return seen["ready"], seen["in_flight"], seen["delayed"]


@pytest.fixture
def shard() -> Harness:
    made = Harness()
    made.call("configure", "q", {"type": "queue"})
    return made


def test_a_delayed_job_is_claimable_from_its_time_on_and_not_a_ms_earlier(shard: Harness) -> None:
    publish(shard, 1000, None, 0, 500)
    assert counters(shard) == (2, 0, 2)
    assert claimed(shard) == [2, 3]
    shard.clock.advance(499)
    assert claimed(shard) == []
    shard.clock.advance(1)
    assert claimed(shard) == [4]
    shard.clock.advance(500)
    assert counters(shard) == (1, 3, 0)
    job = shard.call("claim", "q", {"node": "w"})["claimed"][0]
    assert (job["$seq"], job["deliveries"]) == (1, 1)


def test_readers_see_a_delayed_job_at_once(shard: Harness) -> None:
    publish(shard, 1000)
    assert [record["$seq"] for record in shard.everything("q")] == [1]


def test_a_delayed_job_that_is_due_goes_before_jobs_that_were_never_held_back(shard: Harness) -> None:
    publish(shard, 10, None)
    shard.clock.advance(10)
    publish(shard, None)
    assert claimed(shard, 1) == [1]


def test_peek_says_when_a_delayed_job_is_due(shard: Harness) -> None:
    publish(shard, 1000)
    (job,) = shard.call("peek_jobs", "q")["jobs"]
    assert (job["state"], job["due"], job["deliveries"]) == ("delayed", shard.clock.now_ms() + 1000, 0)


def test_a_stream_that_waits_gets_the_job_when_it_is_due(shard: Harness) -> None:
    publish(shard, 1000)
    ident = shard.send("work_take", "q", node="w", max=1, lease_ms=None, stream="s")
    assert shard.parked(ident)
    assert shard.shard.next_due is not None
    assert shard.shard.next_due - shard.clock.monotonic() <= 1.001
    shard.clock.advance(1001)
    shard.shard.deliver()
    shard.shard.commits.sync_now()
    assert not shard.parked(ident)


@pytest.mark.parametrize("durable", [False, True], ids=["leases", "durable-leases"])
@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
@pytest.mark.parametrize("how", ["crash", "checkpoint", "clean", "twice"])
def test_delays_survive_a_restart(how: str, durability: str, durable: bool) -> None:
    shard = Harness()
    shard.call("configure", "q", {"type": "queue", "durability": durability, "leases_durable": durable})
    publish(shard, 1000, None, 5000, 1000)
    assert claimed(shard, 1) == [2]
    shard.call("delete_records", "q", {"before_seq": 2})
    if how == "clean":
        shard.shard.close()
    elif how != "crash":
        shard.shard.checkpoint_now()
    for _ in range(2 if how == "twice" else 1):
        disk = shard.disk
        assert isinstance(disk, FaultDisk)
        shard = shard.restarted(disk.after_crash("process"))
    held = claimed(shard)
    assert held in ([], [2])  # the lease may have survived or not; the delayed job is not claimable
    shard.clock.advance(1000)
    assert claimed(shard) == [4]
    shard.clock.advance(4000)
    assert claimed(shard) == [3]


def test_a_crash_ends_no_delay_while_the_topics_time_is_ahead_of_the_clock(shard: Harness) -> None:
    publish(shard, None)
    shard.clock.ms -= 3_600_000
    shard = shard.restarted()
    publish(shard, 1000, 10)
    shard.clock.advance(500)
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    shard = shard.restarted(disk.after_crash("process"))
    assert claimed(shard) == [1, 3]
    shard.clock.advance(500)
    assert claimed(shard) == [2]


def test_a_job_that_was_due_and_claimed_before_a_crash_is_not_held_back_again(shard: Harness) -> None:
    publish(shard, 1000)
    shard.clock.advance(1000)
    assert claimed(shard) == [1]
    shard.call("ack", "q", {"node": "w", "seqs": [1]})
    publish(shard, 10)
    shard.clock.advance(10)
    assert claimed(shard) == [2]
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    shard = shard.restarted(disk.after_crash("process"))
    assert claimed(shard) == [2]


def test_a_delayed_job_can_be_deleted_and_evicted(shard: Harness) -> None:
    publish(shard, 1000, 1000, 1000)
    shard.call("delete_records", "q", {"before_seq": 2})
    shard.call("configure", "q", {"cap_records": 1})
    assert counters(shard) == (0, 0, 1)
    shard.clock.advance(1000)
    assert claimed(shard) == [3]


def test_a_repeated_write_delays_nothing_anew(shard: Harness) -> None:
    publish(shard, 1000, idempotency_key="k")
    shard.clock.advance(900)
    assert publish(shard, 1000, idempotency_key="k")["deduped"]
    shard.clock.advance(100)
    assert claimed(shard) == [1]


def test_a_write_that_creates_its_queue_may_delay() -> None:
    shard = Harness()
    publish(shard, 5, config={"type": "queue"})
    assert claimed(shard) == []
    shard.clock.advance(5)
    assert claimed(shard) == [1]


@pytest.mark.parametrize("delay", [-1, 366 * 86_400_000 + 1, 1.5, "1"])
def test_a_delay_that_makes_no_sense_is_refused_and_writes_nothing(shard: Harness, delay: Any) -> None:
    with pytest.raises(TopicsError) as caught:
        publish(shard, None, delay)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert "delay_ms" in caught.value.message
    assert shard.everything("q") == []


def test_records_of_a_log_cannot_be_delayed(shard: Harness) -> None:
    for make in ({}, {"create": True}):
        with pytest.raises(TopicsError) as caught:
            publish(shard, 1, topic="log", **make)
        assert (caught.value.code, caught.value.detail) == (ErrorCode.INVALID_REQUEST, {"field": "delay_ms"})
    publish(shard, 0, None, topic="log")
    assert len(shard.everything("log")) == 2

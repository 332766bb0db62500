"""Statistics of queues: how long jobs wait, and how many were dead-lettered."""

from __future__ import annotations

from typing import Any

import pytest

from shardd.storage.errors import SegmentError
from shardd.topic.records import Records
from tests.support.harness import Harness


@pytest.fixture
def shard() -> Harness:
    shard = Harness()
    shard.call("configure", "q", {"type": "queue", "lease_ms": 1000, "max_deliveries": 1, "dead_letter": "dead"})
    return shard


def row(shard: Harness) -> list[Any]:
    (found,) = shard.call("stats", per_topic=10)["per_queue"]
    assert found[0] == "q"
    return list(found[1:])


def waited(shard: Harness) -> int:
    return int(row(shard)[4])


def test_a_job_waits_from_when_it_was_written_until_it_is_claimed(shard: Harness) -> None:
    assert waited(shard) == 0
    shard.append("q", 0, 1)
    shard.clock.advance(500)
    shard.append("q", 2)
    shard.clock.advance(200)
    assert waited(shard) == 700
    shard.call("claim", "q", {"node": "w", "max": 2})
    assert waited(shard) == 200
    shard.call("claim", "q", {"node": "w"})
    assert waited(shard) == 0


def test_a_job_that_came_back_is_as_old_as_it_is(shard: Harness) -> None:
    shard.append("q", 0, 1, 2)
    shard.call("claim", "q", {"node": "w", "max": 2})
    shard.clock.advance(1001)
    assert waited(shard) == 1001
    shard.call("ack", "q", {"node": "w", "seqs": [1, 2]})  # after the lease's end, but still accepted
    shard.call("claim", "q", {"node": "w"})
    assert waited(shard) == 0


def test_looking_takes_no_job_and_skips_none(shard: Harness) -> None:
    shard.append("q", *range(5))
    shard.call("claim", "q", {"node": "w", "max": 2})
    began = shard.clock.ms
    for _ in range(3):
        shard.clock.advance(100)
        assert waited(shard) == shard.clock.ms - began
    claimed = shard.call("claim", "q", {"node": "v", "max": 9})["claimed"]
    assert [job["$seq"] for job in claimed] == [3, 4, 5]


def test_a_delay_is_no_wait(shard: Harness) -> None:
    shard.call("append", "q", {"records": [{"data": 0, "delay_ms": 3_600_000}]})
    shard.clock.advance(3_600_000)
    assert waited(shard) == 0
    shard.clock.advance(70)
    assert waited(shard) == 70


def test_merged_batches_know_the_age_of_each_job(shard: Harness) -> None:
    shard.call("configure", "q", {"max_deliveries": 0})
    for n in range(40):
        shard.append("q", n)
        shard.clock.advance(10)
    shard.call("claim", "q", {"node": "w", "max": 30})
    shard.call("ack", "q", {"node": "w", "seqs": list(range(1, 21))})
    shard.call("nack", "q", {"node": "w", "seqs": [25]})
    assert waited(shard) == 160
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()
    assert waited(shard) == 160


def test_a_queue_that_cannot_be_read_spoils_nobody_elses_statistics(
    shard: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(self: Records, *args: Any, **fields: Any) -> Any:
        raise SegmentError("q/1.seg: gone")

    shard.append("q", 0)
    monkeypatch.setattr(Records, "window", unreadable)
    assert waited(shard) == 0


def test_dead_letters_are_counted_where_they_wait_and_when_they_have_gone(shard: Harness) -> None:
    shard.append("q", 0, 1)
    shard.call("claim", "q", {"node": "w", "max": 2})
    shard.clock.advance(1001)
    shard.call("claim", "q", {"node": "w", "max": 2})
    shard.shard.commits.sync_now()
    assert row(shard)[:4] == [0, 0, 0, 2]
    assert shard.call("stats", per_topic=10)["letters_waiting"] == 2


def test_queues_have_figures_although_more_topics_than_have_some_precede_them(shard: Harness) -> None:
    for name in ("a", "b", "c"):
        shard.append(name, 0)
    shard.call("configure", "p:q", {"type": "queue"})
    found = shard.call("stats", per_topic=2)
    assert [each[0] for each in found["per_topic"]] == ["a", "b"]
    assert [each[0] for each in found["per_queue"]] == ["p:q", "q"]
    assert [each[0] for each in shard.call("stats", per_topic=1)["per_queue"]] == ["p:q"]
    assert shard.call("stats", per_topic=0)["per_queue"] == []


def test_a_key_sees_the_figures_of_its_own_queues(shard: Harness) -> None:
    shard.call("configure", "p:q", {"type": "queue"})
    assert [each[0] for each in shard.call("stats", per_topic=10, prefixes=("p:",))["per_queue"]] == ["p:q"]
    assert shard.call("stats", per_topic=10, prefixes=("x",))["per_queue"] == []

"""Peek: what it shows of a queue's jobs, and that it changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from proto.model.errors import ErrorCode, TopicsError
from tests.support.harness import Harness


@pytest.fixture
def shard() -> Harness:
    shard = Harness()
    shard.call("configure", "q", {"type": "queue", "lease_ms": 30_000})
    shard.call("append", "q", {"records": [{"data": n, "tag": "t", "meta": {"n": n}} for n in range(1, 5)]})
    return shard


def peek(shard: Harness, **asked: Any) -> Any:
    return shard.call("peek_jobs", "q", asked)


def states(shard: Harness, **asked: Any) -> list[tuple[int, str]]:
    return [(job["$seq"], job["state"]) for job in peek(shard, **asked)["jobs"]]


def test_each_job_is_shown_with_its_state_holder_and_time(shard: Harness) -> None:
    shard.call("claim", "q", {"node": "w", "max": 3})
    shard.call("nack", "q", {"node": "w", "seqs": [2], "delay_ms": 500})
    shard.call("ack", "q", {"node": "w", "seqs": [3]})
    now = shard.clock.ms
    answer = peek(shard)
    common = {"$ts": now, "$tag": "t"}
    assert answer["jobs"] == [
        {**common, "$seq": 1, "state": "in_flight", "deliveries": 1, "data": 1, "meta": {"n": 1}, "node": "w",
         "deadline": now + 30_000},
        {**common, "$seq": 2, "state": "delayed", "deliveries": 1, "data": 2, "meta": {"n": 2}, "due": now + 500},
        {**common, "$seq": 4, "state": "ready", "deliveries": 0, "data": 4, "meta": {"n": 4}},
    ]  # fmt: skip
    assert (answer["ready"], answer["in_flight"], answer["delayed"]) == (1, 1, 1)


def test_looking_leases_nothing_and_counts_no_delivery(shard: Harness) -> None:
    assert peek(shard) == peek(shard)
    jobs = shard.call("claim", "q", {"node": "w", "max": 10})["claimed"]
    assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(n, 1) for n in range(1, 5)]
    peek(shard)
    leases = [job["lease_id"] for job in jobs]
    assert shard.call("ack", "q", {"node": "w", "seqs": [1, 2, 3, 4], "lease_ids": leases})["acked"] == 4


def test_a_lease_that_ran_out_is_seen_as_ready_without_a_holder(shard: Harness) -> None:
    shard.call("claim", "q", {"node": "w"})
    shard.clock.advance(30_001)
    job = peek(shard)["jobs"][0]
    assert (job["state"], job["deliveries"]) == ("ready", 1)
    assert not {"node", "deadline"} & set(job)


def test_pages_go_over_every_job_once(shard: Harness) -> None:
    seen, start, more = [], 0, True
    while more:
        page = peek(shard, first_seq=start, max=3)
        seen += [job["$seq"] for job in page["jobs"]]
        start, more = page["next_seq"], page["more"]
    assert seen == [1, 2, 3, 4]
    assert states(shard, first_seq=5) == []


@pytest.mark.parametrize("asked", [{"first_seq": 3}, {"from_seq": 3}, {"first_seq": 3, "from_seq": 3}])
def test_the_first_seq_is_inclusive_and_may_have_its_old_name(shard: Harness, asked: dict[str, int]) -> None:
    assert [job["$seq"] for job in peek(shard, **asked)["jobs"]] == [3, 4]


@pytest.mark.parametrize(
    ("most", "shown"), [(None, [1, 2, 3, 4]), (2, [1, 2]), (0, [1]), (-5, [1]), (9999, [1, 2, 3, 4])]
)
def test_the_number_of_jobs_is_clamped(shard: Harness, most: int | None, shown: list[int]) -> None:
    assert [job["$seq"] for job in peek(shard, max=most)["jobs"]] == shown


@pytest.mark.parametrize("asked", [{"first_seq": 3, "from_seq": 2}, {"first_seq": -1}, {"from_seq": -1}, {"max": "3"}])
def test_nonsense_is_refused(shard: Harness, asked: dict[str, Any]) -> None:
    with pytest.raises(TopicsError) as caught:
        peek(shard, **asked)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_a_log_has_no_jobs_to_look_at(shard: Harness) -> None:
    shard.append("log", 1)
    with pytest.raises(TopicsError) as caught:
        shard.call("peek_jobs", "log", {})
    assert caught.value.code is ErrorCode.NOT_A_QUEUE

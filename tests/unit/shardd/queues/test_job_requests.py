"""Requests for jobs: bounds of their numbers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import MAX_BATCH_BYTES
from shardd.queues.job_requests import fresh
from shardd.topic.records import Records
from tests.support.harness import Harness
from tests.support.queues import claim, hold, queue, send_claim


@pytest.fixture
def shard() -> Harness:
    return queue(Harness())


def test_max_defaults_to_one_and_zero_means_one(shard: Harness) -> None:
    shard.append("q", *range(5))
    assert shard.call("claim", "q", {"node": "w"})["count"] == 1
    assert len(claim(shard, most=0)) == 1


def test_max_is_clamped() -> None:
    shard = queue(Harness(max_claim=3))
    shard.append("q", *range(5))
    assert len(claim(shard, most=1000)) == 3


@pytest.mark.parametrize("op", ["ack", "nack", "extend"])
def test_more_seqs_than_a_claim_may_have_are_a_batch_too_large(op: str) -> None:
    shard = queue(Harness(max_claim=3))
    shard.append("q", *range(4))
    claim(shard, most=3)
    with pytest.raises(TopicsError) as caught:
        hold(shard, op, 1, 2, 3, 4, lease_ms=1000)
    assert caught.value.code is ErrorCode.BATCH_TOO_LARGE
    assert caught.value.status == 400
    assert caught.value.detail == {"field": "seqs", "count": 4, "max": 3}
    assert hold(shard, op, 1, 2, 3, lease_ms=1000)["skipped"] == []


def test_numbers_below_their_range_are_clamped_like_those_above(shard: Harness) -> None:
    shard.append("q", 0, 1)
    now = shard.clock.ms
    (job,) = claim(shard, most=-3, lease_ms=-1, wait_ms=-1)
    assert job["deadline"] == now + 100
    assert hold(shard, "extend", 1, lease_ms=-1)["deadlines"] == {"1": now + 100}
    answer = hold(shard, "nack", 1, delay_ms=-1)
    assert (answer["nacked"], answer["ready"]) == (1, 2)
    assert shard.call("peek_jobs", "q", {"max": -1})["count"] == 1


@pytest.mark.parametrize(
    ("op", "body"),
    [
        ("claim", {}),
        ("claim", {"node": ""}),
        ("claim", {"node": "n" * 129}),
        ("claim", {"node": 3}),
        ("claim", {"node": "w", "max": "3"}),
        ("claim", {"node": "w", "lease_ms": 1.5}),
        ("ack", {"node": "w"}),
        ("ack", {"seqs": [1]}),
        ("ack", {"node": "w", "seqs": []}),
        ("ack", {"node": "w", "seqs": ["1"]}),
        ("ack", {"node": "w", "seqs": [-1]}),
        ("ack", {"node": "w", "seqs": [1, 2], "lease_ids": ["a"]}),
        ("nack", {"node": "w", "seqs": [1], "delay_ms": "1"}),
        ("nack", {"node": "w", "seqs": [1], "reason": 5}),
        ("nack", {"node": "w", "seqs": [1], "reason": "n" * 513}),
        ("nack", {"node": "w", "seqs": [1], "reason": "\u00f8" * 257}),
        ("extend", {"node": "w", "seqs": [1]}),
    ],
)
def test_a_bad_request_is_refused(shard: Harness, op: str, body: dict[str, Any]) -> None:
    with pytest.raises(TopicsError) as caught:
        shard.call(op, "q", body)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_wait_ms_is_clamped(shard: Harness) -> None:
    send_claim(shard, "a", 1, wait_ms=10**12)
    assert shard.shard.next_due == shard.clock.monotonic() + 30


def test_jobs_after_a_gap_are_found(shard: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    windows, looked = Records.window, 0

    def window(*asked: Any) -> Any:
        nonlocal looked
        looked += 1
        assert looked < 10, "it looks for ever"
        return windows(*asked)

    monkeypatch.setattr(Records, "window", window)
    shard.append("q", 1, 2, 3)
    topic = shard.shard.directory.find("q")
    topic.lose_tail(5)
    found, start = fresh(topic, 1, set[int]().__contains__, 10, MAX_BATCH_BYTES)
    assert ([each[0] for each in found], start) == ([1, 2, 3], 6)
    shard.append("q", 6)
    for count in (4, 10):
        found, start = fresh(topic, 1, set[int]().__contains__, count, MAX_BATCH_BYTES)
        assert ([each[0] for each in found], start) == ([1, 2, 3, 6], 7)

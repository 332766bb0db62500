"""Cohorts: how those that wait for jobs share what there is."""

from __future__ import annotations

import pytest

from proto.ipc.message import Reply
from proto.model.errors import ErrorCode
from shardd.queues.cohorts import shares
from tests.support.harness import Harness
from tests.support.queues import claim, counters, got, pushed, queue, send_claim, take


@pytest.fixture
def shard() -> Harness:
    return queue(Harness())


def test_shares_are_in_proportion_and_use_up_what_there_is() -> None:
    assert shares([4, 2], 6) == [4, 2]
    assert shares([4, 2], 3) == [2, 1]
    assert shares([1, 1, 1], 2) == [1, 1, 0]
    assert shares([100, 1], 2) == [2, 0]
    assert shares([5, 5, 5], 0) == [0, 0, 0]


def test_a_cohort_shares_what_there_is_when_its_window_closes() -> None:
    shard = queue(Harness(), claim_jitter_ms=100)
    shard.append("q", *range(6))
    first = send_claim(shard, "a", 8)
    shard.clock.advance(60)
    second = send_claim(shard, "b", 4)
    shard.shard.deliver()
    assert shard.parked(first)
    assert shard.parked(second)
    due = shard.shard.next_due
    assert due is not None
    assert due - shard.clock.monotonic() == pytest.approx(0.04)
    shard.clock.advance(41)
    shard.shard.deliver()
    assert (got(shard, first), got(shard, second)) == ([1, 3, 5, 6], [2, 4])


def test_a_claimer_who_left_gets_no_jobs_and_an_empty_window_is_answered() -> None:
    shard = queue(Harness(), claim_jitter_ms=100)
    shard.append("q", 0)
    gone, stays, late = (send_claim(shard, node, 1) for node in "abc")
    shard.shard.cancel("peer", gone)
    shard.clock.advance(101)
    shard.shard.deliver()
    assert (got(shard, stays), got(shard, late)) == ([1], [])
    assert shard.parked(gone)
    assert counters(shard) == (0, 1)


def test_a_claim_may_wait_for_jobs_and_those_that_wait_are_served_in_the_order_they_came(shard: Harness) -> None:
    first, second, third = (send_claim(shard, node, 1, wait_ms=5000) for node in "abc")
    assert all(map(shard.parked, (first, second, third)))
    shard.append("q", 0)
    assert (got(shard, first), shard.parked(second)) == ([1], True)
    assert claim(shard, "impatient") == []
    shard.append("q", 1, 2, 3)
    assert (got(shard, second), got(shard, third)) == ([2], [3])
    assert counters(shard) == (1, 3)


def test_a_claim_that_would_not_wait_does_not_push_in(shard: Harness) -> None:
    waiting = send_claim(shard, "a", 2, wait_ms=5000)
    late = shard.send("claim", "q", {"node": "b", "max": 1})
    shard.send("append", "q", {"records": [{"data": 0}]})
    shard.shard.flush()
    assert (got(shard, waiting), got(shard, late)) == ([1], [])


def test_those_that_wait_share_in_proportion_to_what_they_want(shard: Harness) -> None:
    large, small = send_claim(shard, "a", 8, wait_ms=5000), send_claim(shard, "b", 4, wait_ms=5000)
    shard.append("q", *range(6))
    assert (len(got(shard, large)), len(got(shard, small))) == (4, 2)


def test_streams_and_pollers_share_a_window_in_proportion() -> None:
    shard = queue(Harness(), claim_jitter_ms=100)
    stream = take(shard, "s", 4)
    poller = send_claim(shard, "b", 2)
    shard.append("q", *range(3))
    shard.clock.advance(101)
    shard.shard.deliver()
    assert sorted((len(pushed(shard, stream)), len(got(shard, poller)))) == [1, 2]
    assert len(pushed(shard, stream)) == 2


def test_a_window_ends_with_its_topic() -> None:
    shard = queue(Harness(), claim_jitter_ms=100)
    ident = send_claim(shard, "a", 1)
    shard.call("delete_topic", "q")
    reply = shard.replies[ident]
    assert isinstance(reply, Reply)
    assert reply.error is not None
    assert reply.error.code is ErrorCode.TOPIC_NOT_FOUND

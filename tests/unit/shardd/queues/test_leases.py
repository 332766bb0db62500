"""Leases: when one ends, who may lengthen it, and which ones survive a stop."""

from __future__ import annotations

import pytest

from tests.support.harness import Harness
from tests.support.queues import claim, counters, hold, queue, restarted, seqs


@pytest.fixture
def shard() -> Harness:
    return queue(Harness())


def test_a_lease_ends_after_its_deadline_and_not_at_it(shard: Harness) -> None:
    shard.append("q", 0, 1)
    claim(shard, "a", 1, lease_ms=1000)
    shard.clock.advance(1000)
    assert counters(shard) == (1, 1)
    shard.clock.advance(1)
    assert counters(shard) == (2, 0)
    jobs = claim(shard, "b")
    assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(1, 2), (2, 1)]


def test_lease_ms_is_clamped_both_ways(shard: Harness) -> None:
    shard.append("q", 0, 1)
    now = shard.clock.ms
    assert claim(shard, most=1, lease_ms=1)[0]["deadline"] == now + 100
    assert claim(shard, most=1, lease_ms=10**15)[0]["deadline"] == now + 86_400_000


def test_an_expired_lease_cannot_be_extended_or_released(shard: Harness) -> None:
    shard.append("q", 0)
    claim(shard, lease_ms=100)
    shard.clock.advance(101)
    assert hold(shard, "extend", 1, lease_ms=1000)["skipped"] == [1]
    assert hold(shard, "nack", 1)["skipped"] == [1]


def test_extend_sets_the_deadline_from_now_and_counts_no_delivery(shard: Harness) -> None:
    shard.append("q", 0)
    first = claim(shard, lease_ms=1000)[0]
    shard.clock.advance(900)
    answer = hold(shard, "extend", 1, 7, lease_ms=1000)
    assert (answer["extended"], answer["skipped"]) == (1, [7])
    assert answer["deadlines"] == {"1": shard.clock.ms + 1000}
    assert answer["lease_ids"] == {"1": first["lease_id"]}
    shard.clock.advance(1000)
    assert claim(shard, "b") == []
    shard.clock.advance(1)
    assert claim(shard, "b")[0]["deliveries"] == 2


def test_a_stale_token_is_skipped_and_the_current_one_counts(shard: Harness) -> None:
    shard.append("q", 0)
    old = claim(shard, lease_ms=100)[0]["lease_id"]
    shard.clock.advance(101)
    new = claim(shard)[0]["lease_id"]  # the same worker again: only the token distinguishes the two leases
    for stale in (old, "lease_", "nonsense", new.upper(), new + "0"):
        for op, extra in (("ack", {}), ("nack", {}), ("extend", {"lease_ms": 1000})):
            assert hold(shard, op, 1, lease_ids=[stale], **extra)["skipped"] == [1]
    assert hold(shard, "extend", 1, lease_ms=1000, lease_ids=[new])["extended"] == 1
    assert hold(shard, "ack", 1, lease_ids=[old])["skipped"] == [1]
    assert hold(shard, "ack", 1, lease_ids=[new])["acked"] == 1


@pytest.mark.parametrize("durable", [False, True])
def test_a_worker_may_keep_the_id_of_its_claim_through_any_number_of_extends(durable: bool) -> None:
    shard = queue(Harness(), max_deliveries=1, dead_letter="dead", leases_durable=durable)
    shard.append("q", 0)
    ids = [claim(shard, lease_ms=1000)[0]["lease_id"]]
    for lease_ms in (3000, 1000, 2000, 500, 500):  # also for less time than was left
        shard.clock.advance(400)
        assert hold(shard, "extend", 1, lease_ms=lease_ms, lease_ids=ids)["lease_ids"] == {"1": ids[0]}
        assert claim(shard, "b") == []
    if durable:
        shard = restarted(shard, "crash")
    shard.clock.advance(500)
    assert counters(shard) == (0, 1)
    assert hold(shard, "ack", 1, lease_ids=ids)["acked"] == 1
    assert shard.everything("q") == []


def test_an_extended_lease_ends_when_the_last_extend_said(shard: Harness) -> None:
    shard.append("q", 0)
    ids = [claim(shard, lease_ms=60_000)[0]["lease_id"]]
    hold(shard, "extend", 1, lease_ms=1000, lease_ids=ids)
    shard.clock.advance(1001)
    assert hold(shard, "extend", 1, lease_ms=1000, lease_ids=ids)["skipped"] == [1]
    again = claim(shard)[0]
    assert (again["deliveries"], [again["lease_id"]] == ids) == (2, False)
    assert hold(shard, "extend", 1, lease_ms=1000, lease_ids=ids)["skipped"] == [1]


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory"])
@pytest.mark.parametrize("how", ["clean", "crash", "checkpoint"])
def test_acks_and_durable_leases_survive(durability: str, how: str) -> None:
    shard = queue(Harness(), leases_durable=True, durability=durability)
    shard.append("q", *range(6))
    claim(shard, "a", 4)
    hold(shard, "ack", 1, node="a")
    hold(shard, "nack", 2, node="a")
    new = hold(shard, "extend", 3, node="a", lease_ms=60_000)["lease_ids"]["3"]
    hold(shard, "nack", 4, node="a", delay_ms=5000)
    shard = restarted(shard, how)
    assert counters(shard) == (3, 1)
    jobs = claim(shard, "b")
    assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(2, 2), (5, 1), (6, 1)]
    shard.clock.advance(5000)
    assert [(job["$seq"], job["deliveries"]) for job in claim(shard, "b")] == [(4, 2)]
    assert hold(shard, "ack", 3, node="a", lease_ids=[new])["acked"] == 1
    assert seqs(shard.everything("q")) == [2, 4, 5, 6]


@pytest.mark.parametrize("how", ["clean", "crash", "checkpoint"])
def test_a_start_under_a_clock_that_is_a_day_ahead_ends_durable_leases_and_delays(how: str) -> None:
    """A start can compare the clock with nothing, so it believes it, also for TTLs. Jobs are handed out once more, and
    none is lost; an ack of the worker before is refused."""
    shard = queue(Harness(), leases_durable=True, durability="fsync")
    shard.append("q", *range(3))
    token = claim(shard, "a", 1)[0]["lease_id"]
    claim(shard, "a", 1)
    hold(shard, "nack", 2, node="a", delay_ms=5000)
    shard.clock.advance(86_400_000)
    shard = restarted(shard, how)
    assert [(job["$seq"], job["deliveries"]) for job in claim(shard, "b")] == [(1, 2), (2, 2), (3, 1)]
    assert hold(shard, "ack", 1, node="a", lease_ids=[token])["acked"] == 0


@pytest.mark.parametrize("how", ["clean", "crash", "checkpoint"])
def test_other_leases_survive_a_graceful_stop_only(how: str) -> None:
    shard = queue(Harness())
    shard.append("q", *range(3))
    token = claim(shard, "a", 2)[0]["lease_id"]
    hold(shard, "ack", 2, node="a")
    shard = restarted(shard, how)
    if how == "clean":
        assert counters(shard) == (1, 1)
        assert hold(shard, "ack", 1, node="a", lease_ids=[token])["acked"] == 1
    else:
        assert counters(shard) == (2, 0)
        assert [(job["$seq"], job["deliveries"]) for job in claim(shard, "b")] == [(1, 1), (3, 1)]


def test_leases_of_a_stop_are_not_brought_back_by_a_later_crash() -> None:
    shard = queue(Harness())
    shard.append("q", 0)
    claim(shard, "a", lease_ms=86_400_000)
    shard = restarted(shard, "clean")
    hold(shard, "nack", 1, node="a")
    claim(shard, "b")
    shard = restarted(shard, "crash")
    assert counters(shard) == (1, 0)


@pytest.mark.parametrize("hours", [0, 2])
@pytest.mark.parametrize("how", ["crash", "checkpoint", "clean"])
@pytest.mark.parametrize("first", ["crash", "clean"])
def test_a_clock_that_was_set_back_between_two_starts_changes_no_later_delay(first: str, how: str, hours: int) -> None:
    """Rows of the first process are an hour ahead. Of the second one's times, nothing may be taken off by the third."""
    shard = queue(Harness(), leases_durable=True, durability="fsync")
    shard.append("q", 0, 1)
    claim(shard, "a", 1)
    hold(shard, "nack", 1, node="a", delay_ms=4 * 3_600_000)
    if first == "clean":
        shard.shard.close()
    shard.clock.ms -= 3_600_000
    shard = restarted(shard, "crash")
    shard.call("append", "q", {"records": [{"data": 2, "delay_ms": 3 * 3_600_000}]})
    claim(shard, "a", 1, lease_ms=3 * 3_600_000)
    shard.clock.advance(hours * 3_600_000)
    shard = restarted(shard, how)
    shard.clock.advance((3 - hours) * 3_600_000 - 1)
    assert claim(shard, "b") == []
    shard.clock.advance(2)
    assert seqs(claim(shard, "b", lease_ms=10_000_000)) == [2, 3]
    shard.clock.advance(3_600_000 - 2)
    assert claim(shard, "b") == []
    shard.clock.advance(1)
    assert seqs(claim(shard, "b")) == [1]

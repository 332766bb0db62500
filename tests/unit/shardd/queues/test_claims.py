"""Claims: the guarantees of claim, ack, nack and extend."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from proto.ipc.message import Reply
from proto.ipc.operations import Stats
from proto.model.errors import ErrorCode, TopicsError
from shardd.storage.errors import SegmentError
from shardd.topic.batch_sequence import BatchSequence
from tests.support.asked import said
from tests.support.harness import FakeClock, Harness
from tests.support.queues import claim, counters, got, hold, pushed, queue, restarted, send_claim, seqs, take


@pytest.fixture
def shard() -> Harness:
    return queue(Harness())


def test_a_claim_hands_out_the_oldest_jobs_with_a_lease(shard: Harness) -> None:
    shard.call("append", "q", {"records": [{"data": 1, "tag": "t", "meta": {"a": 1}, "node": "p"}, {"data": 2}]})
    answer = shard.call("claim", "q", {"node": "w", "max": 1})
    job = answer["claimed"][0]
    assert re.fullmatch("lease_[0-9a-f]{16}", job.pop("lease_id"))
    now = shard.clock.ms
    assert job == {
        "$seq": 1, "$ts": now, "$tag": "t", "deadline": now + 30_000, "deliveries": 1, "data": 1, "meta": {"a": 1},
    }  # fmt: skip
    assert (answer["topic"], answer["count"], answer["ready"]) == ("q", 1, 1)
    job = claim(shard)[0]
    assert "meta" not in job
    assert "$tag" not in job
    assert job["$seq"] == 2


def test_a_job_is_handed_to_one_worker_only(shard: Harness) -> None:
    shard.append("q", *range(10))
    assert seqs(claim(shard, "a", 6)) == [1, 2, 3, 4, 5, 6]
    assert seqs(claim(shard, "b", 6)) == [7, 8, 9, 10]
    assert claim(shard, "c") == []
    assert counters(shard) == (0, 10)


def test_only_the_holder_may_ack_nack_or_extend(shard: Harness) -> None:
    shard.append("q", 0)
    claim(shard, "a")
    for op, extra in (("ack", {}), ("nack", {}), ("extend", {"lease_ms": 1000})):
        assert hold(shard, op, 1, node="b", **extra)["skipped"] == [1]
    assert counters(shard) == (0, 1)


def test_reclaimed_jobs_go_before_fresh_ones_lowest_first(shard: Harness) -> None:
    shard.append("q", *range(6))
    claim(shard, most=4)
    hold(shard, "nack", 3)
    hold(shard, "nack", 1)
    assert seqs(claim(shard, "b", 1)) == [1]
    assert seqs(claim(shard, "b", 2)) == [3, 5]


@pytest.mark.parametrize("where", ["chosen", "window"])
def test_jobs_that_could_not_be_read_are_offered_again(shard: Harness, where: str, monkeypatch: Any) -> None:
    shard.append("q", *range(6))
    claim(shard, most=4)
    hold(shard, "nack", 1, 2, 3, 4)

    def broken(*_: Any, **__: Any) -> Any:
        raise SegmentError("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(BatchSequence, where, broken)
        with pytest.raises(TopicsError):
            claim(shard)
    assert counters(shard) == (6, 0)
    assert seqs(claim(shard)) == [1, 2, 3, 4, 5, 6]


def test_jobs_that_are_given_back_are_handed_out_up_to_the_bytes_of_one_answer(shard: Harness) -> None:
    large = "x" * 1_000_000
    for _ in range(4):
        shard.append("q", *[large] * 5)
    claimed: list[int] = []
    while len(claimed) < 20:
        claimed += seqs(claim(shard))
    hold(shard, "nack", *claimed)
    assert seqs(claim(shard, "v")) == list(range(1, 10))
    assert seqs(claim(shard, "v")) == list(range(10, 19))
    assert seqs(claim(shard, "v")) == [19, 20]


def test_a_late_ack_counts_while_nobody_else_got_the_job(shard: Harness) -> None:
    shard.append("q", 0, 1)
    claim(shard, "a", 2, lease_ms=100)
    shard.clock.advance(101)
    assert hold(shard, "ack", 1, node="a")["acked"] == 1
    assert seqs(claim(shard, "b")) == [2]
    assert hold(shard, "ack", 2, node="a")["skipped"] == [2]
    assert hold(shard, "ack", 2, node="b")["acked"] == 1


def test_a_released_job_cannot_be_acked_by_who_released_it(shard: Harness) -> None:
    shard.append("q", 0)
    claim(shard)
    hold(shard, "nack", 1)
    assert hold(shard, "ack", 1)["skipped"] == [1]


def test_a_delayed_nack_is_ready_only_when_its_time_has_come(shard: Harness) -> None:
    shard.append("q", 0)
    claim(shard)
    answer = hold(shard, "nack", 1, delay_ms=500)
    assert (answer["nacked"], answer["ready"], answer["in_flight"]) == (1, 0, 0)
    shard.clock.advance(499)
    assert claim(shard) == []
    assert counters(shard) == (0, 0)
    shard.clock.advance(1)
    assert claim(shard)[0]["deliveries"] == 2


class TickingClock(FakeClock):
    """A clock that advances at every reading."""

    def monotonic(self) -> float:
        self.elapsed += 0.001
        return self.elapsed


@pytest.mark.parametrize(("durability", "syncs"), [("disk", False), ("fsync", True)])
def test_only_a_queue_of_class_fsync_tells_of_a_sync(durability: str, syncs: bool) -> None:
    shard = queue(Harness(clock=TickingClock()), durability=durability)
    shard.append("q", 0, 1)
    first = shard.send(
        "claim", "q", {"node": "w", "max": 2}
    )  # the first claim since the start waits for a sync, in any class
    ack = shard.send("ack", "q", {"node": "w", "seqs": [1]})  # and so do the topic's later changes
    shard.shard.commits.sync_now()
    for ident in (first, ack):
        reply = shard.replies[ident]
        assert isinstance(reply, Reply)
        assert (reply.performance["fsync_ms"] > 0) is syncs


def test_ready_does_not_count_what_the_same_claim_dead_letters() -> None:
    shard = queue(Harness(), max_deliveries=1, dead_letter="dead")
    shard.append("q", *range(4))
    claim(shard, most=2, lease_ms=100)
    shard.clock.advance(101)
    reply = shard.reply("claim", "q", {"node": "w", "max": 1})
    answer = msgspec.json.decode(reply.body)
    assert (seqs(answer["claimed"]), answer["ready"]) == ([3], 1)
    assert said(reply.extra) == {"dead_letters": ["dead"]}
    assert counters(shard) == (1, 1)


@pytest.mark.parametrize("op", ["claim", "ack", "nack", "extend"])
def test_a_log_is_not_a_queue_and_nothing_is_created(shard: Harness, op: str) -> None:
    body = {"node": "w", "seqs": [1], "lease_ms": 1000}
    shard.append("log", 0)
    for topic, code in (("log", ErrorCode.NOT_A_QUEUE), ("none", ErrorCode.TOPIC_NOT_FOUND)):
        with pytest.raises(TopicsError) as caught:
            shard.call(op, topic, body)
        assert caught.value.code is code
    assert "queue" not in shard.call("state", "log")


def test_type_cannot_change(shard: Harness) -> None:
    with pytest.raises(TopicsError) as caught:
        shard.call("configure", "q", {"type": "log"})
    assert caught.value.code is ErrorCode.TOPIC_EXISTS_INCOMPATIBLE


def test_reading_claims_nothing(shard: Harness) -> None:
    shard.append("q", 0, 1)
    claim(shard, most=1)
    assert seqs(shard.everything("q")) == [1, 2]
    assert counters(shard) == (1, 1)


@pytest.mark.parametrize("jitter", [0, 60_000])
def test_a_claim_that_waited_in_vain_is_told_when_its_time_is_up(jitter: int) -> None:
    shard = queue(Harness(), claim_jitter_ms=jitter)
    ident = send_claim(shard, "a", 1, wait_ms=1000)
    if jitter:
        send_claim(shard, "b", 1)  # opens a window longer than the first claim's wait
    due = shard.shard.next_due
    assert due is not None
    assert due - shard.clock.monotonic() == pytest.approx(1.0)
    shard.clock.advance(999)
    shard.shard.deliver()
    assert shard.parked(ident)
    shard.clock.advance(1)
    shard.shard.deliver()
    assert got(shard, ident) == []


def test_a_claim_that_found_only_a_dead_letter_waits_for_another_job() -> None:
    shard = queue(Harness(), max_deliveries=1, dead_letter="dead")
    shard.append("q", 0)
    claim(shard, "a")
    hold(shard, "nack", 1, node="a")
    waits, gives_up = (send_claim(shard, node, 1, wait_ms=wait) for node, wait in (("b", 5000), ("c", 1000)))
    assert shard.parked(waits)
    shard.clock.advance(1000)
    shard.shard.deliver()
    assert got(shard, gives_up) == []
    shard.append("q", 1)
    assert got(shard, waits) == [2]


def test_a_claim_that_waits_gets_what_a_lease_that_ends_gives_back(shard: Harness) -> None:
    shard.append("q", 0)
    claim(shard, "a", lease_ms=100)
    ident = send_claim(shard, "b", 1, wait_ms=5000)
    shard.clock.advance(101)
    shard.shard.deliver()
    assert got(shard, ident) == [1]


@pytest.mark.parametrize(
    ("op", "body"),
    [
        ("state", {}),
        (Stats(per_topic=1), {}),
        ("peek_jobs", {}),
        ("extend", {"node": "c", "seqs": [1], "lease_ms": 1000}),
        ("ack", {"node": "c", "seqs": [1]}),
        ("redrive", {"queue": "other"}),
    ],
)
@pytest.mark.parametrize("jitter", [0, 50])
def test_a_claim_that_waits_gets_its_job_also_if_another_request_sees_first_that_the_lease_has_ended(
    op: str | Stats, body: dict[str, Any], jitter: int
) -> None:
    shard = queue(Harness())
    shard.append("q", 0)
    claim(shard, "a", lease_ms=100)
    shard.call("configure", "q", {"claim_jitter_ms": jitter})
    waiting = send_claim(shard, "b", 1, wait_ms=5000)
    shard.clock.advance(101)
    shard.reply(op, "q", body or b"")
    shard.clock.advance(jitter)
    shard.shard.deliver()
    assert got(shard, waiting) == [1]
    assert shard.shard.next_due is None


@pytest.mark.parametrize(
    "what",
    [
        ("append", {"records": [{"data": 2, "delay_ms": 1000}]}),
        ("nack", {"node": "w", "seqs": [1], "delay_ms": 1000}),
        ("extend", {"node": "w", "seqs": [1], "lease_ms": 1000}),
    ],
)
def test_a_claim_that_waits_gets_a_job_when_its_delay_ends_and_not_when_the_loop_looks_next(
    shard: Harness, what: tuple[str, dict[str, Any]]
) -> None:
    shard.append("q", 1)
    claim(shard, lease_ms=25_000)
    waiting = send_claim(shard, "v", 1, wait_ms=20_000)
    looked: list[float | None] = []
    shard.shard.scheduler.more = lambda: looked.append(shard.shard.next_due)
    op, body = what
    shard.call(op, "q", body)
    assert looked[-1] == pytest.approx(shard.clock.monotonic() + 1, abs=0.002)
    shard.clock.advance(1001)
    shard.shard.deliver()
    assert got(shard, waiting) == [2 if op == "append" else 1]


@pytest.mark.parametrize("durable", [False, True])
def test_a_client_that_leaves_leases_nothing(durable: bool) -> None:
    shard = queue(Harness(), leases_durable=durable, max_deliveries=1, dead_letter="dead")
    before, during = send_claim(shard, "a", 1, wait_ms=5000), send_claim(shard, "b", 1, wait_ms=5000)
    shard.shard.cancel("peer", before)
    shard.append("q", 0)
    assert got(shard, during) == [1]
    shard.shard.cancel("peer", during)  # the answer was in flight when its client disconnected
    shard.shard.flush()
    assert counters(shard) == (1, 0)
    shard = restarted(shard, "crash")
    assert [(job["$seq"], job["deliveries"]) for job in claim(shard, "c")] == [(1, 1)]


@pytest.mark.parametrize("waits", [False, True])
def test_jobs_of_a_stream_that_never_left_the_gateway_do_not_count_as_delivered(waits: bool) -> None:
    shard = queue(Harness(), max_deliveries=1, dead_letter="dead")
    if not waits:
        shard.append("q", 0)
    ident = take(shard, "s", 1)
    if waits:
        shard.append("q", 0)
    assert pushed(shard, ident) == [1]
    shard.shard.cancel("peer", ident)  # the answer was in flight when its client disconnected
    shard.reply("work_close", "q", stream="s")
    assert counters(shard) == (1, 0)
    assert [(job["$seq"], job["deliveries"]) for job in claim(shard, "b")] == [(1, 1)]


def test_of_a_stream_only_the_jobs_that_did_not_arrive_are_taken_back_uncounted(shard: Harness) -> None:
    shard.append("q", 0)
    assert pushed(shard, take(shard, "s", 2)) == [1]
    ident = take(shard, "s", 2)
    shard.append("q", 1)
    assert pushed(shard, ident) == [2]
    shard.shard.cancel("peer", ident)
    shard.reply("work_close", "q", stream="s")
    assert [(job["$seq"], job["deliveries"]) for job in claim(shard, "b")] == [(1, 2), (2, 1)]


def test_what_a_client_used_all_the_same_stays_as_it_is(shard: Harness) -> None:
    ident = send_claim(shard, "a", 3, wait_ms=5000)
    shard.append("q", 0, 1, 2)
    assert got(shard, ident) == [1, 2, 3]
    hold(shard, "ack", 1, node="a")
    hold(shard, "nack", 2, node="a")
    assert seqs(claim(shard, "b")) == [2]
    shard.shard.cancel("peer", ident)
    shard.shard.flush()
    assert counters(shard) == (1, 1)
    assert hold(shard, "ack", 2, node="b")["acked"] == 1


def test_a_claim_that_left_with_its_topic_gives_nothing_back(shard: Harness) -> None:
    ident = send_claim(shard, "a", 1, wait_ms=5000)
    shard.append("q", 0)
    assert got(shard, ident) == [1]
    shard.call("delete_topic", "q")
    queue(shard)
    shard.append("q", 1)
    shard.shard.cancel("peer", ident)
    shard.shard.flush()
    assert counters(shard) == (1, 0)


@pytest.mark.parametrize(
    ("kind", "code"),
    [("log", ErrorCode.NOT_A_QUEUE), ("queue", ErrorCode.TOPIC_NOT_FOUND), ("", ErrorCode.TOPIC_NOT_FOUND)],
)
def test_a_stream_is_told_that_its_queue_is_a_log_now(shard: Harness, kind: str, code: ErrorCode) -> None:
    ident = take(shard, "s", 1)
    shard.send("delete_topic", "q")
    if kind:
        shard.send("configure", "q", {"type": kind})
    shard.shard.commits.sync_now()
    shard.shard.deliver()
    reply = shard.replies[ident]
    assert isinstance(reply, Reply)
    assert reply.error is not None
    assert reply.error.code is code


def test_a_stream_asks_for_leases_that_are_clamped_as_in_a_claim(shard: Harness) -> None:
    shard.append("q", 0, 1)
    now = shard.clock.ms
    for lease_ms, expected in ((0, 100), (None, 30_000)):
        ident = shard.send("work_take", "q", stream=f"s{lease_ms}", node="n", max=1, lease_ms=lease_ms)
        shard.shard.flush()
        assert len(pushed(shard, ident)) == 1
        reply = shard.replies[ident]
        assert isinstance(reply, Reply)
        assert msgspec.json.decode(reply.body)[0]["deadline"] == now + expected


def test_a_stream_waits_for_jobs_and_for_room(shard: Harness) -> None:
    first = take(shard, "s", 2)
    assert shard.parked(first)
    shard.append("q", *range(3))
    assert pushed(shard, first) == [1, 2]
    second = take(shard, "s", 2)
    assert shard.parked(second)
    hold(shard, "ack", 2, node="s")
    assert pushed(shard, second) == [3]


def test_a_stream_has_room_again_when_its_worker_acks_a_job_that_is_older_than_the_ttl(shard: Harness) -> None:
    shard.call("configure", "q", {"ttl_ms": 1000})
    shard.append("q", 0)
    assert pushed(shard, take(shard, "s", 1)) == [1]
    shard.clock.advance(500)
    shard.append("q", 1)
    waiting = take(shard, "s", 1)
    shard.clock.advance(501)
    assert hold(shard, "ack", 1, node="s")["skipped"] == [1]
    assert pushed(shard, waiting) == [2]


def test_a_stream_gets_what_is_reclaimed_by_time(shard: Harness) -> None:
    shard.append("q", 0)
    claim(shard, "a", lease_ms=100)
    ident = take(shard, "s", 1)
    due = shard.shard.next_due
    assert due is not None
    assert due - shard.clock.monotonic() == pytest.approx(0.101)
    shard.clock.advance(101)
    shard.shard.deliver()
    assert pushed(shard, ident) == [1]


def test_a_closed_stream_gives_back_its_jobs_and_no_others(shard: Harness) -> None:
    shard.append("q", *range(4))
    assert seqs(claim(shard, "s", 1)) == [1]
    assert pushed(shard, take(shard, "s", 2)) == [2, 3]
    shard.reply("work_close", "q", stream="s")
    assert counters(shard) == (3, 1)
    assert seqs(claim(shard, "b")) == [2, 3, 4]


def test_a_stream_that_waited_long_is_told_so(shard: Harness) -> None:
    ident = take(shard, "s", 1)
    shard.clock.advance(15_000)
    shard.shard.deliver()
    assert pushed(shard, ident) == []
    assert shard.shard.claims.next_due is None


def refused(shard: Harness, ident: int) -> Any:
    reply = shard.replies[ident]
    assert isinstance(reply, Reply)
    assert reply.error is not None
    return reply.error.detail


def test_while_no_answer_may_be_sent_nothing_is_leased_and_nothing_finished(shard: Harness) -> None:
    shard.append("q", 0, 1)
    held = seqs(claim(shard, "w", 1))
    answers = False
    shard.shard.staging.serving = lambda: answers
    asked = [send_claim(shard, "w", 1, ack={"seqs": held}), send_claim(shard, "w", 1, wait_ms=9), take(shard, "s", 1)]
    assert [refused(shard, ident) for ident in asked] == [{"reason": "term_not_renewed", "outcome": "not_done"}] * 3
    assert counters(shard) == (1, 1)
    answers = True
    assert [(job["$seq"], job["deliveries"]) for job in claim(shard, ack={"seqs": held})] == [(2, 1)]


@pytest.mark.parametrize("jitter", [0, 5])
def test_a_claim_that_waits_is_refused_when_there_are_jobs_and_no_answer_may_be_sent(jitter: int) -> None:
    shard = queue(Harness(), claim_jitter_ms=jitter)
    answers = True
    shard.shard.staging.serving = lambda: answers
    asked = [send_claim(shard, "w", 1, wait_ms=20_000), take(shard, "s", 1)]
    shard.clock.advance(5)
    shard.shard.deliver()
    assert all(map(shard.parked, asked))
    answers = False
    shard.append("q", 0)
    shard.clock.advance(5)
    shard.shard.deliver()
    assert [refused(shard, ident)["outcome"] for ident in asked] == ["not_done"] * 2
    assert shard.shard.claims.next_due is None
    assert counters(shard) == (1, 0)


def reasons(shard: Harness) -> dict[int, str | None]:
    return {job["$seq"]: job.get("reason") for job in shard.call("peek_jobs", "q")["jobs"]}


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory"])
@pytest.mark.parametrize("how", ["clean", "crash", "checkpoint"])
def test_reasons_survive_as_durable_leases_do(durability: str, how: str) -> None:
    shard = queue(Harness(), leases_durable=True, durability=durability)
    shard.append("q", *range(4))
    claim(shard, "a", 4)
    hold(shard, "nack", 1, node="a", reason="first")
    hold(shard, "nack", 2, node="a", delay_ms=5000, reason="second \u00f8\n\x1b[31m")
    hold(shard, "nack", 3, node="a")
    claim(shard, "a", 1)
    shard = restarted(shard, how)
    assert reasons(shard) == {1: "first", 2: "second \u00f8\n\x1b[31m", 3: None, 4: None}
    hold(shard, "ack", 1, node="a")
    shard = restarted(shard, how)
    assert reasons(shard) == {2: "second \u00f8\n\x1b[31m", 3: None, 4: None}


@pytest.mark.parametrize("how", ["clean", "crash", "checkpoint"])
def test_other_reasons_survive_a_graceful_stop_only(how: str) -> None:
    shard = queue(Harness())
    shard.append("q", 0)
    claim(shard, "a")
    hold(shard, "nack", 1, node="a", reason="why")
    assert reasons(shard) == {1: "why"}
    assert reasons(restarted(shard, how)) == {1: "why" if how == "clean" else None}


def test_a_nack_without_a_reason_writes_the_frame_that_it_always_wrote() -> None:
    told = []
    for fields in ({}, {"reason": ""}, {"reason": None}, {"reason": "why"}):
        shard = queue(Harness(), leases_durable=True)
        shard.append("q", 0)
        claim(shard, "a")
        before = shard.reply("stats").extra.figures.wal.bytes_written_total
        hold(shard, "nack", 1, node="a", **fields)
        told.append(shard.reply("stats").extra.figures.wal.bytes_written_total - before)
    assert told[0] == told[1] == told[2] < told[3]


def test_the_last_reason_told_is_kept_whatever_ends_later_leases(shard: Harness) -> None:
    shard.append("q", 0)
    claim(shard, "a")
    hold(shard, "nack", 1, node="a", reason="one")
    claim(shard, "a")
    assert hold(shard, "nack", 1, node="someone else", reason="not mine")["skipped"] == [1]
    hold(shard, "nack", 1, node="a", reason="two")
    claim(shard, "a")
    hold(shard, "nack", 1, node="a")
    assert reasons(shard) == {1: "two"}

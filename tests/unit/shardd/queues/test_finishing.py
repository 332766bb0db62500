"""Finishing: claims about the ack and the nack in a claim."""

from __future__ import annotations

import errno
from typing import Any

import msgspec
import pytest

from proto.ipc.message import Reply
from proto.model.errors import ErrorCode, TopicsError
from shardd.storage.errors import SegmentError
from shardd.storage.indivisible import indivisible
from tests.support.fault_disk import FaultDisk, Survival
from tests.support.harness import Harness

FULL = OSError(errno.ENOSPC, "no space")


def queue(*data: Any, disk: FaultDisk | None = None, **config: Any) -> Harness:
    shard = Harness(disk)
    shard.call("configure", "q", {"type": "queue", **config})
    if data:
        shard.append("q", *data)
    return shard


def claim(shard: Harness, node: str = "w", most: int = 1, **fields: Any) -> Any:
    return shard.call("claim", "q", {"node": node, "max": most, **fields})


def send(shard: Harness, node: str = "w", most: int = 1, **fields: Any) -> int:
    ident = shard.send("claim", "q", {"node": node, "max": most, **fields})
    shard.shard.flush()
    return ident


def answer(shard: Harness, ident: int) -> Any:
    message = shard.replies[ident]
    assert isinstance(message, Reply)
    if message.error is not None:
        raise message.error
    return msgspec.json.decode(message.body)


def seqs(told: Any) -> list[int]:
    return [job["$seq"] for job in told["claimed"]]


def left(shard: Harness) -> list[int]:
    return [record["$seq"] for record in shard.everything("q")]


def counters(shard: Harness) -> tuple[int, int]:
    state = shard.call("state", "q")["queue"]
    return state["ready"], state["in_flight"]


def disk_of(shard: Harness) -> FaultDisk:
    assert isinstance(shard.disk, FaultDisk)
    return shard.disk


@pytest.fixture(autouse=True)
def whole() -> Any:
    yield
    assert not indivisible.broken


EVERY = pytest.mark.parametrize(
    ("durability", "durable"),
    [(d, lasting) for d in ("ephemeral", "memory", "disk", "fsync") for lasting in (False, True)],
)


@EVERY
def test_one_request_finishes_the_last_jobs_and_takes_the_next(durability: str, durable: bool) -> None:
    shard = queue(*range(6), durability=durability, leases_durable=durable)
    assert seqs(claim(shard, most=3)) == [1, 2, 3]
    told = claim(shard, most=2, ack={"seqs": [1, 2]}, nack={"seqs": [3], "delay_ms": 500, "reason": "no"})
    assert seqs(told) == [4, 5]
    assert (told["ack"], told["nack"]) == ({"acked": 2, "skipped": []}, {"nacked": 1, "skipped": []})
    assert told["ready"] == 1
    assert left(shard) == [3, 4, 5, 6]
    assert shard.call("peek_jobs", "q", {"max": 1})["jobs"][0]["reason"] == "no"
    assert counters(shard) == (1, 2)
    shard.clock.advance(500)
    assert seqs(claim(shard, most=9)) == [3, 6]


def test_a_claim_that_finishes_nothing_is_answered_as_ever() -> None:
    shard = queue(0)
    assert claim(shard, ack=None, nack=None).keys() == {"topic", "claimed", "count", "ready"}


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("durable", [False, True])
def test_all_of_it_is_one_write_of_the_log(durability: str, durable: bool) -> None:
    shard = queue(*range(9), durability=durability, leases_durable=durable)
    claim(shard, most=3)
    shard.shard.commits.sync_now()
    before = len(disk_of(shard).calls)
    shard.send("claim", "q", {"node": "w", "max": 3, "ack": {"seqs": [1, 2]}, "nack": {"seqs": [3], "delay_ms": 9}})
    shard.shard.commits.sync_now()
    made = [call[0] for call in disk_of(shard).calls[before:]]
    assert made.count("write") == 1
    assert made.count("sync") == 1


def test_what_another_worker_has_is_skipped_and_the_claim_takes_jobs_all_the_same() -> None:
    shard = queue(*range(4))
    first = claim(shard, "a", lease_ms=100)["claimed"][0]
    shard.clock.advance(101)
    second = claim(shard, "b")["claimed"][0]
    assert first["$seq"] == second["$seq"] == 1
    told = claim(shard, "a", ack={"seqs": [1], "lease_ids": [first["lease_id"]]}, nack={"seqs": [9]})
    assert (told["ack"], told["nack"]) == ({"acked": 0, "skipped": [1]}, {"nacked": 0, "skipped": [9]})
    assert seqs(told) == [2]
    told = claim(shard, "c", ack={"node": "b", "seqs": [1], "lease_ids": [second["lease_id"]]})
    assert (told["ack"], seqs(told)) == ({"acked": 1, "skipped": []}, [3])


def test_a_repetition_skips_what_is_done() -> None:
    shard = queue(*range(4))
    claim(shard, most=2)
    fields: dict[str, Any] = {"ack": {"seqs": [1]}, "nack": {"seqs": [2], "delay_ms": 1000}}
    assert seqs(claim(shard, **fields)) == [3]
    told = claim(shard, **fields)
    assert (told["ack"], told["nack"]) == ({"acked": 0, "skipped": [1]}, {"nacked": 0, "skipped": [2]})
    assert seqs(told) == [4]


def test_the_ack_comes_before_the_nack_and_the_nack_before_the_claim() -> None:
    shard = queue(0, 1)
    claim(shard, most=2)
    told = claim(shard, most=2, ack={"seqs": [1]}, nack={"seqs": [1, 2]})
    assert (told["ack"]["acked"], told["nack"]) == (1, {"nacked": 1, "skipped": [1]})
    assert [(job["$seq"], job["deliveries"]) for job in told["claimed"]] == [(2, 2)]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"ack": {"seqs": []}}, "ack.seqs"),
        ({"ack": {"seqs": [1, 2**64]}}, "ack.seqs"),
        ({"ack": {"seqs": [-1]}}, "ack.seqs"),
        ({"ack": {"seqs": [1], "lease_ids": []}}, "ack.lease_ids"),
        ({"ack": {"seqs": [1], "node": ""}}, "ack.node"),
        ({"nack": {"seqs": [1], "reason": "x" * 513}}, "nack.reason"),
        ({"ack": {"seqs": [1]}, "nack": {"seqs": [1], "node": "n" * 200}}, "nack.node"),
    ],
)
def test_a_part_that_is_wrong_refuses_all(fields: dict[str, Any], field: str) -> None:
    shard = queue(*range(3))
    claim(shard, most=1)
    with pytest.raises(TopicsError) as caught:
        claim(shard, **fields)
    assert (caught.value.code, caught.value.detail) == (ErrorCode.INVALID_REQUEST, {"field": field})
    assert (counters(shard), left(shard)) == ((2, 1), [1, 2, 3])


@pytest.mark.parametrize("part", ["ack", "nack"])
def test_a_part_has_as_many_jobs_as_a_claim_at_most(part: str) -> None:
    shard = Harness(max_claim=3)
    shard.call("configure", "q", {"type": "queue"})
    shard.append("q", *range(9))
    claim(shard, most=3)
    with pytest.raises(TopicsError) as caught:
        claim(shard, **{part: {"seqs": [1, 2, 3, 4]}})
    assert caught.value.code is ErrorCode.BATCH_TOO_LARGE
    assert caught.value.detail == {"field": f"{part}.seqs", "count": 4, "max": 3}
    assert counters(shard) == (6, 3)
    assert len(claim(shard, most=3, **{part: {"seqs": [1, 2, 3]}})["claimed"]) == 3


def test_unknown_fields_of_a_part_are_told() -> None:
    shard = queue(0)
    assert claim(shard, ack={"seqs": [1], "lease_id": "x"})["ignored"] == ["ack.lease_id"]


@EVERY
def test_a_write_that_fails_leaves_all_as_it_was(durability: str, durable: bool) -> None:
    shard = queue(*range(6), durability=durability, leases_durable=durable)
    held = claim(shard, most=2)["claimed"]
    shard.shard.commits.sync_now()
    if durability == "ephemeral":
        return  # it writes nothing
    disk_of(shard).fail["write"] = FULL
    fields: dict[str, Any] = {"ack": {"seqs": [1]}, "nack": {"seqs": [2], "reason": "no"}}
    with pytest.raises(TopicsError) as caught:
        claim(shard, most=3, **fields)
    assert caught.value.status == 429
    del disk_of(shard).fail["write"]
    assert (counters(shard), left(shard)) == ((4, 2), [1, 2, 3, 4, 5, 6])
    assert "reason" not in shard.call("peek_jobs", "q", {"first_seq": 2, "max": 1})["jobs"][0]
    ids = [job["lease_id"] for job in held]
    told = claim(shard, most=9, ack={"seqs": [1, 2], "lease_ids": ids})
    assert (told["ack"]["acked"], seqs(told)) == (2, [3, 4, 5, 6])
    assert {job["deliveries"] for job in told["claimed"]} == {1}


def test_a_claim_that_writes_nothing_does_not_wait_for_a_write_that_failed() -> None:
    shard = queue(0, 1, durability="fsync")
    claim(shard, most=2)
    disk_of(shard).fail["write"] = FULL
    with pytest.raises(TopicsError):
        claim(shard, ack={"seqs": [2]})
    del disk_of(shard).fail["write"]
    ident = send(shard, wait_ms=1, nack={"seqs": [1], "delay_ms": 1000})
    shard.clock.advance(1)
    shard.shard.deliver()
    told = answer(shard, ident)
    assert (told["claimed"], told["nack"]) == ([], {"nacked": 1, "skipped": []})


@pytest.mark.parametrize("durable", [False, True])
def test_a_sync_that_fails_leaves_all_as_it_was(durable: bool) -> None:
    shard = queue(*range(6), durability="fsync", leases_durable=durable)
    claim(shard, most=2)
    ident = send(shard, most=3, ack={"seqs": [1]}, nack={"seqs": [2]})
    assert ident not in shard.replies  # nothing is answered before the ack is on the device
    disk_of(shard).fail["sync"] = OSError(errno.EIO, "gone")
    shard.shard.commits.sync_now()
    del disk_of(shard).fail["sync"]
    with pytest.raises(TopicsError):
        answer(shard, ident)
    assert (counters(shard), left(shard)) == ((4, 2), [1, 2, 3, 4, 5, 6])


def test_a_job_that_another_worker_takes_before_the_write_fails_stays_with_that_one() -> None:
    shard = queue(0, 1, 2, durability="fsync")
    claim(shard, most=3)
    shard.shard.commits.sync_now()
    mine = shard.send("claim", "q", {"node": "w", "max": 1, "ack": {"seqs": [1]}, "nack": {"seqs": [2, 3]}})
    theirs = shard.send("claim", "q", {"node": "v", "max": 1})  # at once: leases of this queue are in memory
    disk_of(shard).fail["write"] = FULL
    shard.shard.flush()
    del disk_of(shard).fail["write"]
    with pytest.raises(TopicsError):
        answer(shard, mine)
    (job,) = answer(shard, theirs)["claimed"]
    assert (job["$seq"], counters(shard)) == (3, (0, 3))
    told = claim(shard, "v", ack={"seqs": [3], "lease_ids": [job["lease_id"]]})
    assert told["ack"] == {"acked": 1, "skipped": []}
    assert claim(shard, ack={"seqs": [1, 2, 3]})["ack"] == {"acked": 2, "skipped": [3]}


def test_a_refused_read_of_the_jobs_undoes_the_ack() -> None:
    shard = queue(*range(4), leases_durable=True)
    claim(shard)
    topic = shard.shard.directory.find("q")
    window = topic.records.window

    def broken(*_: Any, **__: Any) -> Any:
        raise SegmentError("damaged")

    topic.records.window = broken  # type: ignore[method-assign]
    with pytest.raises(TopicsError):
        claim(shard, most=2, ack={"seqs": [1]})
    topic.records.window = window  # type: ignore[method-assign]
    assert (counters(shard), left(shard)) == ((3, 1), [1, 2, 3, 4])
    assert claim(shard, ack={"seqs": [1]})["ack"] == {"acked": 1, "skipped": []}


# A claim that waits


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_claim_that_waits_has_finished_before_and_says_so_when_it_is_answered(durability: str) -> None:
    shard = queue(0, durability=durability)
    claim(shard)
    ident = send(shard, wait_ms=5000, ack={"seqs": [1]}, nack={"seqs": [7]})
    assert shard.parked(ident)
    shard.shard.commits.sync_now()
    assert left(shard) == []
    shard.append("q", 1)
    shard.shard.commits.sync_now()
    told = answer(shard, ident)
    assert (seqs(told), told["ack"], told["nack"]) == ([2], {"acked": 1, "skipped": []}, {"nacked": 0, "skipped": [7]})


def test_a_wait_in_vain_is_answered_with_what_was_finished_and_not_before_that_lasts() -> None:
    shard = queue(0, durability="fsync")
    claim(shard)
    shard.shard.commits.sync_now()
    ident = send(shard, wait_ms=1000, ack={"seqs": [1]})
    shard.clock.advance(1000)
    shard.shard.deliver()
    assert shard.parked(ident)
    shard.shard.commits.sync_now()
    assert answer(shard, ident) == {
        "topic": "q", "claimed": [], "count": 0, "ready": 0, "ack": {"acked": 1, "skipped": []},
    }  # fmt: skip


def test_a_claim_that_waits_is_refused_as_soon_as_its_ack_is_undone() -> None:
    shard = queue(0, durability="fsync")
    claim(shard)
    shard.shard.commits.sync_now()
    ident = send(shard, wait_ms=5000, ack={"seqs": [1]})
    disk_of(shard).fail["sync"] = OSError(errno.EIO, "gone")
    shard.shard.commits.sync_now()
    del disk_of(shard).fail["sync"]
    with pytest.raises(TopicsError):
        answer(shard, ident)
    assert (counters(shard), left(shard)) == ((0, 1), [1])
    assert shard.shard.next_due is None  # it waits no more


def test_one_whose_later_leases_fail_is_told_that_its_ack_holds() -> None:
    shard = queue(0, durability="disk", leases_durable=True)
    claim(shard)
    first, second = send(shard, "w", wait_ms=5000, ack={"seqs": [1]}), send(shard, "v", wait_ms=5000)
    shard.shard.commits.sync_now()
    ident = shard.send("append", "q", {"records": [{"data": 1}, {"data": 2}]})
    shard.shard.commits.flush()
    disk_of(shard).fail["write"] = FULL
    shard.shard.deliver()
    del disk_of(shard).fail["write"]
    assert isinstance(shard.replies[ident], Reply)
    told = answer(shard, first)
    assert (told["claimed"], told["ack"]) == ([], {"acked": 1, "skipped": []})
    with pytest.raises(TopicsError):
        answer(shard, second)
    assert counters(shard) == (2, 0)


def watched(shard: Harness) -> list[float | None]:
    """When the loop has to look next, each time that it is told to look again."""
    looked: list[float | None] = []
    shard.shard.scheduler.more = lambda: looked.append(shard.shard.next_due)
    return looked


def test_jobs_whose_leases_are_not_written_go_to_the_next_claim_that_waits() -> None:
    shard = queue(durability="disk", leases_durable=True)
    first, second = send(shard, "a", wait_ms=5000), send(shard, "b", wait_ms=5000)
    shard.send("append", "q", {"records": [{"data": 1}]})
    shard.shard.commits.flush()
    looked = watched(shard)
    disk_of(shard).fail["write"] = FULL
    shard.shard.deliver()
    del disk_of(shard).fail["write"]
    assert looked[-1] == shard.clock.monotonic()
    with pytest.raises(TopicsError):
        answer(shard, first)
    assert shard.parked(second)
    shard.shard.deliver()
    assert seqs(answer(shard, second)) == [1]


def test_each_claim_that_waits_is_refused_once_while_leases_are_not_written() -> None:
    shard = queue(durability="disk", leases_durable=True)
    idents = [send(shard, node, wait_ms=5000) for node in "abc"]
    shard.send("append", "q", {"records": [{"data": 1}]})
    shard.shard.commits.flush()
    disk_of(shard).fail["write"] = FULL
    for _ in idents:
        assert shard.shard.next_due == shard.clock.monotonic()
        shard.shard.deliver()
    del disk_of(shard).fail["write"]
    assert shard.shard.next_due is None
    for ident in idents:
        with pytest.raises(TopicsError):
            answer(shard, ident)
    assert counters(shard) == (1, 0)


def test_a_claim_that_waits_does_not_order_a_dead_letter_without_end_while_nothing_is_written() -> None:
    shard = queue(0, durability="disk", max_deliveries=1, dead_letter="dead")
    claim(shard, "a", lease_ms=100)
    shard.shard.commits.sync_now()
    ident = send(shard, "b", wait_ms=5000)
    looked = watched(shard)
    shard.clock.advance(101)
    disk_of(shard).fail["write"] = FULL
    shard.shard.deliver()
    del disk_of(shard).fail["write"]
    assert shard.parked(ident)
    assert shard.shard.next_due == pytest.approx(shard.clock.monotonic() + 4.899)
    assert looked[-1] == shard.shard.next_due
    assert counters(shard) == (1, 0)


@pytest.mark.parametrize("how", ["deleted", "log"])
def test_one_whose_queue_goes_is_told_that_its_ack_holds(how: str) -> None:
    shard = queue(0, durability="fsync")
    claim(shard)
    shard.shard.commits.sync_now()
    ident, other = send(shard, wait_ms=5000, ack={"seqs": [1]}), send(shard, "v", wait_ms=5000, ack={"seqs": [9]})
    shard.send("delete_topic", "q")
    if how == "log":
        shard.send("configure", "q", {"type": "log"})
    shard.shard.commits.sync_now()
    shard.shard.deliver()
    shard.shard.commits.sync_now()
    assert answer(shard, ident)["ack"] == {"acked": 1, "skipped": []}
    with pytest.raises(TopicsError) as caught:  # it has finished nothing
        answer(shard, other)
    assert caught.value.code is (ErrorCode.NOT_A_QUEUE if how == "log" else ErrorCode.TOPIC_NOT_FOUND)


def test_a_client_that_leaves_while_it_waits_has_acked() -> None:
    shard = queue(0)
    claim(shard)
    ident = send(shard, wait_ms=5000, ack={"seqs": [1]})
    shard.shard.cancel("peer", ident)
    shard.append("q", 1)
    assert (left(shard), counters(shard)) == ([2], (1, 0))
    assert shard.parked(ident)


def test_others_that_wait_get_their_jobs_before_an_ack_lasts() -> None:
    shard = queue(0, durability="fsync")
    claim(shard)
    shard.shard.commits.sync_now()
    shard.append("q", 1)
    claim(shard, "x")
    shard.shard.commits.sync_now()
    other, finishing = send(shard, "v", wait_ms=5000), send(shard, "w", wait_ms=5000, ack={"seqs": [1]})
    shard.call("nack", "q", {"node": "x", "seqs": [2]})
    shard.call("append", "q", {"records": [{"data": 3}]})
    assert (seqs(answer(shard, other)), seqs(answer(shard, finishing))) == ([2], [3])


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
def test_a_crash_leaves_no_lease_without_the_ack_before_it(survival: Survival) -> None:
    for seed in range(40):
        shard = queue(*range(4), durability="fsync", leases_durable=True)
        claim(shard)
        shard.shard.commits.sync_now()
        shard.send("claim", "q", {"node": "w", "max": 1, "ack": {"seqs": [1]}})
        shard.shard.commits.flush()
        after = shard.restarted(disk_of(shard).after_crash(survival, seed))
        assert (left(after), counters(after)) in (
            ([1, 2, 3, 4], (3, 1)),
            ([2, 3, 4], (3, 0)),
            ([2, 3, 4], (2, 1)),
        ), seed
        there = 1 in left(after)
        assert claim(after, ack={"seqs": [1]})["ack"]["acked"] == there


def test_a_job_that_a_claim_gives_back_too_often_is_a_dead_letter() -> None:
    shard = queue(0, 1, max_deliveries=1, dead_letter="dead")
    claim(shard, most=2)
    told = claim(shard, most=2, nack={"seqs": [1]}, ack={"seqs": [2]})
    assert (told["claimed"], told["ack"]["acked"], told["nack"]["nacked"]) == ([], 1, 1)
    assert shard.call("state", "q")["queue"]["dead_lettering"] == 1

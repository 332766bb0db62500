"""Dead letters: which jobs are moved, and that exactly one copy exists whichever process dies."""

from __future__ import annotations

from errno import EIO, EMFILE
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from proto.ipc.message import Reply
from proto.ipc.operations import Operation
from proto.model.errors import TopicsError, not_ready
from shardd.queues import transfers
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness


class There:
    """A second shard, which has every topic but the queue. It fails where the test says."""

    def __init__(self, shard: Harness) -> None:
        self.shard = shard
        self.fail = ""

    def index_of(self, topic: str) -> int:
        return 1

    async def request(self, index: int, operation: Operation[Any], topic: str, body: bytes = b"") -> Reply:
        if self.fail == "before":
            raise not_ready("it is away")
        reply = self.shard.reply(operation, topic, body)
        if reply.error is not None:
            raise reply.error
        if self.fail == "after":
            raise not_ready("it has not answered")
        return reply


def worn(here: Harness, deliveries: int = 2, **config: Any) -> Harness:
    """Makes a queue whose job has had its last delivery and is then dead-lettered."""
    here.call("configure", "q", {"type": "queue", "max_deliveries": deliveries, "dead_letter": "dlq", **config})
    here.call("append", "q", {"records": [{"data": [1], "tag": "t", "meta": {"a": 1.0}}, {"data": 2}]})
    for number in range(1, deliveries + 1):
        job = here.call("claim", "q", {"node": "w"})["claimed"][0]
        assert (job["$seq"], job["deliveries"]) == (1, number)
        here.call("nack", "q", {"node": "w", "seqs": [1]})
    assert [j["$seq"] for j in here.call("claim", "q", {"node": "w"})["claimed"]] == [2]
    return here


async def carry(here: Harness, there: There) -> bool:
    """Runs one round of the mover, with syncs before and after it."""
    here.shard.commits.sync_now()
    progress = await here.shard.mover.carry(there)
    here.shard.commits.sync_now()
    return progress


def copies(there: There) -> list[dict[str, Any]]:
    return there.shard.everything("dlq")


@pytest.fixture
def there() -> There:
    return There(Harness())


async def test_a_dead_letter_is_counted_when_its_record_is_gone_and_not_before(there: There) -> None:
    here = worn(Harness())
    here.shard.commits.sync_now()
    assert await here.shard.mover.carry(there)
    state = here.call("state", "q")
    assert (state["count"], state["queue"]["dead_lettered"]) == (2, 0)
    here.shard.commits.sync_now()
    state = here.call("state", "q")
    assert (state["count"], state["queue"]["dead_lettered"]) == (1, 1)


async def test_every_job_is_in_one_counter_at_every_step(there: There) -> None:
    def counted() -> dict[str, int]:
        state = here.call("state", "q")
        queue: dict[str, int] = dict(state["queue"])
        gone = queue.pop("dead_lettered")
        assert sum(queue.values()) == state["count"]
        return queue | {"gone": gone}

    here = worn(Harness(), durability="fsync")
    here.call("append", "q", {"records": [{"data": 3}, {"data": 4, "delay_ms": 5000}]})
    whole = {"ready": 1, "in_flight": 1, "delayed": 1, "dead_lettering": 1, "gone": 0}
    assert counted() == whole
    assert await here.shard.mover.carry(there)
    assert counted() == whole  # it has arrived, and is deleted with the next sync
    here.shard.commits.sync_now()
    assert counted() == whole | {"dead_lettering": 0, "gone": 1}
    here.send("ack", "q", {"node": "w", "seqs": [2]})
    here.shard.flush()
    assert counted() == whole | {"dead_lettering": 0, "gone": 1}  # its worker has no answer yet
    here.shard.commits.sync_now()
    assert counted() == whole | {"dead_lettering": 0, "gone": 1, "in_flight": 0}
    assert here.call("peek_jobs", "q")["dead_lettering"] == 0


async def test_a_job_delivered_too_often_is_moved_with_its_tag_data_and_meta(there: There) -> None:
    here = worn(Harness())
    assert here.call("state", "q")["queue"] == {
        "ready": 0,
        "in_flight": 1,
        "delayed": 0,
        "dead_lettering": 1,
        "dead_lettered": 0,
    }
    assert await carry(here, there)
    here.shard.commits.sync_now()
    assert here.call("state", "q")["queue"] == {
        "ready": 0,
        "in_flight": 1,
        "delayed": 0,
        "dead_lettering": 0,
        "dead_lettered": 1,
    }
    assert [r["$seq"] for r in here.everything("q")] == [2]
    (copy,) = copies(there)
    assert (copy["$tag"], copy["data"]) == ("t", [1])
    assert copy["meta"] == {
        "a": 1.0, "$dead_letter_from": "q", "$dead_letter_deliveries": 2, "$dead_letter_src_seq": 1,
    }  # fmt: skip
    assert here.restarted().call("state", "q")["queue"]["dead_lettered"] == 1


def refused_write(here: Harness, op: str, topic: str, body: dict[str, Any]) -> None:
    """A request whose write fails, so that nothing of it is done."""
    disk = here.disk
    assert isinstance(disk, FaultDisk)
    here.shard.commits.sync_now()
    disk.fail["write"] = OSError(EIO, "the test says so")
    here.reply(op, topic, body)  # a claim without jobs does not wait for its orders
    del disk.fail["write"]


async def test_an_order_that_is_not_written_leaves_the_job_to_its_last_holder(there: There) -> None:
    here = Harness()
    here.call("configure", "q", {"type": "queue", "max_deliveries": 1, "dead_letter": "dlq", "lease_ms": 1000})
    here.append("q", 0, 1)
    held = {each["$seq"]: each["lease_id"] for each in here.call("claim", "q", {"node": "w", "max": 2})["claimed"]}
    here.clock.advance(1001)
    before = here.call("peek_jobs", "q")
    assert before["ready"] == 2
    refused_write(here, "claim", "q", {"node": "v", "max": 2})
    assert here.call("peek_jobs", "q") == before
    assert here.call("ack", "q", {"node": "w", "seqs": [1], "lease_ids": [held[1]]})["acked"] == 1
    here.call("claim", "q", {"node": "v"})  # orders the other one
    assert here.call("ack", "q", {"node": "w", "seqs": [2], "lease_ids": [held[2]]})["skipped"] == [2]
    await carry(here, there)
    assert [each["data"] for each in copies(there)] == [1]
    assert here.everything("q") == []


@pytest.mark.parametrize("config", [{"dead_letter": None}, {"max_deliveries": 0}])
async def test_without_a_target_or_a_bound_a_job_comes_again_for_ever(config: dict[str, Any]) -> None:
    here = Harness()
    here.call("configure", "q", {"type": "queue", "max_deliveries": 1, "dead_letter": "dlq", **config})
    here.append("q", 0)
    for number in range(1, 6):
        assert here.call("claim", "q", {"node": "w"})["claimed"][0]["deliveries"] == number
        here.call("nack", "q", {"node": "w", "seqs": [1]})


async def test_a_target_may_be_a_queue_with_a_target_of_its_own(there: There) -> None:
    there.shard.call("configure", "dlq", {"type": "queue", "max_deliveries": 1, "dead_letter": "last"})
    here = worn(Harness())
    await carry(here, there)
    there.shard.call("claim", "dlq", {"node": "v"})
    there.shard.call("nack", "dlq", {"node": "v", "seqs": [1]})
    assert there.shard.call("claim", "dlq", {"node": "v"})["count"] == 0
    end = There(Harness())
    await carry(there.shard, end)
    (copy,) = end.shard.everything("last")
    assert copy["data"] == [1]
    assert copy["meta"]["$dead_letter_from"] == "dlq"


async def test_auto_create_false_makes_no_target_and_the_job_stays(there: There) -> None:
    here = worn(Harness(), auto_create=False)
    assert not await carry(here, there)
    with pytest.raises(TopicsError):
        there.shard.call("state", "dlq")
    assert [r["$seq"] for r in here.everything("q")] == [1, 2]
    there.shard.call("configure", "dlq")
    assert await carry(here, there)
    assert len(copies(there)) == 1


async def test_a_job_with_as_much_meta_as_allowed_is_moved_all_the_same(there: There) -> None:
    here = Harness()
    here.call("configure", "q", {"type": "queue", "max_deliveries": 1, "dead_letter": "dlq"})
    here.call("append", "q", {"records": [{"data": 0, "meta": {f"k{n}": n for n in range(64)}}]})
    here.call("claim", "q", {"node": "w"})
    here.call("nack", "q", {"node": "w", "seqs": [1]})
    here.call("claim", "q", {"node": "w"})
    assert await carry(here, there)
    assert len(copies(there)[0]["meta"]) == 67


@pytest.mark.parametrize("durable", [False, True], ids=["leases", "durable-leases"])
@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("fail", ["before", "after"])
async def test_a_death_between_the_steps_leaves_one_copy(
    there: There, fail: str, durability: str, durable: bool
) -> None:
    here = worn(Harness(), durability=durability, leases_durable=durable)
    there.fail = fail
    assert not await carry(here, there)
    disk = here.disk
    assert isinstance(disk, FaultDisk)
    here = here.restarted(disk.after_crash("process"))
    there.shard = there.shard.restarted()
    assert [j["$seq"] for j in here.call("claim", "q", {"node": "w", "max": 9})["claimed"]] in ([2], [])
    there.fail = ""
    assert await carry(here, there)
    here.shard.commits.sync_now()
    assert len(copies(there)) == 1
    assert [r["$seq"] for r in here.everything("q")] == [2]
    assert not await carry(here.restarted(), there)
    assert len(copies(there)) == 1


async def test_a_doomed_job_that_is_deleted_meanwhile_is_not_moved(there: There) -> None:
    here = worn(Harness())
    here.call("delete_records", "q", {"before_seq": 2})
    await carry(here, there)
    with pytest.raises(TopicsError):
        copies(there)
    assert len(here.shard.mover) == 0


def worn_out(here: Harness, count: int, **config: Any) -> Harness:
    """Makes a queue with this many jobs, which are all dead-lettered."""
    here.call("configure", "q", {"type": "queue", "max_deliveries": 1, "dead_letter": "dlq", **config})
    here.append("q", *range(count))
    for _ in range(2):
        here.call("claim", "q", {"node": "w", "max": count})
        here.call("nack", "q", {"node": "w", "seqs": list(range(1, count + 1))})
    return here


async def test_many_letters_travel_in_one_batch(there: There) -> None:
    here = worn_out(Harness(), 1000)
    there.shard.call("configure", "dlq")
    frames = there.shard.reply("stats").extra.figures
    assert await carry(here, there)
    assert [r["data"] for r in copies(there)] == list(range(1000))
    after = there.shard.reply("stats").extra.figures
    assert frames is not None
    assert after is not None
    assert after.wal.frames_total - frames.wal.frames_total <= 3  # one batch, and its seqs' reservation
    assert here.call("state", "q")["queue"]["dead_lettered"] == 1000


async def test_no_window_bounds_how_long_a_shard_may_be_away_between_the_steps(there: There) -> None:
    there.shard.call("configure", "dlq", {"idempotency_window_ms": 0})
    here = worn(Harness())
    there.fail = "after"
    assert not await carry(here, there)
    there.shard.clock.advance(366 * 86_400_000)
    there.shard.append("dlq", "something else")
    there.shard.shard.checkpoint_now()
    there.shard = there.shard.restarted()
    there.fail = ""
    assert await carry(here, there)
    assert [r["data"] for r in copies(there)] == [[1], "something else"]
    assert [r["$seq"] for r in here.everything("q")] == [2]


async def test_a_batch_that_is_known_in_part_brings_only_the_rest(there: There) -> None:
    here = worn(Harness())
    there.fail = "after"
    assert not await carry(here, there)
    here.call("nack", "q", {"node": "w", "seqs": [2]})
    for _ in range(2):
        here.call("claim", "q", {"node": "w"})
        here.call("nack", "q", {"node": "w", "seqs": [2]})
    here.shard.commits.sync_now()
    assert len(here.shard.mover) == 2
    there.fail = ""
    assert await carry(here, there)
    assert await carry(here, there)
    assert [r["data"] for r in copies(there)] == [[1], 2]
    assert here.call("state", "q")["queue"]["dead_lettered"] == 2


async def test_letters_of_two_queues_do_not_hide_each_other(there: There) -> None:
    here = worn(Harness())
    other = Harness()
    other.call("configure", "p", {"type": "queue", "max_deliveries": 1, "dead_letter": "dlq"})
    other.append("p", "p1")
    for _ in range(2):
        other.call("claim", "p", {"node": "w"})
        other.call("nack", "p", {"node": "w", "seqs": [1]})
    there.fail = "after"
    await carry(here, there)
    await carry(other, there)
    there.fail = ""
    await carry(here, there)
    await carry(other, there)
    assert [r["data"] for r in copies(there)] == [[1], "p1"]


async def test_a_queue_that_was_made_anew_sends_its_own_letters(there: There) -> None:
    here = worn(Harness())
    await carry(here, there)
    here.call("delete_topic", "q")
    worn(here)
    await carry(here, there)
    assert len(copies(there)) == 2


async def test_a_full_target_takes_what_fits_and_the_rest_waits(there: There) -> None:
    there.shard.call("configure", "dlq", {"cap_records": 2, "discard": "reject"})
    here = worn_out(Harness(), 3)
    for _ in range(5):
        await carry(here, there)
    assert [r["data"] for r in copies(there)] == [0, 1]
    assert here.shard.mover.refused == {"dlq"}
    there.shard.call("delete_records", "dlq", {"before_seq": 2})
    assert await carry(here, there)
    assert [r["data"] for r in copies(there)] == [1, 2]
    assert here.everything("q") == []
    assert not await carry(here, there)
    there.shard.call("configure", "dlq", {"cap_records": 0})
    seqs = here.append("q", 3, 4)["seqs"]
    for _ in range(2):
        here.call("claim", "q", {"node": "w", "max": 2})
        here.call("nack", "q", {"node": "w", "seqs": seqs})
    assert await carry(here, there)  # in one batch again
    assert [r["data"] for r in copies(there)] == [1, 2, 3, 4]


def state(here: Harness) -> dict[str, Any]:
    queue: dict[str, Any] = here.call("state", "q")["queue"]
    return queue


def worn_out_with(here: Harness, *sizes: int) -> Harness:
    """Makes a queue whose jobs have data of these sizes and are all dead-lettered."""
    here.call("configure", "q", {"type": "queue", "max_deliveries": 1, "dead_letter": "dlq"})
    here.append("q", *("x" * size for size in sizes))
    for _ in range(2):
        here.call("claim", "q", {"node": "w", "max": 99})
        here.call("nack", "q", {"node": "w", "seqs": list(range(1, len(sizes) + 1))})
    return here


async def settle(here: Harness, there: There) -> None:
    for _ in range(12):
        await carry(here, there)


async def test_a_letter_that_can_never_fit_holds_up_no_other_and_is_seen(there: There) -> None:
    there.shard.call("configure", "dlq", {"cap_bytes": 1000, "discard": "reject"})
    here = worn_out_with(Harness(), 10, 2000, 20, 3000, 30)
    with capture_logs() as logs:
        await settle(here, there)
        assert [len(r["data"]) for r in copies(there)] == [10, 20, 30]
        told = state(here)
        assert (told["dead_lettering"], told["dead_lettered"], told["waits_for"]) == (2, 3, "record_too_large")
        jobs = here.call("peek_jobs", "q")["jobs"]
        assert [(job["$seq"], job["state"], job["waits_for"]) for job in jobs] == [
            (2, "dead_lettering", "record_too_large"),
            (4, "dead_lettering", "record_too_large"),
        ]
        for _ in range(3):
            here.clock.advance(5000)
            assert not await carry(here, there)
    assert [each["event"] for each in logs].count("dead_letter_refused") == 1
    assert here.shard.mover.refused == set()  # letters of other queues go on at once


async def test_a_letter_that_could_not_fit_goes_when_it_fits(there: There) -> None:
    there.shard.call("configure", "dlq", {"cap_bytes": 1000, "discard": "reject"})
    here = worn_out_with(Harness(), 3000, 2000)
    await settle(here, there)
    assert state(here)["dead_lettering"] == 2
    there.shard.call("configure", "dlq", {"cap_bytes": 8000})
    assert not await carry(here, there)  # it is asked now and then
    here.clock.advance(5000)
    await settle(here, there)
    assert sorted(len(r["data"]) for r in copies(there)) == [2000, 3000]
    assert state(here) == {"ready": 0, "in_flight": 0, "delayed": 0, "dead_lettering": 0, "dead_lettered": 2}


async def test_the_mover_asks_again_for_a_letter_that_could_not_fit(
    there: There, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.shard.call("configure", "dlq", {"cap_bytes": 1000, "discard": "reject"})
    here = worn_out_with(Harness(), 3000, 10)
    monkeypatch.setattr(here.clock, "monotonic", trio.current_time)
    asked = 0

    async def request(*args: Any) -> Reply:
        nonlocal asked
        asked += 1
        return await There.request(there, *args)

    monkeypatch.setattr(there, "request", request)
    here.shard.commits.sync_now()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.shard.mover.run, there)
        await trio.sleep(60)
        assert [len(r["data"]) for r in copies(there)] == [10]
        here.shard.commits.sync_now()
        await trio.sleep(60)
        assert asked < 40
        there.shard.call("configure", "dlq", {"cap_bytes": 8000})
        await trio.sleep(6)
        assert [len(r["data"]) for r in copies(there)] == [10, 3000]
        nursery.cancel_scope.cancel()


async def test_a_letter_that_could_not_fit_arrives_once_if_the_answer_to_its_retry_is_lost(there: There) -> None:
    there.shard.call("configure", "dlq", {"cap_bytes": 1000, "discard": "reject"})
    here = worn_out_with(Harness(), 2000)
    await settle(here, there)
    there.shard.call("configure", "dlq", {"cap_bytes": 8000})
    here.clock.advance(5000)
    there.fail = "after"
    assert not await carry(here, there)
    there.fail = ""
    seqs = here.append("q", "x")["seqs"]
    for _ in range(2):
        here.call("claim", "q", {"node": "w"})
        here.call("nack", "q", {"node": "w", "seqs": seqs})
    await settle(here, there)
    here.clock.advance(5000)
    await settle(here, there)
    assert [len(r["data"]) for r in copies(there)] == [2000, 1]
    assert state(here)["dead_lettered"] == 2


async def test_a_letter_arrives_once_though_one_of_a_lower_seq_is_ordered_before_its_answer(there: There) -> None:
    there.shard.call("configure", "dlq", {"cap_records": 1, "discard": "reject"})
    here = Harness()
    here.call("configure", "q", {"type": "queue", "max_deliveries": 1, "dead_letter": "dlq"})
    here.append("q", 0, 1, 2)
    here.call("claim", "q", {"node": "w", "max": 3})
    here.call("nack", "q", {"node": "w", "seqs": [2, 3]})
    here.call("claim", "q", {"node": "w", "max": 3})
    assert not await carry(here, there)  # the batch can never fit: its records go one by one
    there.fail = "after"
    assert not await carry(here, there)
    there.fail = ""
    here.call("nack", "q", {"node": "w", "seqs": [1]})
    here.call("claim", "q", {"node": "w"})
    there.shard.call("configure", "dlq", {"cap_records": 0})
    await settle(here, there)
    assert sorted(r["data"] for r in copies(there)) == [0, 1, 2]


async def test_a_letter_arrives_once_though_its_first_deletion_fails(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "BATCH_RECORDS", 1)
    there.shard.call("configure", "dlq", {"cap_bytes": 1000, "discard": "reject"})
    here = worn_out_with(Harness(), 2000, 1500)
    await settle(here, there)
    there.shard.call("configure", "dlq", {"cap_bytes": 8000})
    here.clock.advance(5000)
    disk = here.disk
    assert isinstance(disk, FaultDisk)
    disk.fail["write"] = OSError(EIO, "the test says so")
    await carry(here, there)
    del disk.fail["write"]
    await settle(here, there)
    assert [len(r["data"]) for r in copies(there)] == [1500, 2000]


async def test_letters_whose_files_could_not_be_opened_for_a_while_follow(
    there: There, autojump_clock: MockClock
) -> None:
    disk = FaultDisk()
    here = worn(Harness(disk, cache_bytes=0))
    here.shard.commits.sync_now()
    here.shard.checkpoint_now()
    disk.unreadable = {path: OSError(EMFILE, "the test says so") for path in disk.names if path.suffix == ".data"}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.shard.mover.run, there)
        await trio.sleep(1)
        assert len(here.shard.mover) == 1
        disk.unreadable.clear()
        await trio.sleep(6)
        assert [r["data"] for r in copies(there)] == [[1]]
        nursery.cancel_scope.cancel()


async def test_letters_that_can_never_fit_go_where_the_queue_sends_them_now(there: There) -> None:
    there.shard.call("configure", "dlq", {"cap_bytes": 1000, "discard": "reject"})
    here = worn_out_with(Harness(), 3000, 2000)
    await settle(here, there)
    here.call("configure", "q", {"dead_letter": "spare"})
    here.clock.advance(5000)
    await settle(here, there)
    assert sorted(len(r["data"]) for r in there.shard.everything("spare")) == [2000, 3000]


async def test_a_letter_that_can_never_fit_is_not_lost_and_may_be_deleted(there: There) -> None:
    there.shard.call("configure", "dlq", {"cap_bytes": 1000, "discard": "reject"})
    here = worn_out_with(Harness(), 3000, 2000)
    await settle(here, there)
    here.shard.checkpoint_now()
    here = here.restarted()
    await settle(here, there)
    assert (len(here.everything("q")), state(here)["waits_for"]) == (2, "record_too_large")
    here.call("delete_records", "q", {"before_seq": 3})
    here.clock.advance(5000)
    await settle(here, there)
    assert len(here.shard.mover) == 0
    assert "waits_for" not in state(here)


async def test_batches_travel_again_behind_a_letter_that_can_never_fit(there: There) -> None:
    there.shard.call("configure", "dlq", {"cap_bytes": 1000, "discard": "reject"})
    here = worn_out_with(Harness(), 3000, 10)
    await settle(here, there)
    seqs = here.append("q", 3, 4)["seqs"]
    for _ in range(2):
        here.call("claim", "q", {"node": "w", "max": 2})
        here.call("nack", "q", {"node": "w", "seqs": seqs})
    assert await carry(here, there)  # in one batch
    assert [r["data"] for r in copies(there)][1:] == [3, 4]


@pytest.mark.parametrize(
    ("config", "reason"),
    [({"cap_records": 1, "discard": "reject"}, "topic_full"), (None, "topic_not_found")],
    ids=["full", "missing"],
)
async def test_the_state_of_a_queue_says_what_its_letters_wait_for(
    there: There, config: dict[str, Any] | None, reason: str
) -> None:
    if config is not None:
        there.shard.call("configure", "dlq", config)
        there.shard.append("dlq", 0)
    here = worn(Harness(), auto_create=False)
    with capture_logs() as logs:
        for _ in range(3):
            await carry(here, there)
    assert state(here)["waits_for"] == reason
    assert here.call("peek_jobs", "q")["jobs"][0]["waits_for"] == reason
    assert [each["event"] for each in logs] == ["dead_letter_refused"]
    there.shard.call("configure", "dlq", {"cap_records": 0})
    await settle(here, there)
    assert "waits_for" not in state(here)


async def test_letters_that_are_refused_go_where_the_queue_sends_them_now(there: There) -> None:
    there.shard.call("configure", "dlq", {"cap_records": 1, "discard": "reject"})
    here = worn_out(Harness(), 2)
    for _ in range(3):
        await carry(here, there)
    here.call("configure", "q", {"dead_letter": "spare"})
    for _ in range(3):
        await carry(here, there)
    assert [r["data"] for r in copies(there)] == [0]
    assert [r["data"] for r in there.shard.everything("spare")] == [1]
    assert here.call("state", "q")["queue"]["dead_lettered"] == 2


async def test_letters_that_are_refused_come_back_if_the_queue_sends_none_any_more(there: There) -> None:
    here = worn(Harness(), auto_create=False)
    assert not await carry(here, there)
    here.call("configure", "q", {"dead_letter": None})
    await carry(here, there)
    assert here.call("claim", "q", {"node": "w"})["claimed"][0]["deliveries"] == 3
    assert not await carry(here, there)


async def test_a_job_on_its_way_survives_a_checkpoint_and_a_machine(there: There) -> None:
    here = worn(Harness(), leases_durable=False)
    there.fail = "before"
    await carry(here, there)
    here.shard.checkpoint_now()
    disk = here.disk
    assert isinstance(disk, FaultDisk)
    here = here.restarted(disk.after_crash("drop"))
    (doomed,) = [job for job in here.call("peek_jobs", "q")["jobs"] if job["state"] == "dead_lettering"]
    assert (doomed["$seq"], doomed["dead_letter"]) == (1, "dlq")
    there.fail = ""
    assert await carry(here, there)
    assert copies(there)[0]["meta"]["$dead_letter_deliveries"] == 2


async def test_an_order_that_a_power_cut_takes_leaves_the_job_though_a_checkpoint_has_seen_it(there: There) -> None:
    """The checkpoint is made after the order is written, and before it is synced."""
    disk = FaultDisk()
    here = worn(Harness(disk))
    here.shard.checkpoint_now()
    here = here.restarted(disk.after_crash("drop"))
    assert here.call("state", "q")["queue"]["dead_lettering"] == 0
    here.call("claim", "q", {"node": "w"})
    await carry(here, there)
    assert [each["data"] for each in copies(there)] == [[1]]


async def test_a_clients_key_is_never_taken_for_an_arrival(there: There) -> None:
    there.shard.append("dlq", 1, idempotency_key="\u00ff" + "x" * 40)
    there.shard.append("dlq", 2, idempotency_key="\x00")
    assert there.shard.restarted().append("dlq", 1, idempotency_key="\u00ff" + "x" * 40)["deduped"]
    assert there.shard.restarted().shard.directory.find("dlq").arrivals.last == {}


async def test_the_last_reason_goes_with_the_letter_and_not_with_a_job_of_the_same_seq(there: There) -> None:
    here = Harness()
    here.call("configure", "q", {"type": "queue", "max_deliveries": 2, "dead_letter": "dlq"})
    here.call("append", "q", {"records": [{"data": 1, "meta": {"a": 1}}, {"data": 2}]})
    for reason in ("first", 'last "\u00f8\n\x1b'):
        here.call("claim", "q", {"node": "w", "max": 2})
        here.call("nack", "q", {"node": "w", "seqs": [1], "reason": reason})
        here.call("nack", "q", {"node": "w", "seqs": [2]})
    here.call("claim", "q", {"node": "w", "max": 2})
    assert await carry(here, there)
    stamps = {"$dead_letter_from": "q", "$dead_letter_deliveries": 2}
    assert [each["meta"] for each in copies(there)] == [
        {"a": 1, **stamps, "$dead_letter_src_seq": 1, "$dead_letter_reason": 'last "\u00f8\n\x1b'},
        {**stamps, "$dead_letter_src_seq": 2},
    ]
    queue = here.shard.directory.find("q").queue
    assert queue is not None
    assert not queue.reasons


@pytest.mark.parametrize("durable", [False, True], ids=["leases", "durable-leases"])
@pytest.mark.parametrize("checkpoint", [False, True], ids=["log", "catalog"])
@pytest.mark.parametrize("fail", ["before", "after"])
async def test_a_death_on_the_way_does_not_lose_the_reason(
    there: There, fail: str, checkpoint: bool, durable: bool
) -> None:
    here = Harness()
    here.call("configure", "q", {"type": "queue", "max_deliveries": 1, "dead_letter": "dlq", "leases_durable": durable})
    here.append("q", 0)
    here.call("claim", "q", {"node": "w"})
    here.call("nack", "q", {"node": "w", "seqs": [1], "reason": "why"})
    here.call("claim", "q", {"node": "w"})
    there.fail = fail
    assert not await carry(here, there)
    if checkpoint:
        here.shard.checkpoint_now()
    disk = here.disk
    assert isinstance(disk, FaultDisk)
    here = here.restarted(disk.after_crash("process"))
    there.fail = ""
    assert await carry(here, there)
    assert [each["meta"]["$dead_letter_reason"] for each in copies(there)] == ["why"]

"""Dead letters: which jobs are moved, and that exactly one copy exists whichever process dies."""

from __future__ import annotations

from typing import Any

import pytest

from proto.ipc.message import Reply
from proto.ipc.operations import Operation
from proto.model.errors import TopicsError, not_ready
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


async def test_a_job_delivered_too_often_is_moved_with_its_tag_data_and_meta(there: There) -> None:
    here = worn(Harness())
    assert here.call("state", "q")["queue"] == {"ready": 0, "in_flight": 1, "dead_lettered": 0}
    assert await carry(here, there)
    here.shard.commits.sync_now()
    assert here.call("state", "q")["queue"] == {"ready": 0, "in_flight": 1, "dead_lettered": 1}
    assert [r["$seq"] for r in here.everything("q")] == [2]
    (copy,) = copies(there)
    assert (copy["$tag"], copy["data"]) == ("t", [1])
    assert copy["meta"] == {
        "a": 1.0, "$dead_letter_from": "q", "$dead_letter_deliveries": 2, "$dead_letter_src_seq": 1,
    }  # fmt: skip
    assert here.restarted().call("state", "q")["queue"]["dead_lettered"] == 1


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
    assert after["wal"]["frames_total"] - frames["wal"]["frames_total"] <= 3  # one batch, and its seqs' reservation
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


async def test_a_clients_key_is_never_taken_for_an_arrival(there: There) -> None:
    there.shard.append("dlq", 1, idempotency_key="\u00ff" + "x" * 40)
    there.shard.append("dlq", 2, idempotency_key="\x00")
    assert there.shard.restarted().append("dlq", 1, idempotency_key="\u00ff" + "x" * 40)["deduped"]
    assert there.shard.restarted().shard.directory.find("dlq").arrivals.last == {}

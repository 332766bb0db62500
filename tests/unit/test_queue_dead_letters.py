"""Dead letters: what is moved, and that there is exactly one copy whoever dies when."""

from __future__ import annotations

from typing import Any

import pytest

from proto.errors import TopicsError, not_ready
from proto.message import Reply
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness


class There:
    """Every topic but the queue's, in a shard of its own. Dies where it is told to."""

    def __init__(self, shard: Harness) -> None:
        self.shard = shard
        self.fail = ""

    def index_of(self, topic: str) -> int:
        return 1

    async def request(self, index: int, op: str, topic: str, options: dict[str, Any], body: bytes = b"") -> Reply:
        if self.fail == "before":
            raise not_ready("it is away")
        reply = self.shard.reply(op, topic, body, **options)
        if reply.error is not None:
            raise reply.error
        if self.fail == "after":
            raise not_ready("it has not answered")
        return reply


def worn(here: Harness, deliveries: int = 2, **config: Any) -> Harness:
    """A queue with a job that was delivered as often as may be, and then found to be too much."""
    here.call("configure", "q", {"type": "queue", "max_deliveries": deliveries, "dead_letter": "dlq", **config})
    here.call("append", "q", {"records": [{"data": [1], "tag": "t", "meta": {"a": 1.0}}, {"data": 2}]})
    for number in range(1, deliveries + 1):
        job = here.call("claim", "q", {"node": "w"})["claimed"][0]
        assert (job["$seq"], job["deliveries"]) == (1, number)
        here.call("nack", "q", {"node": "w", "seqs": [1]})
    assert [j["$seq"] for j in here.call("claim", "q", {"node": "w"})["claimed"]] == [2]
    return here


def copies(there: There) -> list[dict[str, Any]]:
    return there.shard.everything("dlq")


@pytest.fixture
def there() -> There:
    return There(Harness())


async def test_a_job_delivered_too_often_is_moved_with_its_tag_data_and_meta(there: There) -> None:
    here = worn(Harness())
    assert here.call("state", "q")["queue"] == {"ready": 0, "in_flight": 1, "dead_lettered": 0}
    assert await here.shard.dead_letters.bury(there)
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
    await here.shard.dead_letters.bury(there)
    there.shard.call("claim", "dlq", {"node": "v"})
    there.shard.call("nack", "dlq", {"node": "v", "seqs": [1]})
    assert there.shard.call("claim", "dlq", {"node": "v"})["count"] == 0
    end = There(Harness())
    await there.shard.shard.dead_letters.bury(end)
    (copy,) = end.shard.everything("last")
    assert copy["data"] == [1]
    assert copy["meta"]["$dead_letter_from"] == "dlq"


async def test_auto_create_false_makes_no_target_and_the_job_stays(there: There) -> None:
    here = worn(Harness(), auto_create=False)
    assert not await here.shard.dead_letters.bury(there)
    with pytest.raises(TopicsError):
        there.shard.call("state", "dlq")
    assert [r["$seq"] for r in here.everything("q")] == [1, 2]
    there.shard.call("configure", "dlq")
    assert await here.shard.dead_letters.bury(there)
    assert len(copies(there)) == 1


async def test_a_job_with_as_much_meta_as_allowed_is_moved_all_the_same(there: There) -> None:
    here = Harness()
    here.call("configure", "q", {"type": "queue", "max_deliveries": 1, "dead_letter": "dlq"})
    here.call("append", "q", {"records": [{"data": 0, "meta": {f"k{n}": n for n in range(64)}}]})
    here.call("claim", "q", {"node": "w"})
    here.call("nack", "q", {"node": "w", "seqs": [1]})
    here.call("claim", "q", {"node": "w"})
    assert await here.shard.dead_letters.bury(there)
    assert len(copies(there)[0]["meta"]) == 67


@pytest.mark.parametrize("durable", [False, True], ids=["leases", "durable-leases"])
@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("fail", ["before", "after"])
async def test_a_death_between_the_steps_leaves_one_copy(
    there: There, fail: str, durability: str, durable: bool
) -> None:
    here = worn(Harness(), durability=durability, leases_durable=durable)
    there.fail = fail
    assert not await here.shard.dead_letters.bury(there)
    disk = here.disk
    assert isinstance(disk, FaultDisk)
    here = here.restarted(disk.after_crash("process"))
    there.shard = there.shard.restarted()
    assert [j["$seq"] for j in here.call("claim", "q", {"node": "w", "max": 9})["claimed"]] in ([2], [])
    there.fail = ""
    assert await here.shard.dead_letters.bury(there)
    here.shard.commits.sync_now()
    assert len(copies(there)) == 1
    assert [r["$seq"] for r in here.everything("q")] == [2]
    assert not await here.restarted().shard.dead_letters.bury(there)
    assert len(copies(there)) == 1


async def test_a_doomed_job_that_is_deleted_meanwhile_is_not_moved(there: There) -> None:
    here = worn(Harness())
    here.call("delete_records", "q", {"before_seq": 2})
    await here.shard.dead_letters.bury(there)
    with pytest.raises(TopicsError):
        copies(there)
    assert len(here.shard.dead_letters) == 0

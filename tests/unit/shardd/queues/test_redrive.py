"""Redrive: dead letters go back to their queue. An extension of the API."""

from __future__ import annotations

from errno import EIO
from typing import Any

import msgspec
import pytest

from proto.ipc.message import Reply
from proto.model.errors import ErrorCode, TopicsError
from shardd.queues import transfers
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness
from tests.support.queues import got
from tests.unit.shardd.queues.test_transfers import There, carry, refused_write

QUEUE = "q"


def letter(data: Any, queue: str = QUEUE, **fields: Any) -> dict[str, Any]:
    stamps = {"$dead_letter_from": queue, "$dead_letter_deliveries": 3, "$dead_letter_src_seq": 7}
    return {"data": data, **fields, "meta": {**stamps, **fields.get("meta", {})}}


def dead(*letters: dict[str, Any], **config: Any) -> Harness:
    shard = Harness()
    shard.call("configure", "dlq", config)
    if letters:
        shard.call("append", "dlq", {"records": letters})
    return shard


@pytest.fixture
def there() -> There:
    made = There(Harness())
    made.shard.call("configure", QUEUE, {"type": "queue", "durability": "fsync"})
    return made


def data(there: There) -> list[Any]:
    return [record["data"] for record in there.shard.everything(QUEUE)]


async def redriven(shard: Harness, there: There, **asked: Any) -> Any:
    """Carries out a redrive and returns its answer."""
    ident = shard.send("redrive", "dlq", {"queue": QUEUE, **asked})
    for _ in range(3):
        await carry(shard, there)
    reply = shard.replies[ident]
    assert isinstance(reply, Reply)
    if reply.error is not None:
        raise reply.error
    return msgspec.json.decode(reply.body)


async def test_letters_go_back_as_fresh_jobs_without_their_stamps(there: There) -> None:
    shard = dead(letter([1], tag="t", meta={"a": 1.0}), letter(2))
    answer = await redriven(shard, there)
    assert answer == {"topic": "dlq", "queue": QUEUE, "redriven": 2, "seqs": [1, 2], "next_seq": 3, "more": False}
    assert shard.everything("dlq") == []
    jobs = there.shard.call("claim", QUEUE, {"node": "w", "max": 9})["claimed"]
    assert [(j["data"], j["deliveries"], j.get("$tag"), j.get("meta")) for j in jobs] == [
        ([1], 1, "t", {"a": 1.0}),
        (2, 1, None, None),
    ]


async def test_only_letters_of_the_queue_go_back(there: There) -> None:
    others = [letter("other", "elsewhere"), {"data": "none"}, {"data": "odd", "meta": {"$dead_letter_from": 5}}]
    shard = dead(letter("mine"), *others)
    assert (await redriven(shard, there))["redriven"] == 1
    assert data(there) == ["mine"]
    assert len(shard.everything("dlq")) == 3


@pytest.mark.parametrize(
    ("asked", "moved"),
    [
        ({"first_seq": 3}, [3, 4, 5]),
        ({"last_seq": 2}, [1, 2]),
        ({"first_seq": 2, "last_seq": 4}, [2, 3, 4]),
        ({"from_seq": 2, "to_seq": 4}, [2, 3, 4]),
        ({"match": "a:2"}, [2]),
        ({"match": ["tag", "Glob", "a:*"]}, [1, 2, 3]),
        ({"match": ["tag", "Glob", "a:*"], "first_seq": 2}, [2, 3]),
        ({"max": 2}, [1, 2]),
        ({"max": 0}, [1]),
        ({"max": -5}, [1]),
        ({"first_seq": 9}, []),
    ],
)
async def test_a_range_of_seqs_tags_and_a_number_can_be_asked_for(
    there: There, asked: dict[str, Any], moved: list[int]
) -> None:
    tags = ["a:1", "a:2", "a:3", "b", None]
    shard = dead(*(letter(n, **({"tag": tag} if tag else {})) for n, tag in enumerate(tags, 1)))
    answer = await redriven(shard, there, **asked)
    assert (answer["seqs"], data(there)) == (moved, moved)


async def test_a_page_says_where_to_go_on(there: There) -> None:
    shard = dead(*map(letter, range(5)))
    seen = []
    answer: dict[str, Any] = {"more": True, "next_seq": 0}
    while answer["more"]:
        answer = await redriven(shard, there, max=2, from_seq=answer["next_seq"])
        seen += answer["seqs"]
    assert seen == [1, 2, 3, 4, 5]
    assert data(there) == [0, 1, 2, 3, 4]


async def test_repeating_a_redrive_moves_nothing_twice(there: There) -> None:
    shard = dead(letter(1), letter(2))
    first = shard.send("redrive", "dlq", {"queue": QUEUE, "max": 1})
    second = shard.send("redrive", "dlq", {"queue": QUEUE, "max": 1})
    third = shard.send("redrive", "dlq", {"queue": QUEUE, "max": 1})
    for _ in range(3):
        await carry(shard, there)
    assert data(there) == [1, 2]
    assert first in shard.replies
    assert second in shard.replies
    assert shard.replies[third].body.count(b'"redriven":0') == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("fail", ["before", "after"])
async def test_a_death_on_the_way_leaves_each_letter_once(there: There, fail: str) -> None:
    shard = dead(letter(1), letter(2))
    there.fail = fail
    with pytest.raises(TopicsError) as caught:
        await redriven(shard, there)
    assert caught.value.code is ErrorCode.NOT_READY
    assert caught.value.detail == {"redriven": 0}
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    shard = shard.restarted(disk.after_crash("drop"))
    there.shard.clock.advance(10 * 86_400_000)  # longer than any key is remembered
    there.fail = ""
    for _ in range(3):
        await carry(shard, there)
    assert data(there) == [1, 2]
    assert shard.everything("dlq") == []


@pytest.mark.parametrize("restart", [False, True], ids=["same-process", "restart"])
async def test_letters_whose_answer_is_lost_go_before_those_of_a_later_redrive(
    there: There, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    monkeypatch.setattr(transfers, "BATCH_RECORDS", 2)
    shard = dead(*map(letter, range(1, 5)))
    there.fail = "after"
    with pytest.raises(TopicsError):
        await redriven(shard, there, first_seq=3)
    shard.send("redrive", "dlq", {"queue": QUEUE, "last_seq": 2})
    shard.shard.commits.sync_now()
    if restart:
        disk = shard.disk
        assert isinstance(disk, FaultDisk)
        shard = shard.restarted(disk.after_crash("process"))
    there.fail = ""
    for _ in range(3):
        await carry(shard, there)
    assert data(there) == [3, 4, 1, 2]
    assert shard.everything("dlq") == []


async def test_more_letters_than_a_client_may_append_at_once_go_back() -> None:
    there = There(Harness(max_batch_records=2))
    there.shard.call("configure", QUEUE, {"type": "queue"})
    assert (await redriven(dead(*map(letter, range(5))), there))["redriven"] == 5
    assert data(there) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "lowered",
    [{"max_batch_records": 2}, {"max_record_bytes": 3}, {"max_tag_bytes": 2}],
    ids=lambda each: next(iter(each)),
)
async def test_a_restart_with_lower_limits_doubles_no_letter_whose_answer_was_lost(
    there: There, lowered: dict[str, int]
) -> None:
    letters = [f"text {number}" for number in range(5)]
    shard = dead(*(letter(each, tag="tag") for each in letters))
    there.fail = "after"
    with pytest.raises(TopicsError):
        await redriven(shard, there)
    there.shard.shard.commits.sync_now()
    there.shard, there.fail = there.shard.restarted(**lowered), ""
    for _ in range(3):
        await carry(shard, there)
    assert data(there) + shard.everything("dlq") == letters
    assert not shard.shard.mover


@pytest.mark.parametrize("lowered", [{"max_record_bytes": 3}, {"max_tag_bytes": 2}], ids=lambda each: next(iter(each)))
async def test_letters_that_were_stored_under_higher_limits_go_back(there: There, lowered: dict[str, int]) -> None:
    shard = dead(letter("text", tag="tag"))
    there.shard = there.shard.restarted(**lowered)
    assert (await redriven(shard, there))["redriven"] == 1


async def test_redrives_that_wait_behind_a_batch_without_an_answer_get_an_error(there: There) -> None:
    shard = dead(letter(1), letter(2))
    there.fail = "after"
    with pytest.raises(TopicsError):
        await redriven(shard, there, last_seq=1)
    with pytest.raises(TopicsError) as caught:
        await redriven(shard, there, first_seq=2)
    assert caught.value.code is ErrorCode.NOT_READY
    there.fail = ""
    for _ in range(3):
        await carry(shard, there)
    assert data(there) == [1, 2]


async def test_what_the_queue_refuses_stays_and_the_answer_says_why(there: There) -> None:
    shard = dead(letter(1), letter(2))
    there.shard.call("configure", QUEUE, {"cap_records": 1, "discard": "reject"})
    with pytest.raises(TopicsError) as caught:
        await redriven(shard, there)
    assert caught.value.code is ErrorCode.RECORD_TOO_LARGE
    assert 'the others stay in "dlq"' in caught.value.message
    assert (await redriven(shard, there, max=1))["redriven"] == 1
    with pytest.raises(TopicsError) as caught:
        await redriven(shard, there)
    assert caught.value.code is ErrorCode.TOPIC_FULL
    assert [record["data"] for record in shard.everything("dlq")] == [2]
    assert not shard.shard.mover


@pytest.mark.parametrize(("queue", "code"), [("none", ErrorCode.TOPIC_NOT_FOUND), ("log", ErrorCode.NOT_A_QUEUE)])
async def test_a_target_that_is_no_queue_is_an_error_and_nothing_is_moved(
    there: There, queue: str, code: ErrorCode
) -> None:
    there.shard.call("configure", "log")
    shard = dead(letter(1, queue))
    with pytest.raises(TopicsError) as caught:
        await redriven(shard, there, queue=queue)
    assert caught.value.code is code
    assert len(shard.everything("dlq")) == 1


@pytest.mark.parametrize(
    "asked", [{}, {"queue": 5}, {"queue": "dlq"}, {"queue": "q", "match": ["tag", "Glob", "a"]}, {"queue": " "}]
)
def test_what_makes_no_sense_is_400(asked: dict[str, Any]) -> None:
    with pytest.raises(TopicsError) as caught:
        dead().call("redrive", "dlq", asked)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_a_queue_outside_the_keys_prefixes_is_403() -> None:
    shard = dead(letter(1, "b:q"))
    with pytest.raises(TopicsError) as caught:
        shard.call("redrive", "dlq", {"queue": "b:q"}, prefixes=["a:"])
    assert caught.value.code is ErrorCode.FORBIDDEN


async def test_letters_in_a_queue_go_back_unless_somebody_holds_them(there: There) -> None:
    shard = dead(letter(1), letter(2), letter(3), type="queue")
    shard.call("claim", "dlq", {"node": "w", "max": 2})
    shard.call("nack", "dlq", {"node": "w", "seqs": [2], "delay_ms": 1000})
    assert (await redriven(shard, there))["seqs"] == [2, 3]
    assert shard.call("state", "dlq")["queue"] == {
        "ready": 0,
        "in_flight": 1,
        "delayed": 0,
        "dead_lettering": 0,
        "dead_lettered": 0,
    }
    assert shard.call("ack", "dlq", {"node": "w", "seqs": [1]})["acked"] == 1


async def test_an_order_that_is_not_written_leaves_letters_in_a_queue_as_they_were(there: There) -> None:
    shard = dead(letter(1), letter(2), letter(3), type="queue")
    shard.call("append", "dlq", {"records": [{**letter(4), "delay_ms": 5000}]})
    shard.call("claim", "dlq", {"node": "w", "max": 2})
    shard.call("nack", "dlq", {"node": "w", "seqs": [1]})
    shard.call("nack", "dlq", {"node": "w", "seqs": [2], "delay_ms": 1000})
    before = shard.call("peek_jobs", "dlq")
    refused_write(shard, "redrive", "dlq", {"queue": QUEUE})
    assert shard.call("peek_jobs", "dlq") == before
    claimed = shard.call("claim", "dlq", {"node": "v", "max": 9})["claimed"]
    assert [(each["$seq"], each["deliveries"]) for each in claimed] == [(1, 2), (3, 1)]
    shard.clock.advance(1000)
    assert [each["$seq"] for each in shard.call("claim", "dlq", {"node": "v", "max": 9})["claimed"]] == [2]
    assert (await redriven(shard, there))["seqs"] == [4]


async def test_a_letter_on_its_way_is_not_handed_out(there: There) -> None:
    shard = dead(letter(1), type="queue")
    there.fail = "before"
    with pytest.raises(TopicsError):
        await redriven(shard, there)
    assert shard.call("claim", "dlq", {"node": "w"})["count"] == 0
    (job,) = shard.call("peek_jobs", "dlq")["jobs"]
    assert (job["state"], job["dead_letter"]) == ("dead_lettering", QUEUE)


async def test_a_letter_that_is_deleted_on_its_way_is_not_waited_for(there: There) -> None:
    shard = dead(letter(1), letter(2))
    ident = shard.send("redrive", "dlq", {"queue": QUEUE})
    shard.shard.commits.sync_now()
    shard.call("delete_records", "dlq", {"before_seq": 2})
    for _ in range(3):
        await carry(shard, there)
    assert shard.replies[ident].body.count(b'"seqs":[2]') == 1  # type: ignore[union-attr]
    assert data(there) == [2]


def test_a_claim_that_waits_gets_a_letter_whose_redrive_is_not_written() -> None:
    shard = dead(letter(1), type="queue")
    shard.shard.commits.sync_now()
    shard.send("redrive", "dlq", {"queue": QUEUE})
    waiting = shard.send("claim", "dlq", {"node": "b", "wait_ms": 5000})
    assert shard.parked(waiting)
    assert isinstance(shard.disk, FaultDisk)
    shard.disk.fail["write"] = OSError(EIO, "the test says so")
    shard.shard.commits.flush()
    del shard.disk.fail["write"]
    shard.shard.deliver()
    assert got(shard, waiting) == [1]

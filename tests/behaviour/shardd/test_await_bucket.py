"""Claims about group commit while changes wait for the bucket, and not only for the device."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from proto.ipc.message import Parked, Reply
from proto.model.errors import ErrorCode, TopicsError
from tests.support.harness import Harness

EIO = OSError(5, "Input/output error")


@pytest.fixture
def shard() -> Harness:
    harness = Harness(bucket_timeout_ms=1000)
    harness.call("configure", "safe", {"durability": "fsync"})
    harness.call("configure", "fast")
    harness.shard.await_bucket(harness.shard.commits.synced_no)
    return harness


def write(shard: Harness, topic: str, data: Any) -> int:
    ident = shard.send("append", topic, {"records": [{"data": data}]})
    shard.shard.flush()
    return ident


def sync(shard: Harness) -> int:
    """Sync; returns the last frame that may be shipped."""
    shard.shard.commits.sync_now()
    return shard.shard.commits.synced_no


def said(shard: Harness, ident: int) -> Any:
    reply = shard.replies[ident]
    assert isinstance(reply, Reply)
    if reply.error is not None:
        raise reply.error
    return msgspec.json.decode(reply.body)


def test_an_fsync_write_is_neither_acked_nor_visible_before_the_bucket_has_it(shard: Harness) -> None:
    ident = write(shard, "safe", 1)
    upto = sync(shard)
    assert ident not in shard.replies
    assert shard.diff("safe")["head_seq"] == 0
    shard.shard.commits.shipped(upto)
    assert said(shard, ident)["first_seq"] == 1
    assert shard.diff("safe")["head_seq"] == 1


def test_a_part_commits_the_frames_that_it_has_and_no_others(shard: Harness) -> None:
    first = write(shard, "safe", 1)
    upto = sync(shard)
    second = write(shard, "safe", 2)
    sync(shard)
    shard.shard.commits.shipped(upto)
    assert first in shard.replies
    assert second not in shard.replies


def test_an_earlier_part_that_is_told_again_changes_nothing(shard: Harness) -> None:
    ident = write(shard, "safe", 1)
    upto = sync(shard)
    shard.shard.commits.shipped(upto - 1)
    shard.shard.commits.shipped(upto)
    shard.shard.commits.shipped(upto - 1)
    assert said(shard, ident)["first_seq"] == 1
    assert shard.shard.commits.safe_no == upto


def test_a_disk_write_is_acked_without_the_bucket(shard: Harness) -> None:
    write(shard, "fast", 0)
    shard.shard.commits.shipped(sync(shard))
    assert said(shard, write(shard, "fast", 1))["first_seq"] == 2


def test_a_disk_write_behind_a_waiting_change_of_its_topic_waits_too(shard: Harness) -> None:
    first = write(shard, "safe", 1)
    sync(shard)
    shard.send("configure", "safe", {"durability": "disk"})
    second = write(shard, "safe", 2)
    assert second not in shard.replies
    shard.shard.commits.shipped(sync(shard))
    assert (said(shard, first)["first_seq"], said(shard, second)["first_seq"]) == (1, 2)


@pytest.mark.parametrize("op", ["configure", "delete_topic"])
def test_creating_and_deleting_a_topic_wait_for_the_bucket(shard: Harness, op: str) -> None:
    name = "new" if op == "configure" else "fast"
    ident = shard.send(op, name)
    shard.shard.flush()
    upto = sync(shard)
    assert ident not in shard.replies
    shard.shard.commits.shipped(upto)
    said(shard, ident)


def test_a_topic_is_called_absent_only_when_the_bucket_has_its_deletion(shard: Harness) -> None:
    first, second = shard.send("delete_topic", "fast"), shard.send("delete_topic", "fast")
    shard.shard.flush()
    upto = sync(shard)
    assert not {first, second} & shard.replies.keys()
    shard.shard.commits.shipped(upto)
    assert [said(shard, ident)["deleted"] for ident in (first, second)] == [True, False]


def test_routers_copy_a_disk_record_only_when_the_bucket_has_it(shard: Harness) -> None:
    write(shard, "fast", 1)
    epoch = shard.shard.directory.visible["fast"].epoch
    pull = shard.send("pull", "fast", epoch=epoch, after=0, wait=True)
    upto = sync(shard)
    assert isinstance(shard.replies[pull], Parked)
    shard.shard.commits.shipped(upto)
    assert isinstance(shard.replies[pull], Reply)


def test_a_record_that_came_while_an_earlier_part_was_on_its_way_is_copied_after_the_next_part(shard: Harness) -> None:
    write(shard, "fast", 1)
    first = sync(shard)
    write(shard, "fast", 2)
    second = sync(shard)
    shard.shard.commits.shipped(first)
    epoch = shard.shard.directory.visible["fast"].epoch
    pull = shard.send("pull", "fast", epoch=epoch, after=1, wait=True)
    assert isinstance(shard.replies[pull], Parked)
    shard.shard.commits.shipped(second)
    assert isinstance(shard.replies[pull], Reply)


def test_a_failed_sync_gives_up_only_what_was_not_synced(shard: Harness) -> None:
    synced = write(shard, "safe", 1)
    sync(shard)
    kept, given_up = write(shard, "fast", 2), write(shard, "safe", 3)
    shard.disk.fail["sync"] = EIO  # type: ignore[attr-defined]
    upto = sync(shard)
    said(shard, kept)
    with pytest.raises(TopicsError):
        said(shard, given_up)
    assert synced not in shard.replies
    shard.shard.commits.shipped(upto)
    assert said(shard, synced)["first_seq"] == 1
    assert said(shard, kept)["first_seq"] == 1
    assert [r["data"] for r in shard.everything("safe")] == [1]


def test_frames_that_a_rescue_numbered_again_are_safe_together(shard: Harness) -> None:
    write(shard, "fast", 0)
    before = sync(shard)
    write(shard, "fast", 1)
    write(shard, "fast", 2)
    shard.disk.fail["sync"] = EIO  # type: ignore[attr-defined]
    last = sync(shard)
    for upto in range(before, last):
        shard.shard.commits.shipped(upto)
        assert shard.shard.commits.safe_no == before
    shard.shard.commits.shipped(last)
    assert shard.shard.commits.safe_no == last


def test_a_checkpoint_loses_no_change_that_waits_for_the_bucket(shard: Harness) -> None:
    write(shard, "safe", 1)
    sync(shard)
    shard.shard.checkpoint_now()
    shard.shard.checkpoint_now()
    after = shard.restarted(shard.disk.after_crash("process"))  # type: ignore[attr-defined]
    assert [r["data"] for r in after.everything("safe")] == [1]


# The bucket is away


def late(shard: Harness, ident: int) -> dict[str, Any]:
    with pytest.raises(TopicsError) as caught:
        said(shard, ident)
    assert caught.value.code is ErrorCode.NOT_READY
    detail = caught.value.detail
    assert detail is not None
    assert detail["reason"] == "bucket_away"
    return detail


def test_a_change_that_waits_too_long_is_answered_once_and_counts_when_the_bucket_is_back(shard: Harness) -> None:
    ident = write(shard, "safe", 1)
    upto = sync(shard)
    shard.clock.advance(999)
    shard.shard.sample(0)
    assert ident not in shard.replies
    shard.clock.advance(1)
    shard.shard.sample(0)
    assert late(shard, ident)["outcome"] == "unknown"
    shard.shard.commits.shipped(upto)
    assert [r["data"] for r in shard.everything("safe")] == [1]


def test_while_the_bucket_is_late_new_changes_are_refused_and_reads_and_disk_writes_go_on(shard: Harness) -> None:
    write(shard, "fast", 0)
    shard.shard.commits.shipped(sync(shard))
    write(shard, "safe", 1)
    upto = sync(shard)
    shard.clock.advance(1000)
    refused = [write(shard, "safe", 2), write(shard, "new", 1), shard.send("delete_topic", "fast")]
    assert [late(shard, ident)["outcome"] for ident in refused] == ["not_done"] * 3
    assert said(shard, write(shard, "fast", 1))["first_seq"] == 2
    assert shard.diff("fast")["head_seq"] == 2
    shard.shard.commits.shipped(upto)
    ident = write(shard, "safe", 2)
    shard.shard.commits.shipped(sync(shard))
    assert said(shard, ident)["first_seq"] == 2


def test_a_read_that_waits_for_records_is_not_answered_by_the_deadline(shard: Harness) -> None:
    ident = shard.send("diff", "safe", {"from_seq": 0, "wait_ms": 30_000})
    shard.clock.advance(1500)
    shard.shard.sample(0)
    assert isinstance(shard.replies[ident], Parked)


# Claims while the bucket is away


@pytest.fixture
def queue() -> Harness:
    harness = Harness(bucket_timeout_ms=1000)
    harness.call("configure", "q", {"type": "queue", "durability": "fsync", "leases_durable": True})
    harness.append("q", 1)
    harness.shard.await_bucket(harness.shard.commits.synced_no)
    return harness


def claim(shard: Harness, **fields: Any) -> int:
    ident = shard.send("claim", "q", {"node": "w", **fields})
    shard.shard.flush()
    return ident


def deliver(shard: Harness, after_ms: int) -> None:
    shard.clock.advance(after_ms)
    shard.shard.deliver()
    shard.shard.sample(0)


def test_a_claim_that_waited_for_jobs_is_answered_in_time(queue: Harness) -> None:
    held = claim(queue)
    queue.shard.commits.shipped(sync(queue))
    waiting = claim(queue, wait_ms=30_000)
    job = said(queue, held)["claimed"][0]
    queue.send("nack", "q", {"node": "w", "seqs": [1], "lease_ids": [job["lease_id"]]})
    queue.shard.flush()
    queue.shard.commits.shipped(sync(queue))
    deliver(queue, 0)
    upto = sync(queue)
    deliver(queue, 999)
    assert isinstance(queue.replies[waiting], Parked)
    deliver(queue, 1)
    assert late(queue, waiting)["outcome"] == "unknown"
    queue.shard.commits.shipped(upto)
    assert queue.call("peek_jobs", "q")["in_flight"] == 1


def test_a_claim_whose_wait_ends_before_its_ack_is_safe_is_answered_in_time(queue: Harness) -> None:
    held = claim(queue)
    queue.shard.commits.shipped(sync(queue))
    lease = said(queue, held)["claimed"][0]["lease_id"]
    waiting = claim(queue, wait_ms=5000, ack={"seqs": [1], "lease_ids": [lease]})
    upto = sync(queue)
    deliver(queue, 5000)
    assert isinstance(queue.replies[waiting], Parked)
    deliver(queue, 1000)
    assert late(queue, waiting)["outcome"] == "unknown"
    queue.shard.commits.shipped(upto)
    assert queue.everything("q") == []


@pytest.mark.parametrize("jitter", [0, 5])
def test_a_claim_whose_leases_would_wait_is_refused_while_the_bucket_is_late(queue: Harness, jitter: int) -> None:
    queue.send("configure", "q", {"claim_jitter_ms": jitter})
    queue.shard.flush()
    queue.shard.commits.shipped(sync(queue))
    write(queue, "q", 2)
    upto = sync(queue)
    queue.clock.advance(1000)
    assert late(queue, claim(queue))["outcome"] == "not_done"
    queue.shard.commits.shipped(upto)
    again = claim(queue)
    deliver(queue, 10)
    queue.shard.commits.shipped(sync(queue))
    assert said(queue, again)["claimed"][0]["deliveries"] == 1


def test_an_ack_is_logged_while_the_bucket_is_late_so_that_its_job_is_not_delivered_again(shard: Harness) -> None:
    shard.send("configure", "jobs", {"type": "queue", "durability": "fsync"})
    write(shard, "jobs", 1)
    shard.shard.commits.shipped(sync(shard))
    held = shard.send("claim", "jobs", {"node": "w"})
    shard.shard.flush()
    shard.shard.commits.shipped(sync(shard))
    lease = said(shard, held)["claimed"][0]["lease_id"]
    write(shard, "jobs", 2)
    sync(shard)
    shard.clock.advance(1000)
    ack = shard.send("ack", "jobs", {"node": "w", "seqs": [1], "lease_ids": [lease]})
    shard.shard.flush()
    deliver(shard, 40_000)
    assert late(shard, ack)["outcome"] == "unknown"
    assert shard.call("claim", "jobs", {"node": "v"})["claimed"] == [], "though the lease has ended"
    shard.shard.commits.shipped(sync(shard))
    assert [record["data"] for record in shard.everything("jobs")] == [2]

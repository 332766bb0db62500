"""Deletions: which records they remove, and that readers get no tombstone."""

from __future__ import annotations

from typing import Any

import pytest

from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import RECORD_OVERHEAD
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness
from tests.support.queues import pushed, queue, take


@pytest.fixture
def shard() -> Harness:
    return Harness()


def write(shard: Harness, *tags: str | None, topic: str = "a", **fields: Any) -> None:
    """Makes one write with a record per tag; None for a record without a tag."""
    records = [{"data": 0} if tag is None else {"data": 0, "tag": tag} for tag in tags]
    shard.call("append", topic, {"records": records, **fields})


def delete(shard: Harness, topic: str = "a", **body: Any) -> Any:
    return shard.call("delete_records", topic, body)


def seqs(shard: Harness, topic: str = "a") -> list[int]:
    return [r["$seq"] for r in shard.everything(topic)]


def restarted(shard: Harness, how: str) -> Harness:
    if how == "clean":
        shard.shard.close()
    elif how == "checkpoint":
        shard.shard.commits.sync_now()
        shard.shard.checkpoint_now()
    elif how == "twice":
        for _ in range(2):
            shard.shard.commits.sync_now()
            shard.shard.checkpoint_now()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    return shard.restarted(disk.after_crash("process"))


@pytest.mark.parametrize("body", [{"before_seq": 3}, {"match": "x"}])
@pytest.mark.parametrize("indexing", [False, True], ids=["at once", "after its index"])
def test_a_deletion_that_would_wait_is_not_done_while_the_bucket_is_late(
    monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], indexing: bool
) -> None:
    monkeypatch.setattr("shardd.operations.tag_indexing.AT_ONCE", 0 if indexing else 10)
    shard = Harness(bucket_timeout_ms=1000)
    shard.call("configure", "a", {"durability": "fsync"})
    shard.call("configure", "disk")
    write(shard, "x", "y", "z")
    write(shard, "x", "y", "z", topic="disk")
    commits = shard.shard.commits
    shard.shard.await_bucket(commits.synced_no)
    shard.send("append", "a", {"records": [{"data": 1}]})
    shard.shard.flush()
    commits.sync_now()
    shard.clock.advance(1000)
    with pytest.raises(TopicsError) as refused:
        delete(shard, **body)
    assert refused.value.detail == {"reason": "bucket_away", "outcome": "not_done"}
    assert delete(shard, "disk", **body)["deleted"] > 0, "it does not wait for the bucket"
    commits.shipped(commits.synced_no)
    assert seqs(shard) == [1, 2, 3, 4]


HOW = pytest.mark.parametrize("how", ["clean", "crash", "checkpoint", "twice"])

TAGS = ["msg", "msg-1", "msg-2", "message", "chat-42:a", "chat-42:b", "chat-421:x", "", None, "Ünï:1", "Ünï:2", "日本"]


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ("msg", ["msg"]),
        (["tag", "Eq", "msg"], ["msg"]),
        (["tag", "Eq", "ms"], []),
        (["tag", "Eq", "msg*"], []),
        ("*", []),
        ("", [""]),
        (["tag", "Glob", "msg*"], ["msg", "msg-1", "msg-2"]),
        (["tag", "Glob", "chat-42:*"], ["chat-42:a", "chat-42:b"]),
        (["tag", "Glob", "nobody*"], []),
        (["tag", "Glob", "*"], [tag for tag in TAGS if tag is not None]),
        ("Ünï:1", ["Ünï:1"]),
        (["tag", "Glob", "Ünï:*"], ["Ünï:1", "Ünï:2"]),
        (["tag", "Glob", "Ü*"], ["Ünï:1", "Ünï:2"]),
        (["tag", "Glob", "日*"], ["日本"]),
    ],
)
@pytest.mark.parametrize("batched", [True, False])
def test_a_match_takes_exactly_what_it_names(shard: Harness, match: object, expected: list[str], batched: bool) -> None:
    """Eq is exact, Glob a literal prefix and `*`, a bare string is Eq; untagged records are never matched."""
    for group in [TAGS] if batched else [[tag] for tag in TAGS]:
        write(shard, *group)
    answer = delete(shard, match=match)
    left = [tag for tag in TAGS if tag not in expected or tag is None]
    assert [r.get("$tag") for r in shard.everything("a")] == left
    assert (answer["deleted"], answer["count"]) == (len(expected), len(left))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"before_seq": None},
        {"before_seq": None, "match": None},
        {"before_seq": -1},
        {"before_seq": 1.5},
        {"before_seq": "5"},
        {"match": 5},
        {"match": []},
        {"match": ["tag", "Eq"]},
        {"match": ["tag", "Eq", "x", "y"]},
        {"match": ["node", "Eq", "x"]},
        {"match": ["tag", "Eq", 5]},
        {"match": ["tag", "Regex", "x"]},
        {"match": ["tag", "eq", "x"]},
        {"match": ["tag", "Glob", "x"]},
        {"match": ["tag", "Glob", ""]},
        {"match": ["tag", "Glob", "*x"]},
        {"match": ["tag", "Glob", "x*y"]},
        {"match": ["tag", "Glob", "x*y*"]},
        {"match": ["tag", "Glob", "**"]},
        [],
        "x",
    ],
)
def test_what_names_nothing_or_names_it_wrongly_is_refused(shard: Harness, body: object) -> None:
    """Neither field, a bad tuple, another operator, a Glob that is not a prefix and one `*`."""
    write(shard, "x", "xy", None)
    with pytest.raises(TopicsError) as caught:
        shard.call("delete_records", "a", body)
    assert caught.value.code == ErrorCode.INVALID_REQUEST
    assert seqs(shard) == [1, 2, 3]


def test_an_unknown_topic_is_404(shard: Harness) -> None:
    """A deletion never creates a topic."""
    with pytest.raises(TopicsError) as caught:
        delete(shard, "nowhere", before_seq=5)
    assert caught.value.code == ErrorCode.TOPIC_NOT_FOUND
    assert shard.call("list", page_size=10) == []


def test_the_answer_is_the_state_afterwards(shard: Harness) -> None:
    """Deleted, earliest_seq, head_seq, count and bytes, and the state agrees at once."""
    write(shard, *["t"] * 10)
    answer = delete(shard, before_seq=7)
    size = 4 * (1 + 1 + RECORD_OVERHEAD)
    assert answer == {"topic": "a", "deleted": 6, "earliest_seq": 7, "head_seq": 10, "count": 4, "bytes": size}
    state = shard.call("state", "a")
    assert {name: state[name] for name in ("earliest_seq", "head_seq", "count", "bytes")} == {
        name: answer[name] for name in ("earliest_seq", "head_seq", "count", "bytes")
    }


@pytest.mark.parametrize("before_seq", range(13))
@pytest.mark.parametrize("batch", [1, 3, 10])
def test_before_seq_takes_every_record_below_it(shard: Harness, before_seq: int, batch: int) -> None:
    """Records with `$seq < before_seq`, wherever that falls in a write; `before_seq` may be past the head."""
    for start in range(0, 10, batch):
        write(shard, *[None] * min(batch, 10 - start))
    answer = delete(shard, before_seq=before_seq)
    left = list(range(max(before_seq, 1), 11))
    assert seqs(shard) == left
    assert answer["deleted"] == 10 - len(left)
    assert answer["earliest_seq"] == (left[0] if left else 11)


@pytest.mark.parametrize("before_seq", [2**53, 2**64 - 1])
def test_before_seq_beyond_the_head_takes_what_is_there_and_no_future_record(shard: Harness, before_seq: int) -> None:
    """Point-in-time."""
    write(shard, None, None)
    assert delete(shard, before_seq=before_seq)["deleted"] == 2
    write(shard, None)
    assert seqs(shard) == [3]
    assert seqs(shard.restarted()) == [3]


def test_both_fields_are_anded(shard: Harness) -> None:
    """The earlier versions are deleted, neither the new one nor other records."""
    write(shard, "msg-123", "other", "msg-123")
    write(shard, "msg-123", "msg-124")
    answer = delete(shard, match=["tag", "Eq", "msg-123"], before_seq=4)
    assert answer["deleted"] == 2
    assert seqs(shard) == [2, 4, 5]


@HOW
def test_future_records_with_a_matching_tag_stay(shard: Harness, how: str) -> None:
    """A deletion does not apply to later records."""
    write(shard, "t", "u")
    assert delete(shard, match="t")["deleted"] == 1
    write(shard, "t")
    again = restarted(shard, how)
    assert seqs(again) == [2, 3]
    assert delete(again, match="t")["deleted"] == 1
    assert delete(again, match="t")["deleted"] == 0
    write(again, "t")
    assert seqs(again) == [2, 4]


@HOW
def test_deletions_are_permanent(shard: Harness, how: str) -> None:
    """No stop brings a record back."""
    for _ in range(5):
        write(shard, "a", "b", None)
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()
    delete(shard, match="b")
    delete(shard, before_seq=5)
    write(shard, "b")
    expected = [6, 7, 9, 10, 12, 13, 15, 16]
    assert seqs(shard) == expected
    again = restarted(shard, how)
    assert seqs(again) == expected
    assert seqs(restarted(again, how)) == expected


@pytest.mark.parametrize("checkpoints", [0, 1, 2, 3])
def test_a_batch_that_died_whole_in_a_segment_that_lives_stays_dead(shard: Harness, checkpoints: int) -> None:
    """A sealed record's deletion survives the trimming of its frame, also when nothing of its batch is left."""
    write(shard, "kept")
    shard.shard.checkpoint_now()
    write(shard, "gone", "gone")
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()
    write(shard, "kept")
    assert delete(shard, match="gone")["deleted"] == 2
    for _ in range(checkpoints):
        shard.shard.commits.sync_now()
        shard.shard.checkpoint_now()
    again = restarted(shard, "crash")
    assert seqs(again) == [1, 4]
    assert seqs(restarted(again, "twice")) == [1, 4]


def test_effective_for_every_reader_at_once(shard: Harness) -> None:
    """Gone from reads in the middle of the log, and the cursor passes them."""
    write(shard, "t", "u", "t", "u", "t")
    first = shard.diff("a", limit=1)
    delete(shard, match="t")
    answer = shard.diff("a", first["next_from_seq"])
    assert [r["$seq"] for r in answer["records"]] == [2, 4]
    assert (answer["next_from_seq"], answer["caught_up"], answer["tombstone"]) == (5, True, None)


def test_a_deletion_of_everything_leaves_the_head(shard: Harness) -> None:
    """`earliest_seq` is `head_seq + 1`; seqs go on."""
    write(shard, *["t"] * 5)
    answer = delete(shard, match=["tag", "Glob", "*"])
    assert (answer["earliest_seq"], answer["head_seq"], answer["count"], answer["bytes"]) == (6, 5, 0, 0)
    answer = shard.diff("a")
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 5, True)
    assert shard.restarted().append("a", 1)["first_seq"] == 6


def test_the_earliest_passes_records_that_were_deleted_before(shard: Harness) -> None:
    """`earliest_seq` is the first live record, however the earlier ones were removed."""
    write(shard, "a", "b", "b", "c", "b", "d")
    assert delete(shard, match="b")["earliest_seq"] == 1
    assert delete(shard, match="a")["earliest_seq"] == 4
    assert delete(shard, before_seq=5)["earliest_seq"] == 6


def test_expired_records_are_not_deleted_but_lost(shard: Harness) -> None:
    """A record that expires before the deletion is reported lost; one deleted first is not."""
    shard.call("configure", "a", {"ttl_ms": 100})
    write(shard, "t", "t")
    shard.clock.advance(60)
    write(shard, "t", "t")
    shard.clock.advance(41)
    assert delete(shard, match="t")["deleted"] == 2
    assert shard.diff("a")["tombstone"]["gap_to"] == 4
    assert shard.diff("a", 2)["tombstone"] is None


def test_records_on_their_way_are_not_there_yet(shard: Harness) -> None:
    """The bound is the head at the call, also when the write and the deletion share a sync."""
    shard.call("configure", "a", {"durability": "fsync"})
    write(shard, "t")
    shard.send("append", "a", {"records": [{"data": 0, "tag": "t"}]})
    deletion = shard.send("delete_records", "a", {"match": "t"})
    shard.shard.commits.sync_now()
    assert b'"deleted":1' in shard.replies[deletion].body  # type: ignore[union-attr]
    assert seqs(shard) == [2]
    assert seqs(shard.restarted()) == [2]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
@HOW
def test_a_deletion_is_as_durable_as_its_topic(shard: Harness, durability: str, how: str) -> None:
    """A delete frame is logged."""
    write(shard, "t", "u", config={"durability": durability})
    delete(shard, match="t")
    assert seqs(restarted(shard, how)) == [2]


def test_an_fsync_deletion_waits_for_its_sync(shard: Harness) -> None:
    """The deletion is acknowledged when it is durable, and not visible before."""
    write(shard, "t", config={"durability": "fsync"})
    ident = shard.send("delete_records", "a", {"before_seq": 2})
    shard.shard.flush()
    assert ident not in shard.replies
    assert seqs(shard) == [1]
    shard.shard.commits.sync_now()
    assert seqs(shard) == []


def test_a_deletion_that_could_not_be_logged_deletes_nothing(shard: Harness) -> None:
    """Permanent or not at all."""
    write(shard, "t")
    shard.disk.fail["write"] = OSError(5, "injected")  # type: ignore[attr-defined]
    with pytest.raises(TopicsError) as caught:
        delete(shard, match="t")
    assert caught.value.code == ErrorCode.NOT_READY
    assert seqs(shard) == [1]


def test_a_tag_that_was_deleted_and_forgotten_can_be_deleted_again(shard: Harness) -> None:
    """A checkpoint drops batches without live records; the tag index may still refer to them."""
    for tag in ("a", "b", "a", "b", "c"):
        write(shard, *[tag] * 600)
    assert delete(shard, match="b")["deleted"] == 1200
    for _ in range(2):
        shard.shard.commits.sync_now()
        shard.shard.checkpoint_now()
    assert delete(shard, match="b")["deleted"] == 0
    write(shard, "b")
    assert delete(shard, match=["tag", "Glob", "*"], before_seq=1500)["deleted"] == 600 + 299
    assert delete(shard, match="b")["deleted"] == 1


def test_many_deletions_over_merged_writes(shard: Harness) -> None:
    """The same records are deleted however small the writes were, with checkpoints in between."""
    tags = [f"t{n % 7}" if n % 3 else None for n in range(500)]
    for tag in tags:
        write(shard, tag)
    live = dict(enumerate(tags, 1))
    for round_, tag in enumerate(["t1", "t5", "t1", "t0"]):
        gone = [seq for seq, t in live.items() if t == tag and seq < 100 * (round_ + 2)]
        assert delete(shard, match=tag, before_seq=100 * (round_ + 2))["deleted"] == len(gone)
        for seq in gone:
            del live[seq]
        assert seqs(shard) == list(live)
        if round_ % 2:
            shard.shard.commits.sync_now()
            shard.shard.checkpoint_now()
    assert seqs(shard.restarted()) == list(live)


def test_what_expires_while_a_deletion_waits_is_one_or_the_other_for_good(shard: Harness) -> None:
    """A tombstone that a reader has seen stays."""
    shard.call("configure", "a", {"durability": "fsync", "ttl_ms": 1000})
    write(shard, "t", "u")
    shard.send("delete_records", "a", {"match": ["tag", "Eq", "t"]})
    shard.shard.flush()
    shard.clock.advance(1001)
    before = shard.diff("a")["tombstone"]
    shard.shard.commits.sync_now()
    during = shard.diff("a")["tombstone"]
    after = restarted(shard, "crash").diff("a")["tombstone"]
    assert before is None
    assert during == after
    assert during["gap_to"] == 2


@pytest.mark.parametrize("body", [{"before_seq": 2}, {"match": "t"}])
@pytest.mark.parametrize("indexing", [False, True], ids=["at once", "after its index"])
def test_a_stream_that_was_full_gets_another_job_when_its_job_is_deleted(
    shard: Harness, body: dict[str, Any], indexing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardd.operations.tag_indexing.AT_ONCE", 0 if indexing else 10)
    queue(shard)
    write(shard, "t", "u", topic="q")
    assert pushed(shard, take(shard, "s", 1)) == [1]
    waiting = take(shard, "s", 1)
    looked: list[float | None] = []
    shard.shard.scheduler.more = lambda: looked.append(shard.shard.next_due)
    shard.send("delete_records", "q", body)
    shard.shard.flush()
    if shard.parked(waiting):  # the index was ready after the claims of this group had been served
        assert looked[-1] == shard.clock.monotonic()
        shard.shard.deliver()
    assert pushed(shard, waiting) == [2]

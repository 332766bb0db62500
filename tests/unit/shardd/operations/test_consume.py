"""Consume: reads of one record at a time through a named cursor; and Rog logs in a shard."""

from __future__ import annotations

from typing import Any

import pytest

from proto.ipc.message import Reply
from proto.model.errors import ErrorCode, TopicsError
from shardd.offline.reshard import Reshard
from tests.support.asked import said
from tests.support.fault_disk import FaultDisk
from tests.support.harness import SHARD, Harness


def fsynced(**limits: Any) -> Harness:
    shard = Harness(**limits)
    shard.call("configure", "t", {"durability": "fsync"})
    return shard


def take(shard: Harness, cursor: str = "c") -> tuple[int, bytes] | None:
    reply = shard.reply("take", "t", cursor=cursor)
    if reply.error is not None:
        raise reply.error
    return None if reply.extra is None else (reply.extra.seq, reply.body)


def position(shard: Harness, cursor: str = "c") -> int:
    return int(shard.call("cursor_get", "t", cursor=cursor)["seq"])


def test_takes_walk_the_topic_and_move_the_cursor() -> None:
    shard = fsynced()
    shard.append("t", "a", {"b": 1})
    assert [take(shard), take(shard), take(shard)] == [(1, b'"a"'), (2, b'{"b":1}'), None]
    assert position(shard) == 2
    shard.append("t", "c")
    assert take(shard) == (3, b'"c"')


def test_a_take_leaves_the_cursor_while_no_answer_may_be_sent() -> None:
    shard = fsynced()
    shard.append("t", 1)
    answers = False
    shard.shard.staging.serving = lambda: answers
    with pytest.raises(TopicsError) as refused:
        take(shard)
    assert refused.value.detail == {"reason": "term_not_renewed", "outcome": "not_done"}
    answers = True
    assert take(shard) == (1, b"1")


def test_takes_that_wait_for_one_sync_get_different_records() -> None:
    shard = fsynced()
    shard.append("t", *range(20))
    asked = [shard.send("take", "t", cursor="c") for _ in range(25)]
    shard.shard.flush()
    assert not any(ident in shard.replies for ident in asked[:20]), "answered before the move was on the device"
    shard.shard.commits.sync_now()
    replies = [shard.replies[ident] for ident in asked]
    assert [reply.extra and reply.extra.seq for reply in replies if isinstance(reply, Reply)] == [
        *range(1, 21),
        *[None] * 5,
    ]


def test_a_take_that_is_answered_survives_a_crash_and_one_that_is_not_may_be_repeated() -> None:
    shard = fsynced()
    shard.append("t", 1, 2, 3)
    assert take(shard) == (1, b"1")
    shard.send("take", "t", cursor="c")
    shard.shard.flush()
    assert isinstance(shard.disk, FaultDisk)
    again = shard.restarted(shard.disk.after_crash("drop"))
    assert take(again) == (2, b"2")


def test_a_failed_sync_gives_back_what_was_about_to_be_handed_out() -> None:
    shard = fsynced()
    shard.append("t", 1, 2, 3)
    assert take(shard) == (1, b"1")
    assert isinstance(shard.disk, FaultDisk)
    asked = [shard.send("take", "t", cursor="c") for _ in range(2)]
    shard.shard.flush()
    shard.disk.faults[len(shard.disk.calls)] = OSError(5, "I/O error")
    shard.shard.commits.sync_now()
    for ident in asked:
        reply = shard.replies[ident]
        assert isinstance(reply, Reply)
        assert reply.error is not None
        assert reply.error.code is ErrorCode.NOT_READY
    assert [take(shard), take(shard), take(shard)] == [(2, b"2"), (3, b"3"), None]


def test_what_is_gone_is_passed_over() -> None:
    shard = fsynced()
    shard.call("append", "t", {"records": [{"data": n, "tag": "even" if n % 2 == 0 else "odd"} for n in range(1, 11)]})
    assert take(shard) == (1, b"1")
    shard.call("delete_records", "t", {"before_seq": 4})
    shard.call("delete_records", "t", {"match": ["tag", "Eq", "even"]})
    taken = [take(shard) for _ in range(5)]
    assert taken == [(5, b"5"), (7, b"7"), (9, b"9"), None, None]


def with_a_gap() -> Harness:
    """Records 1, 2, 3 and 6."""
    shard = fsynced()
    shard.call("append", "t", {"records": [{"data": n, "tag": "first" if n == 1 else "more"} for n in range(1, 4)]})
    shard.shard.directory.find("t").lose_tail(5)
    shard.append("t", 6)
    return shard


def test_takes_pass_over_a_gap() -> None:
    shard = with_a_gap()
    taken = [take(shard) for _ in range(5)]
    assert taken == [(1, b"1"), (2, b"2"), (3, b"3"), (6, b"6"), None]


def test_deleted_records_before_a_gap_are_passed_over_with_it() -> None:
    shard = with_a_gap()
    assert take(shard) == (1, b"1")
    shard.call("delete_records", "t", {"match": ["tag", "Eq", "more"]})
    assert said(shard.reply("peek", "t", cursor="c").extra) == {"seq": 6}
    shard.reply("step", "t", cursor="c")
    assert position(shard) == 6
    assert shard.reply("peek", "t", cursor="c").extra is None
    shard.call("cursor_put", "t", {"seq": 4, "force": True}, cursor="c")
    assert take(shard) == (6, b"6")


def test_a_gap_at_the_end_has_nothing_to_take() -> None:
    shard = fsynced()
    shard.append("t", 1)
    shard.shard.directory.find("t").lose_tail(3)
    assert [take(shard), take(shard)] == [(1, b"1"), None]


def test_cursors_are_independent_and_http_moves_count() -> None:
    shard = fsynced()
    shard.append("t", 1, 2, 3)
    assert take(shard, "a") == (1, b"1")
    assert take(shard, "b") == (1, b"1")
    shard.call("cursor_put", "t", {"seq": 2}, cursor="a")
    assert take(shard, "a") == (3, b"3")
    shard.call("cursor_put", "t", {"seq": 0, "force": True}, cursor="a")
    assert take(shard, "a") == (1, b"1")
    shard.call("cursor_delete", "t", cursor="a")
    assert take(shard, "a") == (1, b"1")


def test_a_forced_move_between_takes_in_one_group_is_obeyed_in_order() -> None:
    shard = fsynced()
    shard.append("t", 1, 2, 3)
    asked = [shard.send("take", "t", cursor="c"), shard.send("take", "t", cursor="c")]
    shard.send("cursor_put", "t", {"seq": 0, "force": True}, cursor="c")
    asked.append(shard.send("take", "t", cursor="c"))
    shard.shard.commits.sync_now()
    seqs = [reply.extra.seq for i in asked if isinstance(reply := shard.replies[i], Reply) and reply.extra]
    assert seqs == [1, 2, 1]
    assert position(shard) == 1
    assert position(shard.restarted()) == 1


def test_peek_does_not_move_and_step_moves_by_one() -> None:
    shard = fsynced()
    shard.call("append", "t", {"records": [{"data": 1, "meta": {"k": 1}}, {"data": 2}]})
    for _ in range(2):
        reply = shard.reply("peek", "t", cursor="g")
        assert (reply.body, said(reply.extra)) == (b"1", {"seq": 1, "meta": b'{"k":1}'})
    shard.reply("step", "t", cursor="g")
    assert said(shard.reply("peek", "t", cursor="g").extra) == {"seq": 2}
    shard.reply("step", "t", cursor="g")
    assert shard.reply("peek", "t", cursor="g").extra is None
    shard.reply("step", "t", cursor="g")
    shard.append("t", 3)
    assert shard.reply("peek", "t", cursor="g").body == b"3", "a step at the head skipped a later message"


def test_a_step_onto_what_was_had_skips_nothing_that_was_not() -> None:
    shard = fsynced()
    shard.append("t", 1, 2, 3)
    assert said(shard.reply("peek", "t", cursor="g").extra) == {"seq": 1}
    shard.call("delete_records", "t", {"before_seq": 2})
    shard.reply("step", "t", cursor="g", seq=1)
    assert said(shard.reply("peek", "t", cursor="g").extra) == {"seq": 2}
    shard.reply("step", "t", cursor="g", seq=1)
    assert said(shard.reply("peek", "t", cursor="g").extra) == {"seq": 2}
    shard.reply("step", "t", cursor="g", seq=99)
    assert said(shard.reply("peek", "t", cursor="g").extra) == {"seq": 2}


def test_takes_go_on_where_they_were_after_a_checkpoint_and_many_small_writes() -> None:
    shard = fsynced(segment_max_events=50)
    for n in range(130):
        shard.append("t", n)
    assert [take(shard) for _ in range(40)] == [(n + 1, b"%d" % n) for n in range(40)]
    shard.shard.checkpoint_now()
    again = shard.restarted(cache_bytes=0)
    assert [take(again) for _ in range(91)] == [*[(n + 1, b"%d" % n) for n in range(40, 130)], None]


def test_a_topic_that_is_not_there_is_404() -> None:
    shard = Harness()
    for op in ("take", "peek", "step"):
        with pytest.raises(TopicsError) as caught:
            shard.call(op, "nowhere", cursor="c")
        assert caught.value.code is ErrorCode.TOPIC_NOT_FOUND


@pytest.mark.parametrize("op", ["take", "step", "cursor_put", "cursor_delete", "delete_records"])
def test_nothing_follows_a_deletion_that_is_on_its_way(op: str) -> None:
    """Otherwise the change would follow its topic's deletion in the log."""
    shard = fsynced()
    shard.append("t", 1)
    shard.send("delete_topic", "t")
    shard.shard.flush()
    body = {"cursor_put": {"seq": 1}, "delete_records": {"before_seq": 2}}.get(op, b"")
    with pytest.raises(TopicsError) as caught:
        shard.call(op, "t", body, **({} if op == "delete_records" else {"cursor": "c"}))
    assert caught.value.code is ErrorCode.TOPIC_NOT_FOUND
    shard.shard.commits.sync_now()
    with pytest.raises(TopicsError):
        shard.restarted().call("state", "t")


def test_if_absent_creates_and_leaves_alone_what_is_there() -> None:
    shard = Harness()
    assert shard.reply("configure", "t", {"durability": "fsync"}, if_absent=True).created
    assert not shard.reply("configure", "t", {"durability": "memory"}, if_absent=True).created
    assert shard.call("state", "t")["config"]["durability"] == "fsync"


# Rog logs


def test_a_log_is_created_once_and_outlives_crash_and_checkpoint() -> None:
    shard = Harness()
    first, second = (shard.send("log_create", "events", partitions=n) for n in (3, 4))
    assert shard.call("log_find", "events") == {"partitions": 0}, "seen before it was on the device"
    shard.shard.commits.sync_now()
    replies = [shard.replies[first], shard.replies[second]]
    assert [isinstance(reply, Reply) and reply.created for reply in replies] == [True, False]
    assert isinstance(shard.disk, FaultDisk)
    again = shard.restarted(shard.disk.after_crash("drop"))
    assert again.call("log_find", "events") == {"partitions": 3}
    again.shard.checkpoint_now()
    again.append("t", 1)
    again.shard.checkpoint_now()
    assert again.restarted().call("log_find", "events") == {"partitions": 3}


def test_logs_move_with_a_reshard() -> None:
    disk = FaultDisk()
    shard = Harness(disk)
    names = [f"log-{n}" for n in range(20)]
    for n, name in enumerate(names, 1):
        shard.reply("log_create", name, partitions=n)
    shard.shard.close()
    data = SHARD.parent
    file = disk.create(data / "manifest.json")
    file.write([b'{"format":1,"shards":1,"created_ms":0}'])
    file.sync()
    file.close()
    disk.sync_dir(data)
    Reshard(disk, data, shard.clock, shard.limits).run(3)
    shards = [Harness(disk, shard.clock, data / f"shard-{i:02d}") for i in range(3)]
    found = [sum(s.call("log_find", name)["partitions"] for s in shards) for name in names]
    assert found == list(range(1, 21))


def test_a_deletion_by_tag_that_waited_for_its_index_does_not_follow_the_deletion_of_its_topic() -> None:
    shard = fsynced(max_batch_records=20_000)
    shard.call("append", "t", {"records": [{"data": 0, "tag": "a"}] * 20_000})
    by_tag = shard.send("delete_records", "t", {"match": "a"})
    assert by_tag not in shard.replies, "the index was made on the spot, so this shows nothing"
    shard.send("delete_topic", "t")
    shard.shard.flush()
    for _ in range(100):
        shard.shard.deliver()
    shard.shard.commits.sync_now()
    reply: Any = shard.replies[by_tag]
    assert reply.error is not None
    assert reply.error.code is ErrorCode.TOPIC_NOT_FOUND
    with pytest.raises(TopicsError):
        shard.restarted().call("state", "t")

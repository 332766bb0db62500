"""Allowance: what grows stays under the limit that orders set. Without room it waits, and nothing is lost; with some it
goes on."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from proto.ipc.message import Reply
from proto.ipc.operations import Room, RoomOrder, RoomReport, RoomWant
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from shardd.changes.allowance import FIRST_PATIENCE_S, NEVER, PATIENCE_S, WANTED_S, Allowance
from shardd.changes.treasurer import NO_CAP
from tests.support.harness import Harness
from tests.support.routed import Net

SIZE = 17
"""Bytes of each record in these tests, overhead included."""
ONE = {"records": [{"data": 1}]}
_numbers = count(1)


def bound(**limits: Any) -> Net:
    net = Net(1, **limits)
    net.shards[0].shard.allowance.bind(alone=False)
    return net


def order(
    shard: Harness, limit: Room | None = None, *, give_back: bool = False, full: tuple[bool, bool] = (False, False)
) -> RoomReport:
    reply = shard.reply(RoomOrder((1, 1, 0, next(_numbers)), limit, give_back, full))
    assert isinstance(reply.extra, RoomReport)
    return reply.extra


def lend(shard: Harness, size: int = 0, topics: int = 0, *, full: tuple[bool, bool] = (False, False)) -> None:
    """Have the shard hold so much more than it does now."""
    held = shard.shard.allowance._held.staged
    order(shard, Room(held.topics + topics, held.bytes + size), full=full)


def wish(shard: Harness) -> Room | None:
    return shard.shard.allowance.wish()


def routed(records: int, **limits: Any) -> tuple[Net, Harness]:
    """A router from "a", with so many records, to "b"; the shard may hold what it holds."""
    net = Net(1, max_total_bytes=1000, **limits)
    net.router("r", "a", "b")
    net.of("a").append("a", *[1] * records)
    net.sync()
    net.shards[0].shard.allowance.bind(alone=False)
    order(net.shards[0])
    return net, net.shards[0]


# Wants of other shards


def test_a_want_is_taken_only_where_the_treasurer_is_and_from_a_shard_that_there_is() -> None:
    shard = bound(max_total_bytes=1000).shards[0]
    allowance = shard.shard.allowance
    wants = [RoomWant(index, (1, 1, 0, 1), Room(0, 0), Room(0, 5)) for index in (0, 1, 2, -1, 2**63 - 1)]
    refused = shard.reply(wants[0]).error
    assert refused is not None
    assert (refused.code, refused.detail) == (ErrorCode.NOT_READY, {"outcome": "not_done"})
    allowance.divides = 2
    errors = [shard.reply(want).error for want in wants]
    assert [error and error.code for error in errors] == [None, None, *[ErrorCode.INVALID_REQUEST] * 3]
    assert allowance.wants == wants[:2]
    assert allowance.wanting.is_set()


# Orders


def test_a_shard_that_begins_may_hold_what_it_holds() -> None:
    shard = Harness(max_total_bytes=1000)
    shard.append("a", 1, 2)
    shard.shard.allowance.bind(alone=False)
    assert not shard.shard.allowance.fits(0, 1)
    assert not shard.shard.allowance.fits(1, 0)
    assert order(shard).limit == Room(1, 2 * SIZE)


def test_an_order_that_was_overtaken_is_not_obeyed_and_the_report_says_so() -> None:
    shard = bound(max_total_bytes=1000).shards[0]
    last = shard.reply(RoomOrder((1, 2, 0, 1), Room(5, 500))).extra
    for at in ((1, 2, 0, 1), (1, 2, 0, 0), (1, 1, 3, 900), (0, 9, 9, 9)):
        assert shard.reply(RoomOrder(at, Room(9, 900), full=(True, True))).extra == last
    assert shard.reply(RoomOrder((2, 0, 0, 0), Room(7, 700))).extra == RoomReport((2, 0, 0, 0), Room(7, 700))


def test_what_is_not_used_is_given_back_and_a_staged_deletion_counts() -> None:
    shard = bound(max_total_bytes=1000).shards[0]
    order(shard, Room(5, 500))
    shard.call("append", "a", ONE)
    shard.call("append", "b", ONE)
    shard.send("delete_topic", "a")
    # A process that begins now finds "a", if the deletion is not in the log.
    assert order(shard, give_back=True).limit == Room(2, SIZE * 2)
    shard.settle()
    assert order(shard, give_back=True).limit == Room(1, SIZE)


def test_giving_back_never_raises_a_limit() -> None:
    shard = bound(max_total_bytes=1000).shards[0]
    order(shard, Room(1, 500))
    shard.call("append", "a", ONE)
    shard.send("delete_topic", "a")
    shard.send("configure", "b", {})
    assert order(shard, give_back=True).limit.topics == 1


def test_where_there_is_no_cap_there_is_no_limit() -> None:
    shard = bound(max_topics=0, max_total_bytes=1000).shards[0]
    assert order(shard).limit == Room(NO_CAP, 0)
    assert shard.call("configure", "a", {})["created"]
    assert order(shard, give_back=True).limit == Room(NO_CAP, 0)


# Requests


def refusal(shard: Harness, ident: int) -> TopicsError | None:
    message = shard.replies[ident]
    assert isinstance(message, Reply)
    return message.error


def test_a_write_waits_for_room_and_is_carried_out_from_its_beginning() -> None:
    shard = bound(max_total_bytes=1000).shards[0]
    order(shard)
    first = shard.send("append", "a", {**ONE, "idempotency_key": "k"})
    again = shard.send("append", "a", {**ONE, "idempotency_key": "k"})
    shard.shard.flush()
    assert not {first, again} & shard.replies.keys()
    assert wish(shard) == Room(2, 2 * SIZE)
    order(shard, Room(1, SIZE), full=(True, True))
    shard.settle()
    assert (refusal(shard, first), refusal(shard, again)) == (None, None)
    assert [record["data"] for record in shard.everything("a")] == [1]
    assert wish(shard) is None


def test_what_waits_is_refused_only_when_that_is_used_up_which_it_lacks() -> None:
    shard = bound(max_total_bytes=1000, max_topics=5).shards[0]
    shard.send("configure", "a", {})
    order(shard, Room(1, 0))
    shard.settle()
    topic, size = shard.send("configure", "b", {}), shard.send("append", "a", ONE)
    order(shard, Room(1, 0), full=(True, False))
    error = refusal(shard, topic)
    assert error is not None
    assert error.detail == {"limit": "max_topics", "max": 5}
    assert size not in shard.replies
    order(shard, Room(1, 0), full=(False, True))
    error = refusal(shard, size)
    assert error is not None
    assert error.detail == {"limit": "max_total_bytes", "max": 1000, "bytes": SIZE}
    assert list(shard.shard.directory.assigned) == ["a"]


@pytest.mark.parametrize(("obeyed", "patience_s"), [(True, PATIENCE_S), (False, FIRST_PATIENCE_S)])
def test_what_waits_too_long_is_not_carried_out_any_more(obeyed: bool, patience_s: float) -> None:
    """A process that has obeyed no order yet may be one of a shard that has moved: the treasurer has to find it."""
    shard = bound(max_total_bytes=1000).shards[0]
    if obeyed:
        order(shard)
    ident = shard.send("append", "a", ONE)
    shard.clock.advance(round(patience_s * 1000) - 1)
    shard.settle()
    assert ident not in shard.replies
    shard.clock.advance(1)
    shard.settle()
    error = refusal(shard, ident)
    assert error is not None
    assert (error.code, error.detail) == (ErrorCode.NOT_READY, {"outcome": "not_done"})
    lend(shard, 1000, 5)
    assert shard.shard.directory.assigned == {}


def test_a_write_that_waits_for_staged_changes_is_refused_when_they_have_made_no_room() -> None:
    shard = bound(max_total_bytes=1000).shards[0]
    order(shard, Room(1, SIZE))
    shard.send("append", "a", ONE)
    ident = shard.send("append", "a", ONE)
    order(shard, Room(1, SIZE), full=(True, True))  # the first one may be undone
    assert ident not in shard.replies
    assert shard.shard.allowance.unsure
    shard.settle()
    assert ident not in shard.replies, "it asks again"
    order(shard, Room(1, SIZE), full=(True, True))
    error = refusal(shard, ident)
    assert error is not None
    assert error.code is ErrorCode.THROTTLED


def test_a_topic_that_is_set_apart_refuses_what_waits() -> None:
    shard = bound(max_total_bytes=1000).shards[0]
    order(shard, Room(1, 0))
    shard.call("configure", "a", {})
    ident, other = shard.send("append", "a", ONE), shard.send("append", "b", ONE)
    damaged = TopicsError(ErrorCode.NOT_READY, "damaged")
    shard.shard.allowance.refuse(shard.shard.directory.find("a"), damaged)
    assert refusal(shard, ident) is damaged
    assert other not in shard.replies


def test_room_that_records_leave_behind_is_used_without_an_order() -> None:
    shard = bound(max_total_bytes=1000).shards[0]
    order(shard, Room(1, SIZE))
    shard.call("append", "a", ONE)
    ident = shard.send("append", "a", ONE)
    shard.shard.flush()
    assert ident not in shard.replies
    shard.send("delete_records", "a", {"before_seq": 2})
    shard.settle()
    shard.settle()
    assert refusal(shard, ident) is None


# Copies


def test_a_topic_that_evicts_needs_no_more_than_its_cap() -> None:
    net = Net(1, max_total_bytes=1000)
    net.router("r", "a", "b")
    net.of("b").call("configure", "b", {"cap_bytes": 2 * (SIZE + 1)})
    net.of("a").append("a", *range(10, 59))
    net.sync()
    shard = net.shards[0]
    shard.shard.allowance.bind(alone=False)
    order(shard)
    assert not net.step("b")
    lend(shard, 2 * (SIZE + 1))
    while net.step("b"):
        pass  # at its cap, the topic evicts a record for each new one
    assert net.data("b") == [57, 58]


def test_copies_that_are_not_visible_yet_count() -> None:
    net, shard = routed(5)
    lend(shard, 3 * SIZE)
    topic = net.topic("b")
    lane = topic.lane
    assert lane is not None
    assert not shard.shard.copier.copy(topic, net.pull(lane))  # not written yet
    assert not shard.shard.allowance.fits(0, 1)
    shard.shard.flush()
    assert shard.shard.directory.totals.bytes == 8 * SIZE
    assert not shard.shard.allowance.fits(0, 1)


def test_a_lane_is_woken_by_an_order_and_by_records_that_go() -> None:
    net, shard = routed(5)
    allowance = shard.shard.allowance
    assert not net.step("b")
    assert wish(shard) == Room(0, 5 * SIZE)
    woken = allowance.changed
    order(shard, allowance.limit, full=(False, True))
    shard.settle()
    assert not woken.is_set()
    shard.call("delete_records", "a", {"before_seq": 2})
    shard.settle()
    assert woken.is_set()
    woken = allowance.changed
    lend(shard, 9 * SIZE)
    assert woken.is_set()
    assert wish(shard) is None


def test_the_want_of_a_lane_that_is_gone_ends() -> None:
    shard = bound(max_total_bytes=1000).shards[0]
    order(shard)
    shard.shard.allowance.want(5, shard.shard.monotonic())
    assert wish(shard) == Room(0, 5)
    shard.clock.advance(round(WANTED_S * 1000))
    shard.settle()
    assert wish(shard) is None


# Letters


def letters(shard: Harness, *seqs: int, target: str = "dead", jobs: bool = False, create: bool = True) -> int:
    ident = shard.send(
        "append",
        target,
        {"records": [{"data": 1}] * len(seqs), "create": create},
        stamped=True,
        jobs=jobs,
        letters=[b"s" * 24, list(seqs)],
    )
    shard.shard.flush()
    shard.shard.commits.sync_now()
    return ident


def answer(shard: Harness, ident: int) -> Reply | None:
    shard.shard.commits.sync_now()
    message = shard.replies.get(ident)
    return message if isinstance(message, Reply) else None


def test_letters_wait_for_room_and_for_their_topic() -> None:
    shard = bound(max_total_bytes=1000, max_topics=5).shards[0]
    order(shard)
    ident = letters(shard, 1, 2)
    assert wish(shard) == Room(1, 2 * SIZE)
    assert answer(shard, ident) is None
    assert "dead" not in shard.shard.directory.assigned
    lend(shard, 2 * SIZE, 1)
    reply = answer(shard, ident)
    assert reply is not None
    assert reply.error is None
    assert [record["data"] for record in shard.everything("dead")] == [1, 1]
    assert shard.shard.directory.counters() == (1, 2, 2 * SIZE)


@pytest.mark.parametrize(("size", "topics", "limit"), [(2 * SIZE, 0, "max_topics"), (SIZE, 1, "max_total_bytes")])
def test_letters_are_told_when_there_is_no_room_and_leave_nothing_behind(size: int, topics: int, limit: str) -> None:
    shard = bound(max_total_bytes=1000, max_topics=5).shards[0]
    ident = letters(shard, 1, 2)
    lend(shard, size, topics, full=(True, True))
    reply = answer(shard, ident)
    assert reply is not None
    assert reply.error is not None
    assert reply.error.code is ErrorCode.THROTTLED
    assert (reply.error.detail or {})["limit"] == limit
    assert shard.shard.directory.assigned == {}
    assert shard.shard.directory.counters() == (0, 0, 0)


def test_a_want_that_crossed_an_order_is_told_again() -> None:
    shard = bound(max_total_bytes=1000, max_topics=5).shards[0]
    letters(shard, 1, 2)
    shard.shard.allowance.news = type(shard.shard.allowance.news)()
    order(shard)  # says nothing of what is wanted
    assert shard.shard.allowance.news.is_set()
    assert wish(shard) == Room(1, 2 * SIZE)


def test_without_caps_nothing_waits() -> None:
    shard = bound(max_topics=0).shards[0]
    reply = answer(shard, letters(shard, 1, 2))
    assert reply is not None
    assert reply.error is None


def test_a_shard_alone_refuses_at_once_and_wishes_nothing() -> None:
    shard = Harness(max_topics=1)
    shard.shard.allowance.bind(alone=True)
    shard.call("configure", "a", {})
    with pytest.raises(TopicsError, match="TOPICS_MAX_TOPICS"):
        shard.call("configure", "b", {})
    assert wish(shard) is None
    assert shard.shard.allowance.report.at == NEVER


def test_a_cap_larger_than_any_message_can_say_is_no_fault() -> None:
    class Nothing:
        staged = visible = lasting = Room(0, 0)

    allowance = Allowance(Limits(max_total_bytes=NO_CAP), Nothing())
    allowance.bind(alone=False)
    allowance.want(NO_CAP, 0.0)
    allowance.want(NO_CAP, 0.0)
    assert allowance.wish() == Room(0, NO_CAP)


def test_a_write_whose_topic_was_made_meanwhile_needs_no_topic_any_more() -> None:
    shard = bound(max_topics=5, max_total_bytes=1000).shards[0]
    order(shard, Room(0, 500))
    first, second = shard.send("append", "a", ONE), shard.send("append", "a", ONE)
    shard.shard.flush()
    order(shard, Room(1, 500), full=(True, False))
    shard.settle()
    assert (refusal(shard, first), refusal(shard, second)) == (None, None)

"""Allowance: router copies and letters of outboxes stay under the caps. Without a loan they wait, and nothing is lost;
with one they continue."""

from __future__ import annotations

from typing import Any

import pytest

from proto.ipc.message import Parked, Reply
from proto.ipc.operations import Want
from proto.model.errors import ErrorCode, TopicsError
from shardd.routers.copier import Copier
from tests.support.harness import Harness
from tests.support.routed import Net

SIZE = 17
"""Bytes of each record in these tests, overhead included."""


def bound(**limits: Any) -> Net:
    net = Net(1, **limits)
    net.shards[0].shard.allowance.bind()
    return net


def lend(shard: Harness, size: int = 0, topics: int = 0, asked: tuple[int, int] = (0, 0)) -> int:
    ident = shard.send("allowance", bytes=size, topics=topics, asked=asked)
    shard.shard.flush()
    return ident


def wanted(shard: Harness, ident: int) -> tuple[int, int] | None:
    """The `want` of a loan's answer; None while the loan lasts."""
    message = shard.replies[ident]
    if isinstance(message, Parked):
        return None
    assert isinstance(message, Reply)
    assert isinstance(message.extra, Want)
    return message.extra.bytes, message.extra.topics


def routed(records: int, **limits: Any) -> tuple[Net, Harness]:
    net = bound(max_total_bytes=1000, **limits)
    net.router("r", "a", "b")
    net.of("a").append("a", *[1] * records)
    net.sync()
    return net, net.shards[0]


def test_a_topic_that_evicts_needs_no_more_than_its_cap() -> None:
    net = bound(max_total_bytes=1000)
    net.router("r", "a", "b")
    net.of("b").call("configure", "b", {"cap_bytes": 2 * (SIZE + 1)})
    net.of("a").append("a", *range(10, 59))
    net.sync()
    assert not net.step("b")
    lend(net.shards[0], 2 * (SIZE + 1), asked=(1000, 0))
    while net.step("b"):
        pass  # at its cap, the topic evicts a record for each new one
    assert net.data("b") == [57, 58]


def test_what_is_lent_and_taken_counts_for_clients_and_in_every_answer() -> None:
    net, shard = routed(5)  # 85 bytes
    lend(shard, 50)
    with pytest.raises(TopicsError):
        shard.call("append", "c", {"records": [{"data": 1}]}, most_bytes=150)
    shard.call("append", "c", {"records": [{"data": 1}]}, most_bytes=152)
    topic = net.topic("b")
    lane = topic.lane
    assert lane is not None
    copier: Copier = shard.shard.copier
    assert not copier.copy(topic, net.pull(lane))  # not written yet
    assert shard.shard.counters()[2] == 102 + 2 * SIZE
    shard.shard.flush()
    assert shard.shard.counters()[2] == 102 + 2 * SIZE == shard.shard.directory.totals.bytes


def test_a_loan_ends_when_it_is_asked_back_or_old_or_its_gateway_gone() -> None:
    net, shard = routed(5)
    first = lend(shard, 1000)
    second = lend(shard, 1000)
    assert wanted(shard, first) == (0, 0), "a gateway that lends anew knows of no other loan"
    shard.call("allowance_return")
    assert wanted(shard, second) == (0, 0)
    third = lend(shard, 1000)
    shard.shard.maintain()
    assert wanted(shard, third) == (0, 0)
    fourth = lend(shard, 1000)
    shard.shard.cancel("peer", fourth)
    assert not net.step("b")
    assert net.data("b") == []


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
    loan = lend(shard)
    ident = letters(shard, 1, 2)
    assert wanted(shard, loan) == (2 * SIZE, 1)
    assert answer(shard, ident) is None
    assert "dead" not in shard.shard.directory.assigned
    loan = lend(shard, 2 * SIZE, 1, asked=(2 * SIZE, 1))
    reply = answer(shard, ident)
    assert reply is not None
    assert reply.error is None
    assert [record["data"] for record in shard.everything("dead")] == [1, 1]
    assert wanted(shard, loan) is None
    assert shard.shard.counters() == (1, 2, 2 * SIZE)


@pytest.mark.parametrize(("size", "topics", "limit"), [(2 * SIZE, 0, "max_topics"), (SIZE, 1, "max_total_bytes")])
def test_letters_are_told_when_there_is_no_room_and_leave_nothing_behind(size: int, topics: int, limit: str) -> None:
    shard = bound(max_total_bytes=1000, max_topics=5).shards[0]
    lend(shard)
    ident = letters(shard, 1, 2)
    lend(shard, size, topics, asked=(2 * SIZE, 1))
    reply = answer(shard, ident)
    assert reply is not None
    assert reply.error is not None
    assert reply.error.code is ErrorCode.THROTTLED
    assert (reply.error.detail or {})["limit"] == limit
    assert shard.shard.directory.assigned == {}
    assert shard.shard.counters() == (0, 0, 0)


def test_a_wish_that_crossed_a_loan_is_told_again() -> None:
    shard = bound(max_total_bytes=1000, max_topics=5).shards[0]
    ident = letters(shard, 1, 2)  # nothing is lent yet, so the want is remembered
    loan = lend(shard, 0, 0, asked=(0, 0))
    assert wanted(shard, loan) == (2 * SIZE, 1)
    assert answer(shard, ident) is None
    lend(shard, 1000, 1, asked=(2 * SIZE, 1))
    assert answer(shard, ident) is not None


def test_without_caps_nothing_waits() -> None:
    shard = bound(max_topics=0).shards[0]
    reply = answer(shard, letters(shard, 1, 2))
    assert reply is not None
    assert reply.error is None

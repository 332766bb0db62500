"""Copies of routers: how many there is room for, and what a router says that waits."""

from __future__ import annotations

from typing import Any

import pytest

from proto.ipc.operations import Room
from tests.support.routed import Net
from tests.unit.shardd.changes.test_allowance import SIZE, lend, order, routed, wish


def test_copies_wait_for_room_and_ask_for_as_much_as_they_need() -> None:
    net, shard = routed(5)
    assert not net.step("b")
    assert wish(shard) == Room(0, 5 * SIZE)
    lend(shard, 5 * SIZE)
    assert net.step("b")
    assert net.data("b") == [1] * 5
    assert wish(shard) is None


def test_room_that_is_too_small_is_used_as_far_as_it_goes() -> None:
    net, shard = routed(5)
    net.step("b")
    lend(shard, 3 * SIZE + 2)
    assert net.step("b")
    assert net.data("b") == [1] * 3
    assert wish(shard) == Room(0, 2 * SIZE - 2)
    assert not net.step("b")
    lend(shard, 9 * SIZE)
    assert net.step("b")
    assert net.data("b") == [1] * 5


def test_a_router_that_waits_says_so() -> None:
    net, shard = routed(5)

    def told() -> tuple[Any, int]:
        return shard.call("router_get", "b", router="r").get("waits_for"), shard.call("stats")["routers_waiting"]

    assert told() == (None, 0)
    net.step("b")
    assert told() == ("max_total_bytes", 1)
    lend(shard, 1000)
    net.step("b")
    assert told() == (None, 0)


def test_a_router_whose_destination_is_full_says_so_everywhere() -> None:
    net = Net(1)
    shard = net.shards[0]
    net.router("r", "a", "b")
    net.router("s", "a", "c")
    shard.call("configure", "b", {"cap_records": 2, "discard": "reject"})
    net.of("a").append("a", *([1] * 3))
    net.sync()

    def told() -> tuple[Any, list[Any], int]:
        (listed,) = [
            each.get("waits_for") for each in shard.call("router_list", page_size=9, dest="b") if each["router"] == "r"
        ]
        assert "waits_for" not in shard.call("router_get", "c", router="s")
        return (
            shard.call("router_get", "b", router="r").get("waits_for"),
            listed,
            shard.call("stats")["routers_waiting"],
        )

    assert told() == (None, None, 0)
    net.step("b")
    net.step("c")
    assert (net.data("b"), net.data("c")) == ([1] * 2, [1] * 3)
    assert told() == ("topic_full", "topic_full", 1)
    shard.call("delete_records", "b", {"before_seq": 2})
    net.step("b")
    assert told() == (None, None, 0)


def test_a_router_says_that_a_record_can_never_fit_its_destination() -> None:
    net = Net(1)
    net.router("r", "a", "b")
    net.of("b").call("configure", "b", {"cap_bytes": 100, "discard": "reject"})
    net.of("a").append("a", 1, "x" * 200)
    net.sync()
    net.step("b")
    assert net.data("b") == [1]
    assert net.of("b").call("router_get", "b", router="r")["waits_for"] == "record_too_large"
    net.of("b").call("configure", "b", {"discard": "old"})
    net.step("b")
    assert "waits_for" not in net.of("b").call("router_get", "b", router="r")


@pytest.mark.parametrize("survival", ["process", "drop"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_restart_copies_nothing_that_there_was_no_room_for(survival: Any, checkpoint: bool) -> None:
    net, shard = routed(5)
    lend(shard, 3 * SIZE)
    net.step("b")
    for _ in range(2):
        assert not net.step("b")
    before = net.seen("b")
    assert len(before) == 3
    net.sync()
    if checkpoint:
        shard.shard.checkpoint_now()
    net.crash(survival=survival)
    assert net.seen("b") == before
    net.shards[0].shard.allowance.bind(alone=False)
    order(net.shards[0])
    assert not net.step("b")
    lend(net.shards[0], 1000)
    net.of("b").append("b", "direct")
    assert net.step("b")
    net.sync()
    assert net.data("b") == [1, 1, 1, "direct", 1, 1]
    seen = net.seen("b")
    net.crash(survival=survival)
    assert net.seen("b") == seen

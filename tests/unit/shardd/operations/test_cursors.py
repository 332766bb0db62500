"""Named cursors: the limit on their number in a topic."""

from __future__ import annotations

import pytest

from proto.model.errors import ErrorCode, TopicsError
from tests.support.harness import Harness


def refused(shard: Harness, op: str, name: str, **options: int) -> None:
    with pytest.raises(TopicsError) as caught:
        shard.call(op, "a", {"seq": 1} if op == "cursor_put" else b"", cursor=name, **options)
    assert caught.value.code is ErrorCode.THROTTLED
    assert caught.value.detail == {"limit": "max_cursors_per_topic", "max": 2}
    assert caught.value.retry_after_ms


def test_a_topic_has_so_many_cursors_and_those_may_always_move() -> None:
    shard = Harness(max_cursors_per_topic=2)
    shard.append("a", 1, 2, 3)
    shard.append("b", 1)
    shard.call("cursor_put", "a", {"seq": 1}, cursor="one")
    shard.call("take", "a", cursor="two")
    refused(shard, "cursor_put", "three")
    refused(shard, "take", "three")
    refused(shard, "step", "three", seq=1)
    assert shard.call("cursor_put", "a", {"seq": 3}, cursor="one")["seq"] == 3
    shard.call("take", "a", cursor="two")
    shard.call("cursor_put", "b", {"seq": 1}, cursor="three")
    shard = shard.restarted()
    assert shard.call("stats", per_topic=10, cursors=10)["cursors"] == 3
    refused(shard, "cursor_put", "three")
    shard.call("cursor_delete", "a", cursor="one")
    shard.call("cursor_put", "a", {"seq": 1}, cursor="three")


def test_cursors_on_their_way_count() -> None:
    shard = Harness(max_cursors_per_topic=2)
    shard.append("a", 1)
    first = [shard.send("cursor_put", "a", {"seq": 1}, cursor=name) for name in ("one", "two")]
    refused(shard, "cursor_put", "three")
    shard.shard.flush()
    shard.shard.commits.sync_now()
    assert all(ident in shard.replies for ident in first)


def test_what_there_was_before_the_cap_stays() -> None:
    shard = Harness()
    shard.append("a", 1)
    for number in range(5):
        shard.call("cursor_put", "a", {"seq": 1}, cursor=str(number))
    shard = shard.restarted(max_cursors_per_topic=2)
    assert shard.call("cursor_put", "a", {"seq": 0, "force": True}, cursor="4")["seq"] == 0
    refused(shard, "cursor_put", "other")
    shard = shard.restarted(max_cursors_per_topic=0)
    shard.call("cursor_put", "a", {"seq": 1}, cursor="other")

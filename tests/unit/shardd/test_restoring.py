"""Restoring: what is refused before a shard has all copies of its routers."""

from __future__ import annotations

import pytest

from proto.model.errors import TopicsError
from tests.support.harness import Harness


def test_a_shard_that_lacks_nothing_is_restored_at_once() -> None:
    shard = Harness()
    assert shard.shard.restoring.restored
    assert shard.shard.restoring.restores() == []


def test_before_that_every_topic_is_refused_and_later_only_those_that_wait_for_a_source() -> None:
    restoring = Harness().shard.restoring
    restoring.restored = False
    for topic in ("a", "b"):
        with pytest.raises(TopicsError, match="making copies"):
            restoring.check(topic)
    restoring.waiting = frozenset({"a"})
    with pytest.raises(TopicsError) as refused:
        restoring.check("a")
    assert (refused.value.detail or {})["reason"] == "source_away"
    restoring.check("b")


def test_seqs_count_as_given_up_only_when_the_last_topic_has_its_copies() -> None:
    shard = Harness()
    shard.append("a", 1)
    topic, restoring = shard.shard.directory.visible["a"], shard.shard.restoring
    done: list[int] = []
    restoring.restored = False
    before = topic.position.next_seq
    restoring.give_seqs_up(lambda: done.append(topic.position.next_seq))
    assert topic.position.next_seq > before, "it lacks nothing"
    assert not done
    skipped = topic.position.next_seq
    restoring.ended(["a", "gone"])
    assert done == [topic.position.next_seq]
    assert topic.position.next_seq > skipped
    restoring.ended(["a"])
    assert len(done) == 1, "and once"

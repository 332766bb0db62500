"""What a checkpoint plans: the topics that have changed, in slices that are bounded."""

from __future__ import annotations

from typing import Any

import pytest

from shardd.checkpoint import slices
from tests.support.many_topics import (
    check_restarts,
    shard_with,
    state,
)


def test_a_checkpoint_looks_at_what_has_changed() -> None:
    shard = shard_with(200)
    shard.append("t5", "more")
    shard.call("cursor_put", "t6", {"seq": 1}, cursor="c")
    shard.call("delete_records", "t7", {"before_seq": 2})
    shard.call("configure", "t8", {"cap_records": 9})
    shard.append("new", 1)
    shard.call("delete_topic", "t9")
    before = state(shard)
    shard.shard.commits.sync_now()
    plan = shard.shard.control.begin()
    assert sorted(each.topic.name for each in plan.topics) == ["new", "t5", "t6", "t7", "t8"]
    shard.shard.checkpoints.writer.write(plan)
    shard.shard.control.end(plan)
    check_restarts(shard, before)


def test_what_a_failed_checkpoint_had_planned_is_planned_again() -> None:
    shard = shard_with(10)
    shard.append("t1", "x", config={"durability": "fsync"})
    plan = shard.shard.control.begin()
    shard.shard.control.end(plan, OSError(5, "injected"))
    assert [each.topic.name for each in shard.shard.control.begin().topics] == ["t1"]


def test_a_catalog_that_would_lack_a_topic_is_not_planned() -> None:
    shard = shard_with(10)
    directory = shard.shard.directory
    del directory.by_id[directory.visible["t3"].id]
    with pytest.raises(AssertionError, match="each topic"):
        shard.shard.control.begin()


@pytest.mark.slow
@pytest.mark.parametrize("changed", [True, False])
def test_a_slice_is_bounded(changed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "LOOK", 64)
    monkeypatch.setattr(slices, "SLICE", 8)
    shard = shard_with(200)
    if changed:
        for n in range(200):
            shard.append(f"t{n}", "again")
        shard.shard.commits.sync_now()
    planning = shard.shard.control.planning()
    seen = []
    planned = shard.shard.checkpoints.planner._plan_topic
    looked = 0

    def count(*arguments: Any) -> None:
        nonlocal looked
        looked += 1
        planned(*arguments)

    monkeypatch.setattr(shard.shard.checkpoints.planner, "_plan_topic", count)
    while True:
        looked = 0
        try:
            next(planning)
        except StopIteration as end:
            plan = end.value
            break
        seen.append(looked)
    assert max(seen) <= (8 if changed else 0)
    assert len(seen) >= (200 // 8 if changed else 200 // 64)
    shard.shard.checkpoints.writer.write(plan)
    assert len(list(shard.shard.control.ending(plan))) == (200 // 8 if changed else 0)

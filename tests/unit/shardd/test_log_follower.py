"""The log follower: after a sync, what it made safe is known before anything that waited is woken."""

from __future__ import annotations

import pytest

from shardd.log_follower import LogFollower
from tests.support.harness import Harness


def test_the_copy_in_a_bucket_learns_of_a_sync_before_requests_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Harness()
    follower: LogFollower = shard.shard.follower
    steps: list[str] = []
    monkeypatch.setattr(follower._unsynced, "synced", lambda number, everything: steps.append(f"safe {number}"))
    monkeypatch.setattr(follower.reads, "synced", lambda: steps.append("reads"))
    monkeypatch.setattr(follower.copy, "synced", lambda: steps.append("copy"))
    monkeypatch.setattr(follower, "_deliver", lambda: steps.append("deliver"))
    shard.append("a", 1)
    shard.shard.commits.sync_now()
    assert steps == [f"safe {shard.shard.commits.safe_no}", "reads", "copy", "deliver"]


def test_a_round_of_syncs_is_told_to_those_who_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Harness()
    told: list[bool | None] = []
    monkeypatch.setattr(shard.shard.pulls, "sync_begins", lambda: told.append(None))
    monkeypatch.setattr(shard.shard.pulls, "sync_ended", told.append)
    shard.append("a", 1)
    shard.shard.commits.sync_now()
    assert told[:2] == [None, True]

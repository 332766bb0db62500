"""Strong reads: records are held back until a sync covers them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.feeds import OPTIONS, feed, opened
from tests.support.harness import Harness


@pytest.fixture
def shard() -> Harness:
    return Harness()


class TestStrong:
    def strong(self, shard: Harness, **options: Any) -> tuple[Any, dict[str, Any]]:
        ident = shard.send("feed", "a", **{**OPTIONS, "strong": True, **options})
        return opened(shard.replies[ident])

    def test_disk_records_are_held_back_until_a_sync_covers_them(self, shard: Harness) -> None:
        shard.append("a", 1)
        shard.shard.commits.sync_now()
        shard.append("a", 2, 3)
        assert [r["$seq"] for r in feed(shard)[0]["records"]] == [1, 2, 3]
        payload, rest = self.strong(shard)
        assert [r["$seq"] for r in payload["records"]] == [1]
        assert (rest["to"], rest["head"]) == (1, 1)
        ident = shard.send("feed", "a", **{**OPTIONS, "strong": True, "from_seq": 1, "wait_ms": 1000})
        assert shard.parked(ident)
        shard.shard.commits.sync_now()
        assert [r["$seq"] for r in opened(shard.replies[ident])[0]["records"]] == [2, 3]
        assert self.strong(shard)[1]["head"] == 3

    def test_a_position_at_the_visible_head_is_not_ahead_of_the_log(self, shard: Harness) -> None:
        shard.append("a", 1, 2)
        payload, rest = self.strong(shard, from_seq=2)
        assert payload is None
        assert "gap" not in rest

    @pytest.mark.parametrize("durability", ["memory", "ephemeral"])
    def test_what_is_never_synced_on_purpose_is_not_waited_for(self, shard: Harness, durability: str) -> None:
        shard.call("configure", "a", {"durability": durability})
        shard.append("a", 0)
        shard.append("a", 1)
        assert self.strong(shard)[0]["to_seq"] == 2

"""Stream reads: what a feed of a topic has, and where it ends."""

from __future__ import annotations

import pytest

from proto.model.errors import TopicsError
from tests.support.feeds import OPTIONS, feed, opened
from tests.support.harness import Harness


@pytest.fixture
def shard() -> Harness:
    return Harness()


class TestFeeds:
    def test_a_feed_has_the_records_and_where_it_ends(self, shard: Harness) -> None:
        shard.append("a", 1, 2, 3)
        payload, rest = feed(shard, limit=2)
        assert [r["data"] for r in payload["records"]] == [1, 2]
        assert (payload["topic"], payload["from_seq"], payload["to_seq"], payload["head_seq"]) == ("a", 0, 2, 3)
        assert (rest["to"], rest["head"], rest["earliest"]) == (2, 3, 1)
        assert "gap" not in rest

    def test_line_breaks_between_tokens_become_blanks_and_escaped_ones_stay(self, shard: Harness) -> None:
        shard.reply("append", "a", b'{"records":[{"data":{"a":\r\n"b\\nc"\n},"meta":{\n}}]}')
        payload, _ = feed(shard)
        assert payload["records"][0]["data"] == {"a": "b\nc"}
        assert payload["records"][0]["meta"] == {}

    def test_without_data_records_are_bare(self, shard: Harness) -> None:
        shard.call("append", "a", {"records": [{"data": 1, "tag": "t", "node": "n", "meta": {"k": 1}}]})
        record = feed(shard, data=False, tags=True, meta=False)[0]["records"][0]
        assert set(record) == {"$seq", "$ts", "$node", "$tag"}

    def test_what_the_filter_hides_still_moves_the_position(self, shard: Harness) -> None:
        shard.append("a", 1, 2, node="me")
        payload, rest = feed(shard, nodes=["me"])
        assert payload is None
        assert rest["to"] == 2

    def test_a_feed_waits_and_is_answered_with_what_comes(self, shard: Harness) -> None:
        shard.append("a", 1)
        ident = shard.send("feed", "a", **{**OPTIONS, "from_seq": 1, "wait_ms": 1000})
        assert shard.parked(ident)
        shard.append("a", 2, 3)
        payload, rest = opened(shard.replies[ident])
        assert [r["$seq"] for r in payload["records"]] == [2, 3]
        assert rest["to"] == 3

    def test_a_waiting_feed_of_a_deleted_topic_is_404(self, shard: Harness) -> None:
        shard.append("a", 1)
        ident = shard.send("feed", "a", **{**OPTIONS, "from_seq": 1, "wait_ms": 1000})
        shard.call("delete_topic", "a")
        with pytest.raises(TopicsError, match="does not exist"):
            opened(shard.replies[ident])

    def test_what_a_cap_took_is_a_gap(self, shard: Harness) -> None:
        shard.call("configure", "a", {"cap_records": 2})
        shard.append("a", 1, 2, 3, 4, 5)
        payload, rest = feed(shard, from_seq=1)
        assert rest["gap"] == (2, 3, "cap", None)
        assert (payload["from_seq"], [r["$seq"] for r in payload["records"]]) == (3, [4, 5])

    def test_a_deleted_gap_is_silent(self, shard: Harness) -> None:
        shard.append("a", 1, 2, 3)
        shard.call("delete_records", "a", {"before_seq": 3})
        payload, rest = feed(shard)
        assert "gap" not in rest
        assert [r["$seq"] for r in payload["records"]] == [3]

    def test_another_instance_of_the_topic_is_a_gap_wherever_the_position_was(self, shard: Harness) -> None:
        shard.append("a", 1, 2, 3)
        epoch = feed(shard)[1]["epoch"]
        shard.call("delete_topic", "a")
        shard.append("a", 4, 5, 6, 7)
        for position in (0, 2, 4, 9):
            payload, rest = feed(shard, from_seq=position, epoch=epoch)
            assert rest["gap"] == (1, 4, "recreated", None)
            assert rest["epoch"] > epoch
            assert [r["data"] for r in payload["records"]] == [4, 5, 6, 7]

    def test_only_what_is_delivered_counts_as_use(self, shard: Harness) -> None:
        shard.append("a", 1)
        shard.clock.advance(10)
        feed(shard, from_seq=1, touch=False)
        assert shard.call("state", "a", touch=False)["last_read_ts"] is None
        feed(shard, touch=False)
        assert shard.call("state", "a", touch=False)["last_read_ts"] == shard.clock.ms

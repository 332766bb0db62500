"""Inspection: states, lists and statistics agree with each other, name what a key may see, and change nothing."""

from __future__ import annotations

import pytest

from proto.ipc.operations import Led, Page, Sampled
from shardd.leaders import Leader
from tests.support.harness import Harness


@pytest.fixture
def shard() -> Harness:
    shard = Harness()
    shard.append("a1", 1, 2, 3)
    shard.append("a2", 1)
    shard.append("b1", 1, 2)
    return shard


def test_a_list_says_of_each_topic_what_its_state_says(shard: Harness) -> None:
    for entry in shard.call("list", page_size=10):
        state = shard.call("state", entry["topic"], touch=False)
        assert entry == {**{name: state[name] for name in entry if name != "durable"}, "durable": entry["durable"]}


def test_a_page_names_its_entries_and_whether_more_follow(shard: Harness) -> None:
    assert shard.reply("list", page_size=2).extra == Page(("a1", "a2"), True)
    assert shard.reply("list", page_size=2, after="a2").extra == Page(("b1",), False)


def test_a_list_has_only_what_the_prefixes_of_a_key_allow(shard: Harness) -> None:
    assert shard.reply("list", page_size=10, prefixes=("a2", "b")).extra == Page(("a2", "b1"), False)
    assert shard.reply("list", page_size=10, prefix="a", prefixes=("a2", "b")).extra == Page(("a2",), False)


def test_a_list_counts_as_use_only_if_it_is_to(shard: Harness) -> None:
    shard.call("list", page_size=1)
    assert shard.call("state", "a1", touch=False)["last_read_ts"] is None
    shard.call("list", page_size=1, touch=True)
    read = [shard.call("state", name, touch=False)["last_read_ts"] for name in ("a1", "a2")]
    assert read == [shard.clock.ms, None]


def test_a_start_forgets_when_a_topic_was_read_and_not_when_it_was_written(shard: Harness) -> None:
    before = shard.call("state", "a1")
    shard.shard.checkpoint_now()
    after = shard.restarted().call("state", "a1", touch=False)
    assert (before["last_read_ts"], after["last_read_ts"]) == (shard.clock.ms, None)
    assert after["last_write_ts"] == before["last_write_ts"] is not None


def test_expired_records_are_in_no_figure(shard: Harness) -> None:
    shard.call("configure", "a1", {"ttl_ms": 1000})
    shard.append("a1", 4)
    shard.clock.advance(1001)
    assert shard.call("list", page_size=1)[0]["count"] == 0
    stats = shard.call("stats", per_topic=10)
    assert stats["records_live"] == 3
    assert stats["per_topic"][0][:4] == ["a1", 4, 5, 0]


def test_statistics_sum_up_all_topics_and_show_the_first_by_name(shard: Harness) -> None:
    stats = shard.call("stats", per_topic=2)
    assert (stats["topics"], stats["records_live"]) == (3, 6)
    assert [row[0] for row in stats["per_topic"]] == ["a1", "a2"]
    assert stats["per_topic_truncated"]
    assert not shard.call("stats", per_topic=3)["per_topic_truncated"]
    assert stats["bytes_live"] == sum(row[4] for row in shard.call("stats", per_topic=3)["per_topic"])


def test_the_lag_of_cursors_is_shown_up_to_a_bound(shard: Harness) -> None:
    for name, seq in (("x", 1), ("y", 3)):
        shard.call("cursor_put", "a1", {"seq": seq}, cursor=name)
    shard.call("cursor_put", "b1", {"seq": 0}, cursor="z")
    stats = shard.call("stats", cursors=3)
    assert (stats["cursors"], stats["cursor_lag_truncated"]) == (3, False)
    assert stats["cursor_lag"] == [["a1", "x", 2], ["a1", "y", 0], ["b1", "z", 2]]
    fewer = shard.call("stats", cursors=2)
    assert (fewer["cursor_lag"], fewer["cursor_lag_truncated"]) == (stats["cursor_lag"][:2], True)
    assert shard.call("stats")["cursor_lag"] == []


def test_statistics_change_nothing(shard: Harness) -> None:
    before = shard.call("stats", per_topic=10, cursors=10)
    assert shard.call("stats", per_topic=10, cursors=10) == before
    assert shard.call("state", "a1", touch=False)["last_read_ts"] is None


def test_a_sample_counts_what_was_written_also_what_is_gone(shard: Harness) -> None:
    before = shard.reply("sample").extra
    assert isinstance(before, Sampled)
    shard.append("a1", *range(5))
    shard.call("delete_records", "a1", {"before_seq": 100})
    shard.call("delete_topic", "a2")
    shard.append("new", 1)
    after = shard.reply("sample").extra
    assert isinstance(after, Sampled)
    assert after.records - before.records == 6
    assert after.bytes > before.bytes
    assert sum(after.syncs) >= sum(before.syncs)
    assert len(after.syncs) == len(after.bounds) + 1
    again = shard.restarted().reply("sample").extra
    assert isinstance(again, Sampled)
    assert again.records == 0, "what a start reads back was not written"


def test_a_state_tells_which_machine_led_when_only_if_it_is_asked_for(shard: Harness) -> None:
    began = shard.clock.ms
    shard.clock.advance(5000)
    shard.append("a1", 4, 5)
    shard.shard.follower.copy.leaders = lambda: [Leader(0, "a"), Leader(began + 1000, "b"), Leader(began + 9000, "c")]  # type: ignore[method-assign]
    assert shard.reply("state", "a1").extra is None
    assert shard.reply("state", "a1", led=True).extra == Led(((1, "a"), (4, "b"), (6, "c")))
    assert shard.reply("state", "a2", led=True).extra == Led(((1, "a"), (2, "c")))


def test_without_a_bucket_no_machine_led(shard: Harness) -> None:
    assert shard.reply("state", "a1", led=True).extra == Led(((1, ""),))

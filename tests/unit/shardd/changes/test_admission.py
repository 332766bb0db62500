"""Admission: the caps that a shard applies for the whole service, and the names that a key's prefixes let it see."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.model.errors import ErrorCode, TopicsError
from shardd.topic import name_ranges
from tests.support.asked import said
from tests.support.harness import Harness

RECORD_SIZE = 17
ONE = {"records": [{"data": 1}]}


def refusal(shard: Harness, op: str, topic: str, body: Any, **options: Any) -> TopicsError:
    with pytest.raises(TopicsError) as caught:
        shard.call(op, topic, body, **options)
    return caught.value


def test_a_topic_too_many_is_refused_however_it_would_be_made_and_updates_pass() -> None:
    shard = Harness(max_topics=1)
    assert shard.call("configure", "a", {}, most_topics=1)["created"]
    for op, body in (("configure", {}), ("append", ONE)):
        error = refusal(shard, op, "b", body, most_topics=1)
        assert (error.code, error.detail) == (ErrorCode.THROTTLED, {"limit": "max_topics", "max": 1})
        assert error.retry_after_ms
    assert not shard.call("configure", "a", {"priority": 3}, most_topics=0)["created"]
    assert shard.call("append", "a", ONE, most_topics=0)["first_seq"] == 1
    assert shard.call("append", "b", ONE)["created"]


def test_creations_of_one_group_count_before_they_are_seen() -> None:
    shard = Harness()
    first = shard.send("configure", "a", {}, most_topics=1)
    second = shard.send("configure", "b", {}, most_topics=1)
    shard.shard.flush()
    shard.shard.commits.sync_now()
    errors = [getattr(shard.replies[each], "error", None) for each in (first, second)]
    assert errors[0] is None
    assert errors[1] is not None


def test_a_write_too_many_is_refused_and_leaves_no_topic_behind() -> None:
    shard = Harness(max_total_bytes=40)
    shard.call("append", "a", ONE, most_bytes=RECORD_SIZE)
    error = refusal(shard, "append", "b", ONE, most_bytes=2 * RECORD_SIZE - 1)
    assert error.code is ErrorCode.THROTTLED
    assert error.detail == {"limit": "max_total_bytes", "max": 40, "bytes": RECORD_SIZE}
    assert [entry["topic"] for entry in shard.call("list", page_size=9)] == ["a"]
    assert shard.call("append", "b", ONE, most_bytes=2 * RECORD_SIZE)["created"]


def test_writes_of_one_group_count_before_they_are_seen() -> None:
    shard = Harness()
    shard.call("configure", "a", {"durability": "fsync"})
    sent = [shard.send("append", "a", ONE, most_bytes=2 * RECORD_SIZE) for _ in range(3)]
    shard.shard.flush()
    shard.shard.commits.sync_now()
    assert [getattr(shard.replies[each], "error", None) is None for each in sent] == [True, True, False]
    assert shard.call("state", "a")["bytes"] == 2 * RECORD_SIZE


def test_a_topic_that_evicts_needs_no_more_than_its_cap() -> None:
    shard = Harness()
    shard.call("configure", "ring", {"cap_bytes": 3 * RECORD_SIZE})
    for _ in range(3):
        shard.call("append", "ring", ONE, most_bytes=3 * RECORD_SIZE)
    for _ in range(10):
        shard.call("append", "ring", ONE, most_bytes=3 * RECORD_SIZE)
    assert shard.call("state", "ring")["bytes"] == 3 * RECORD_SIZE
    assert refusal(shard, "append", "other", ONE, most_bytes=3 * RECORD_SIZE).code is ErrorCode.THROTTLED


def test_room_comes_back_when_records_go() -> None:
    shard = Harness()
    shard.call("append", "a", ONE, most_bytes=RECORD_SIZE)
    refusal(shard, "append", "a", ONE, most_bytes=RECORD_SIZE)
    shard.call("delete_topic", "a")
    assert shard.call("append", "a", ONE, most_bytes=RECORD_SIZE)["created"]


def test_a_repeated_write_is_answered_without_room() -> None:
    shard = Harness()
    body = {**ONE, "idempotency_key": "k"}
    shard.call("append", "a", body, most_bytes=RECORD_SIZE)
    assert shard.call("append", "a", body, most_bytes=RECORD_SIZE)["deduped"]


@pytest.mark.parametrize("config", [{}, {"ttl_ms": 5}])
def test_creating_with_a_config_needs_more_than_writing(config: dict[str, Any]) -> None:
    shard = Harness()
    error = refusal(shard, "append", "a", {**ONE, "config": config}, may_configure=False)
    assert error.code is ErrorCode.FORBIDDEN
    assert shard.call("append", "a", {**ONE, "config": None}, may_configure=False)["created"]
    assert not shard.call("append", "a", {**ONE, "config": config}, may_configure=False)["created"]


def test_a_dead_letter_target_must_be_inside_the_prefixes() -> None:
    shard = Harness()
    prefixes = ["tenant:", "shared."]
    for op, body in (
        ("configure", {"dead_letter": "others"}),
        ("append", {**ONE, "config": {"dead_letter": "others"}}),
    ):
        error = refusal(shard, op, "tenant:q", body, prefixes=prefixes)
        assert (error.code, error.detail) == (ErrorCode.FORBIDDEN, {"reason": "prefix", "topic": "others"})
    assert shard.call("configure", "tenant:q", {"dead_letter": "shared.dlq"}, prefixes=prefixes)["created"]
    assert not shard.call("configure", "tenant:q", {"dead_letter": None}, prefixes=prefixes)["created"]


NAMES = st.text("ab:", min_size=1, max_size=4)


@pytest.mark.slow
@given(
    st.sets(NAMES, max_size=40),
    st.text("ab:", max_size=2),
    st.lists(NAMES, max_size=4),
    st.text("ab:", max_size=3),
    st.integers(0, 9),
)
def test_pages_hold_exactly_the_names_allowed(
    names: set[str], prefix: str, prefixes: list[str], after: str, size: int
) -> None:
    allowed = [
        name
        for name in sorted(names)
        if name.startswith(prefix) and name > after and (not prefixes or name.startswith(tuple(prefixes)))
    ]
    found = name_ranges.page(sorted(names), name_ranges.distinct(prefix, prefixes), after, size)
    assert found == (allowed[:size], len(allowed) > size)


def test_lists_and_statistics_show_only_names_inside_the_prefixes() -> None:
    shard = Harness()
    for name in ("a", "b:1", "b:2", "c", "d.x", "d.y"):
        shard.call("configure", name, {})
    prefixes = ["d.", "b:"]
    first = shard.reply("list", page_size=3, prefixes=prefixes)
    assert said(first.extra) == {"names": ["b:1", "b:2", "d.x"], "more": True}
    rest = shard.reply("list", page_size=3, prefixes=prefixes, after="d.x")
    assert said(rest.extra) == {"names": ["d.y"], "more": False}
    stats = shard.call("stats", per_topic=9, prefixes=["b:"])
    assert [row[0] for row in stats["per_topic"]] == ["b:1", "b:2"]

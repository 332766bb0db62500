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
    shard.hold(topics=1)
    assert shard.call("configure", "a", {})["created"]
    for op, body in (("configure", {}), ("append", ONE)):
        error = refusal(shard, op, "b", body)
        assert (error.code, error.detail) == (ErrorCode.THROTTLED, {"limit": "max_topics", "max": 1})
        assert error.retry_after_ms
    shard.hold(topics=0)
    assert not shard.call("configure", "a", {"priority": 3})["created"]
    assert shard.call("append", "a", ONE)["first_seq"] == 1
    shard.hold(topics=2)
    assert shard.call("append", "b", ONE)["created"]


def answers(shard: Harness, *sent: int) -> list[bool]:
    """Whether each request was carried out, when everything staged has committed."""
    shard.shard.flush()
    while not all(each in shard.replies for each in sent):
        shard.settle()
    return [getattr(shard.replies[each], "error", None) is None for each in sent]


def test_creations_of_one_group_count_before_they_are_seen() -> None:
    shard = Harness()
    shard.hold(topics=1)
    assert answers(shard, shard.send("configure", "a", {}), shard.send("configure", "b", {})) == [True, False]


def test_a_write_too_many_is_refused_and_leaves_no_topic_behind() -> None:
    shard = Harness(max_total_bytes=40)
    shard.call("append", "a", ONE)
    shard.hold(size=2 * RECORD_SIZE - 1)
    error = refusal(shard, "append", "b", ONE)
    assert error.code is ErrorCode.THROTTLED
    assert error.detail == {"limit": "max_total_bytes", "max": 40, "bytes": RECORD_SIZE}
    assert [entry["topic"] for entry in shard.call("list", page_size=9)] == ["a"]
    shard.hold(size=2 * RECORD_SIZE)
    assert shard.call("append", "b", ONE)["created"]


def test_writes_of_one_group_count_before_they_are_seen() -> None:
    shard = Harness(max_total_bytes=40)
    shard.call("configure", "a", {"durability": "fsync"})
    shard.hold(size=2 * RECORD_SIZE)
    assert answers(shard, *(shard.send("append", "a", ONE) for _ in range(3))) == [True, True, False]
    assert shard.call("state", "a")["bytes"] == 2 * RECORD_SIZE


def test_a_topic_that_evicts_needs_no_more_than_its_cap() -> None:
    shard = Harness(max_total_bytes=40)
    shard.call("configure", "ring", {"cap_bytes": 3 * RECORD_SIZE})
    shard.hold(size=3 * RECORD_SIZE)
    for _ in range(13):
        shard.call("append", "ring", ONE)
    assert shard.call("state", "ring")["bytes"] == 3 * RECORD_SIZE
    assert refusal(shard, "append", "other", ONE).code is ErrorCode.THROTTLED


def test_room_comes_back_when_records_go() -> None:
    shard = Harness(max_total_bytes=40)
    shard.hold(size=RECORD_SIZE)
    shard.call("append", "a", ONE)
    refusal(shard, "append", "a", ONE)
    shard.call("delete_topic", "a")
    assert shard.call("append", "a", ONE)["created"]


def test_a_repeated_write_is_answered_without_room() -> None:
    shard = Harness(max_total_bytes=40)
    shard.hold(size=RECORD_SIZE)
    body = {**ONE, "idempotency_key": "k"}
    shard.call("append", "a", body)
    assert shard.call("append", "a", body)["deduped"]


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

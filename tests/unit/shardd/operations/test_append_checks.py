"""What a topic and its configuration refuse of a write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from shardd.operations.append_checks import check_delays, check_room, key_of, lazy_config

from proto.api.requests import AppendRequest
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import MAX_IDEMPOTENCY_KEY_CHARS
from proto.model.topic_config import ConfigPatch, TopicConfig

LONGEST = "k" * MAX_IDEMPOTENCY_KEY_CHARS


@pytest.mark.parametrize(
    ("body", "header", "key"),
    [
        (None, None, b""),
        ("a", None, b"a"),
        (None, "b", b"b"),
        ("a", "b", b"a"),
        ("", "b", b""),
        (LONGEST, None, LONGEST.encode()),
        ("é", None, "é".encode()),
    ],
)
def test_the_key_of_the_body_goes_before_that_of_the_header(body: str | None, header: str | None, key: bytes) -> None:
    assert key_of(body, header) == key


@pytest.mark.parametrize(("body", "header"), [(LONGEST + "k", None), (None, LONGEST + "k"), ("a", LONGEST + "k")])
def test_a_key_that_is_too_long_is_refused_even_if_it_is_not_used(body: str | None, header: str | None) -> None:
    with pytest.raises(TopicsError, match="idempotency key has"):
        key_of(body, header)


def test_only_jobs_can_be_held_back() -> None:
    check_delays(None, TopicConfig(), "a")
    check_delays([1], TopicConfig(type="queue"), "a")
    with pytest.raises(TopicsError, match="is a log"):
        check_delays([0], TopicConfig(), "a")


@pytest.mark.parametrize(
    ("create", "auto_create", "made"),
    [
        (None, None, True),
        (None, False, False),
        (None, True, True),
        (True, False, True),
        (False, None, False),
        (False, True, False),
    ],
)
def test_a_write_creates_its_topic_if_it_may(create: bool | None, auto_create: bool | None, made: bool) -> None:
    write = AppendRequest(records=[], create=create, config=ConfigPatch(auto_create=auto_create, ttl_ms=5))
    if made:
        assert lazy_config("a", write).ttl_ms == 5
    else:
        with pytest.raises(TopicsError) as caught:
            lazy_config("a", write)
        assert caught.value.code is ErrorCode.TOPIC_NOT_FOUND


def topic(**more: int) -> Any:
    fields = {"records": 3, "pending_records": 1, "bytes": 30, "pending_bytes": 10, "head_seq": 9, "earliest_seq": 6}
    return SimpleNamespace(**fields | more)


@pytest.mark.parametrize("count", [1, 10**9])
def test_a_topic_that_evicts_or_has_no_cap_has_room_for_all(count: int) -> None:
    check_room(topic(), TopicConfig(discard="old", cap_records=1), count, count, "a")
    check_room(topic(), TopicConfig(discard="reject"), count, count, "a")


def test_a_topic_may_be_filled_to_its_last_record_and_byte() -> None:
    config = TopicConfig(discard="reject", cap_records=5, cap_bytes=50)
    check_room(topic(), config, 1, 10, "a")
    check_room(None, config, 5, 50, "a")
    for count, size, what in ((2, 10, "4 of 5 records"), (1, 11, "40 of 50 bytes")):
        with pytest.raises(TopicsError, match=what) as caught:
            check_room(topic(), config, count, size, "a")
        assert caught.value.code is ErrorCode.TOPIC_FULL
        assert caught.value.detail == {
            "topic": "a",
            "cap_records": 5,
            "cap_bytes": 50,
            "head_seq": 9,
            "earliest_seq": 6,
        }


@pytest.mark.parametrize("known", [True, False])
def test_a_write_that_can_never_fit_is_told_so_before_one_that_does_not_fit_now(known: bool) -> None:
    config = TopicConfig(discard="reject", cap_records=5, cap_bytes=50)
    for count, size in ((6, 1), (1, 51)):
        with pytest.raises(TopicsError, match="can never fit") as caught:
            check_room(topic() if known else None, config, count, size, "a")
        assert caught.value.code is ErrorCode.RECORD_TOO_LARGE

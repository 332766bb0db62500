"""Claims about lists over several shards."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.pagination import decode_cursor, encode_cursor, merge_pages, page_size
from proto.ipc.message import Reply
from proto.ipc.operations import Page
from proto.model.errors import ErrorCode, TopicsError
from proto.model.names import TOPIC

NAMES = st.from_regex(TOPIC, fullmatch=True)


def page_of(names: list[str], after: str, size: int) -> Reply:
    left = sorted(name for name in names if name > after)
    body = json.dumps([{"topic": name} for name in left[:size]]).encode()
    return Reply(1, body, extra=Page(tuple(left[:size]), len(left) > size))


@pytest.mark.slow
@given(st.sets(NAMES, max_size=40), st.integers(1, 4), st.integers(1, 9), st.randoms())
def test_pages_over_shards_give_every_name_once_in_order(
    names: set[str], shards: int, size: int, random: object
) -> None:
    owned: list[list[str]] = [[] for _ in range(shards)]
    for name in sorted(names):
        owned[random.randrange(shards)].append(name)  # type: ignore[attr-defined]
    found: list[str] = []
    after = ""
    while True:
        merged = json.loads(merge_pages("topics", [page_of(each, after, size) for each in owned], size))
        page = [entry["topic"] for entry in merged["topics"]]
        found += page
        if "next_cursor" not in merged:
            break
        assert len(page) == size
        after = decode_cursor(merged["next_cursor"])
        assert after == page[-1]
    assert found == sorted(names)


def test_entries_stay_the_text_the_shard_sent() -> None:
    entry = b'{"topic":"a","n":1.50,"n":2}'
    merged = merge_pages("topics", [Reply(1, b"[" + entry + b"]", extra=Page(("a",), False))], 5)
    assert merged == b'{"topics":[' + entry + b"]}"


def test_the_cursor_is_the_one_the_contract_shows() -> None:
    assert encode_cursor("jobs") == "eyJhZnRlciI6ImpvYnMifQ=="


@given(NAMES)
def test_cursors_survive_both_alphabets_and_lost_padding(name: str) -> None:
    cursor = encode_cursor(name)
    assert decode_cursor(cursor) == name
    assert decode_cursor(cursor.rstrip("=")) == name
    assert decode_cursor(cursor.replace("-", "+").replace("_", "/")) == name


@pytest.mark.parametrize(
    "cursor",
    ["x", "!!!!", "e30=", "eyJhZnRlciI6MX0=", "eyJhZnRlciI6Ii4uIn0=", "ZnVsbA==", "é", "eyJhZnRlciI6ImpvYnMifQ==A"],
)
def test_corrupt_cursors_are_400(cursor: str) -> None:
    with pytest.raises(TopicsError) as caught:
        decode_cursor(cursor)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_page_size_is_clamped_and_zero_is_the_default() -> None:
    assert [page_size(n) for n in (0, -3, 1, 1000, 10**30)] == [100, 1, 1, 1000, 1000]

"""Matches: which records a deletion or a router selects by tag."""

from __future__ import annotations

from typing import Any

import pytest

from proto.model.errors import ErrorCode, TopicsError
from proto.model.match import Match, parse_match


@pytest.mark.parametrize(
    ("match", "found"),
    [
        ("", ("Eq", b"")),
        ("a*", ("Eq", b"a*")),
        ("é", ("Eq", "é".encode())),
        (["tag", "Eq", "a*"], ("Eq", b"a*")),
        (["tag", "Glob", "a:*"], ("Glob", b"a:")),
        (["tag", "Glob", "*"], ("Glob", b"")),
    ],
)
def test_a_match_is_a_tag_or_a_prefix(match: Any, found: Match) -> None:
    assert parse_match(match, "match") == found


@pytest.mark.parametrize(
    ("match", "why"),
    [
        ([], "must be a tag"),
        (["tag", "Eq"], "must be a tag"),
        (["node", "Eq", "a"], "must be a tag"),
        (["tag", "Eq", 7], "must be a tag"),
        (["tag", "Eq", "a", "b"], "must be a tag"),
        (["tag", "Glob", "a"], "a literal prefix"),
        (["tag", "Glob", ""], "a literal prefix"),
        (["tag", "Glob", "a*b*"], "a literal prefix"),
        (["tag", "Glob", "**"], "a literal prefix"),
        (["tag", "eq", "a"], "must be Eq or Glob"),
        (["tag", 1, "a"], "must be Eq or Glob"),
    ],
)
def test_anything_else_is_refused_with_the_field(match: list[Any], why: str) -> None:
    with pytest.raises(TopicsError, match=why) as caught:
        parse_match(match, "filter")
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert (caught.value.detail or {})["field"] == "filter"

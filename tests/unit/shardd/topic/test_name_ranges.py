"""Ranges of sorted names: pages of the names with one of several prefixes."""

from __future__ import annotations

from itertools import product

import pytest

from shardd.topic.name_ranges import distinct, page

NAMES = sorted("".join(each) for size in (1, 2, 3) for each in product("ab:", repeat=size))


@pytest.mark.parametrize(
    ("prefix", "prefixes", "found"),
    [
        ("", [], [""]),
        ("a", [], ["a"]),
        ("", ["b", "a"], ["a", "b"]),
        ("a", ["b"], []),
        ("a", ["ab", "aa", "b"], ["aa", "ab"]),
        ("ab", ["a"], ["ab"]),
        ("a", ["a", "ab", "abc"], ["a"]),
        ("", ["ab", "a", "ab"], ["a"]),
    ],
)
def test_prefixes_that_overlap_are_taken_once(prefix: str, prefixes: list[str], found: list[str]) -> None:
    assert distinct(prefix, prefixes) == found


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("prefix", "prefixes"), [("", []), ("a", []), ("", ["a:", "b", "ba"]), ("b", ["ba", "a"]), ("c", [])]
)
def test_pages_give_each_name_once_in_order(prefix: str, prefixes: list[str], size: int) -> None:
    allowed = [name for name in NAMES if name.startswith(prefix) and (not prefixes or name.startswith(tuple(prefixes)))]
    found: list[str] = []
    more, after = True, ""
    while more:
        names, more = page(NAMES, distinct(prefix, prefixes), after, size)
        assert len(names) == size if more else len(names) <= size
        found += names
        after = names[-1] if names else after
    assert found == allowed


def test_a_page_that_is_just_full_says_that_there_is_no_more() -> None:
    assert page(["a", "b"], [""], "", 2) == (["a", "b"], False)
    assert page(["a", "b"], [""], "", 1) == (["a"], True)
    assert page([], [""], "", 1) == ([], False)

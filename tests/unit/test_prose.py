"""Prose is plain: the worst habits are refused in pages, docstrings and comments.

The actor of a sentence is a named component or "a client", never "who", "whoever", "somebody", "nobody" or "he".
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPENING = {"begins with Who": re.compile(r"\A\W*Who(?:se|ever)?\b")}
"""Of docstrings and comments only: a page may ask a question."""
HABITS = {
    "for who, of who": re.compile(r"\b(?:for|of|to|by|from|with) who\b"),
    "whoever": re.compile(r"\bwho(?:m|so)?ever\b", re.IGNORECASE),
    "somebody": re.compile(r"\b(?:some|any|every)body\b", re.IGNORECASE),
    "nobody": re.compile(r"\bnobody\b", re.IGNORECASE),
    "anew": re.compile(r"\banew\b", re.IGNORECASE),
    "he": re.compile(r"\b(?:he|his|him)\b", re.IGNORECASE),
}
PACKAGES = (
    "proto",
    "gateway",
    "shardd",
    "supervisor",
    "pyspark_topics",
    "packages",
    "topics_server",
    "tests",
    "bench",
    "examples",
)
_CODE = re.compile(r"^```.*?^```$|^    [^\n]*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    hidden = (ROOT / ".github").rglob("*.md")
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *hidden])


def habits(text: str, kinds: Mapping[str, re.Pattern[str]] = HABITS) -> list[str]:
    return [f"{name}: {found[0].strip()!r}" for name, habit in kinds.items() for found in habit.finditer(text)]


def prose_of(source: str) -> Iterator[str]:
    """The docstrings, also those of attributes, and the comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def in_package(package: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {habit}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if path != Path(__file__)  # it names them
        for text in prose_of(path.read_text())
        for habit in habits(text, OPENING | HABITS)
    ]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_have_none_of_the_habits(page: Path) -> None:
    lines = _CODE.sub("", page.read_text()).splitlines()
    assert [(line, habits(line)) for line in lines if habits(line)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_and_comments_have_none_of_them(package: str) -> None:
    assert in_package(package) == []


def test_a_habit_is_found_where_it_is_and_not_where_it_is_not() -> None:
    assert habits("Who asks, and whether they may.", OPENING | HABITS) == ["begins with Who: 'Who'"]
    assert habits("Answers are compressed for who asks; nobody else waits, whoever he is.") == [
        "for who, of who: 'for who'",
        "whoever: 'whoever'",
        "nobody: 'nobody'",
        "he: 'he'",
    ]
    assert habits("A client that does not read its response is disconnected. The anewest whole thing.") == []
    source = '"""Whoever."""\nx = "nobody"  # made anew\nX = 1\n"""For somebody."""\n'
    assert [habit for text in prose_of(source) for habit in habits(text, OPENING | HABITS)] == [
        "begins with Who: 'Whoever'",
        "whoever: 'Whoever'",
        "somebody: 'somebody'",
        "anew: 'anew'",
    ]

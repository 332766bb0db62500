"""Prose is plain: the worst habits are refused in pages, docstrings and comments.

The actor of a sentence is a named component or "a client", never "who", "whoever", "somebody", "nobody" or "he". Pages
also use the field's terms: a loop "continues", a job "is delivered again", a gap "is reported".
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
TERMS = {
    "goes on": re.compile(r"\bgo(?:es|ing)? on\b(?! (?:the|a|an) )"),  # continues, resumes
    "comes again": re.compile(r"\bcomes? again\b"),  # is delivered again, is retried
    "is told": re.compile(r"\b(?:is|are|was|were) told\b(?! to\b)"),  # is reported, is notified
    "begins with What": re.compile(r"(?:^|[.:;] )(?!What (?:goes|can go) wrong)What\b(?![^.]*\?)"),  # name the thing
    "behind": re.compile(r"\b(?:[Bb]egins?|continues?|reads?|reading) behind\b"),  # after
    "lies": re.compile(r"\bas it lies\b|\bwhere (?:it|they) lies?\b"),  # in place
    "takes up, gives way": re.compile(r"\btakes? (?:it )?up\b|\bgives? way\b"),  # applies, closes in favour of
    "surely": re.compile(r"\bsurely\b"),  # certainly
    "say": re.compile(r", say\b(?=[,.)]|$)"),  # for example
    "is there": re.compile(r"\b(?:what|all|everything) (?:that )?(?:is|was|there is) there\b"),  # existing
    "by who": re.compile(r"\b(?:[Ww]ho|those who) (?:asks?|comes?|connects?|reads?|writes?)\b"),  # a client that
}
"""Habits of pages, and of docstrings and comments of the product: inversions, riddles and this project's own words. A
comment has the better ones."""
NOT_IN_TERMS = {"CHANGELOG.md", "docs/format.md"}
"""A changelog tells of sentences that were; the page of the bytes is a specification."""
IN_TERMS = [
    str(path.relative_to(ROOT))
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    if str(path.relative_to(ROOT)) not in NOT_IN_TERMS
]
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
GENERATED = "<!-- Made by `make reference`"
"""What follows this mark comes from docstrings."""
_LINK = re.compile(r"\[([^\]\[]*)\]\(([^)\s]+)\)")
_FILE_NAME = re.compile(r"^`?[\w./-]+(\.md|/)`?$")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
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


def in_package(package: str, kinds: Mapping[str, re.Pattern[str]]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {habit}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if path != Path(__file__)  # it names them
        for text in prose_of(path.read_text())
        for habit in habits(text, kinds)
    ]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_have_none_of_the_habits(page: Path) -> None:
    lines = _CODE.sub("", page.read_text()).splitlines()
    assert [(line, habits(line)) for line in lines if habits(line)] == []


def words(text: str) -> str:
    """The prose of a page: without code, marks of blocks, headings and what is generated."""
    without = _CODE.sub("", _COMMENT.sub("", text.partition(GENERATED)[0]))
    return "\n".join(line for line in without.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("page", IN_TERMS)
def test_pages_use_the_terms_of_the_field(page: str) -> None:
    lines = words((ROOT / page).read_text()).splitlines()
    assert [(line, habits(line, TERMS)) for line in lines if habits(line, TERMS)] == []


LINKING = [*pages(), *sorted(ROOT.glob("packages/*/README.md"))]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_titles_for_their_texts_not_the_names_of_files(page: Path) -> None:
    texts = [text for text, _ in _LINK.findall(words(page.read_text()))]
    assert [text for text in texts if _FILE_NAME.match(text)] == []


def test_a_habit_of_a_page_is_found_and_the_words_that_replace_it_are_not() -> None:
    bad = {
        "After a restart the loop goes on.": "goes on",
        "Otherwise the job comes again.": "comes again",
        "Rows that went are told from those that changed.": "is told",
        "What is in the bucket is brought back by a restore.": "begins with What",
        "It starts. What the key may not do is refused.": "begins with What",
        "A read begins behind this seq.": "behind",
        "Alone, it is read as it lies.": "lies",
        "A service takes it up at SIGHUP.": "takes up, gives way",
        "It is repeated only when it surely was not carried out.": "surely",
        "A bad sector, say.": "say",
        "The first batch has all that is there.": "is there",
        "Answers are compressed if those who ask wait.": "by who",
    }
    for sentence, kind in bad.items():
        assert [each.partition(":")[0] for each in habits(sentence, TERMS)] == [kind], sentence
    good = [
        "After a restart the loop continues after the last record.",
        "Run it behind a proxy. What do clients see?",
        "Retry when the service asks you to. **What can go wrong.** The lease ends.",
        "What goes wrong, and what then",
        "Clients come back when they are told to retry.",
    ]
    assert [habits(sentence, TERMS) for sentence in good] == [[]] * len(good)
    assert (
        words("# goes on\n<!-- goes on after: x -->\n```sh\ngoes on\n```\n`goes on`\n" + GENERATED + " goes on")
        == "\n\n"
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_and_comments_have_none_of_them(package: str) -> None:
    assert in_package(package, OPENING | HABITS) == []


@pytest.mark.parametrize("package", [package for package in PACKAGES if package not in ("tests", "bench", "examples")])
def test_docstrings_and_comments_of_the_product_use_the_terms_of_the_field(package: str) -> None:
    """They may begin with What, as the question that a table answers."""
    assert in_package(package, {name: habit for name, habit in TERMS.items() if name != "begins with What"}) == []


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

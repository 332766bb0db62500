"""The footnotes of a page. Its rows name the tests that prove them there, so that the tables are for reading."""

from __future__ import annotations

import re

_NOTE = re.compile(r"^\[\^(\w+)\]: (.+)$", re.MULTILINE)
_MARK = re.compile(r"\[\^(\w+)\](?!:)")


def notes(text: str) -> dict[str, str]:
    """The texts of the footnotes by their names. Raises `AssertionError` if one is defined twice, unused or missing."""
    found = _NOTE.findall(text)
    by_name = dict(found)
    marks = set(_MARK.findall(text))
    assert len(by_name) == len(found), "a footnote is defined twice"
    assert marks == set(by_name), f"footnotes without a mark or a text: {sorted(marks ^ set(by_name))}"
    return by_name


def rows(text: str) -> list[str]:
    """The rows of the page's tables, without headers and rules."""
    lines = text.splitlines()
    rules = {number for number, line in enumerate(lines) if line.startswith("|") and set(line) <= set("|- :")}
    return [
        line
        for number, line in enumerate(lines)
        if line.startswith("|") and number not in rules and number + 1 not in rules
    ]


def proofs(text: str) -> list[tuple[str, list[str]]]:
    """Each row of the page's tables, with the texts of its footnotes."""
    by_name = notes(text)
    return [(row, [by_name[mark] for mark in _MARK.findall(row)]) for row in rows(text)]

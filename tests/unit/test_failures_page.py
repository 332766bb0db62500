"""The tests that docs/failures.md names for its rows exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "failures.md"
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def rows() -> list[str]:
    """The rows of the page's tables, without headers and rules."""
    lines = PAGE.read_text().splitlines()
    heads = {number for number, line in enumerate(lines) if set(line) <= set("|- :") and line.startswith("|")}
    return [
        line
        for number, line in enumerate(lines)
        if line.startswith("|") and number not in heads and number + 1 not in heads
    ]


def test_each_row_of_the_failures_page_names_tests_that_exist() -> None:
    assert len(rows()) > 20
    for row in rows():
        named = _TEST.findall(row)
        assert named, f"no test is named in: {row}"
        for path, function in named:
            file = ROOT / path
            assert file.is_file(), f"there is no {path}: {row}"
            assert not function or re.search(rf"^(async )?def {function}\(", file.read_text(), re.M), (path, function)


def test_readme_and_operations_point_to_the_failures_page() -> None:
    assert "(docs/failures.md)" in (ROOT / "README.md").read_text()
    assert "(failures.md)" in (ROOT / "docs" / "operations.md").read_text()

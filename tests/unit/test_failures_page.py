"""The tests that docs/failures.md names for its rows exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.footnotes import proofs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "failures.md"
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def test_each_row_of_the_failures_page_names_tests_that_exist() -> None:
    found = proofs(PAGE.read_text())
    assert len(found) > 100
    for row, texts in found:
        named = _TEST.findall(" ".join(texts))
        assert named, f"no footnote names a test of: {row}"
        for path, function in named:
            file = ROOT / path
            assert file.is_file(), f"there is no {path}: {row}"
            assert not function or re.search(rf"^(async )?def {function}\(", file.read_text(), re.M), (path, function)


def test_readme_and_operations_point_to_the_failures_page() -> None:
    assert "(docs/failures.md)" in (ROOT / "README.md").read_text()
    assert "(failures.md)" in (ROOT / "docs" / "operations.md").read_text()

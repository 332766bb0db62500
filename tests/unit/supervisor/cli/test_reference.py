"""The generated end of the page of the command line."""

from __future__ import annotations

from pathlib import Path

from supervisor.cli import reference

ROOT = Path(__file__).parents[4]


def test_the_page_of_the_command_line_is_up_to_date() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    assert reference.page(text) == text, "run `make reference`"

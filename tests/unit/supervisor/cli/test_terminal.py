"""Tables and colors."""

from __future__ import annotations

import os
import pty
import sys
from typing import Any

import pytest

from supervisor.cli import terminal


def test_a_table_is_aligned_and_plain() -> None:
    rows: list[dict[str, Any]] = [{"name": "a", "n": 5, "x": None}, {"name": "long", "n": 1000, "x": True}]
    assert terminal.table(rows, ("name", "n", "x")).split("\n") == [
        "name     n  x",
        "a        5  -",
        "long  1000  true",
    ]
    assert terminal.table([], ["a"]) == "a"


def test_colors_are_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal.paint("x", "red") == "x"
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert terminal.paint("x", "red") == "\x1b[31mx\x1b[0m"
        monkeypatch.setenv("NO_COLOR", "1")
        assert terminal.paint("x", "red") == "x"
    os.close(ours)

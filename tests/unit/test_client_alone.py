"""The client needs httpx and anyio alone, and its distribution has one top-level package."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "packages" / "topics-client"
LONGEST = 2100
"""Lines of code, comments and docstrings: what one sitting can read."""


def test_only_what_the_distribution_asks_for_is_imported() -> None:
    declared = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]
    allowed = {name.partition(">=")[0] for name in declared} | {"topics_client"} | sys.stdlib_module_names
    for path in (PROJECT / "topics_client").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in named} <= allowed, path


def test_the_distribution_has_one_package() -> None:
    tool = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert tool["packages"] == ["topics_client"]
    assert {path.parent.name for path in PROJECT.rglob("*.py")} == {"topics_client"}


def test_it_can_be_read_in_one_sitting() -> None:
    lines = [line for path in (PROJECT / "topics_client").glob("*.py") for line in path.read_text().splitlines()]
    assert sum(bool(line.strip()) for line in lines) <= LONGEST

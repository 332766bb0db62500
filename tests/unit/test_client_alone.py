"""The client needs httpx and anyio alone, the checker of histories msgspec; each is one top-level package."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"
EACH = pytest.mark.parametrize(
    ("project", "package"), [("topics-client", "topics_client"), ("topics-history", "topics_history")]
)
LONGEST = 2200
"""Lines of code, comments and docstrings: what one sitting can read."""


@EACH
def test_only_what_the_distribution_asks_for_is_imported(project: str, package: str) -> None:
    declared = tomllib.loads((PACKAGES / project / "pyproject.toml").read_text())["project"]["dependencies"]
    allowed = {name.partition(">=")[0] for name in declared} | {package} | sys.stdlib_module_names
    for path in (PACKAGES / project / package).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in named} <= allowed, path


@EACH
def test_the_distribution_has_one_package(project: str, package: str) -> None:
    tool = tomllib.loads((PACKAGES / project / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert tool["packages"] == [package]
    assert {path.parent.name for path in (PACKAGES / project).rglob("*.py")} == {package}


def test_the_client_can_be_read_in_one_sitting() -> None:
    lines = [
        line
        for path in (PACKAGES / "topics-client" / "topics_client").glob("*.py")
        for line in path.read_text().splitlines()
    ]
    assert sum(bool(line.strip()) for line in lines) <= LONGEST

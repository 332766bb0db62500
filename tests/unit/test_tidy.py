"""What keeps the code short enough to read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "shardd", "supervisor", "proto", "pyspark_topics", "topics_server", "packages/topics-client")
LONGEST = 60
"""Lines of a function, its docstring among them."""


def too_long(source: str) -> list[str]:
    return [
        f"{node.name}: {lines} lines"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > LONGEST
    ]


def test_a_function_that_is_too_long_is_found() -> None:
    body = "    pass\n" * (LONGEST - 1)
    assert too_long(f"class C:\n  def f():\n{body}  async def g():\n{body}    pass\n") == [f"g: {LONGEST + 1} lines"]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_is_too_long(package: str) -> None:
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths
    assert not [f"{path.relative_to(ROOT)}: {each}" for path in paths for each in too_long(path.read_text())]

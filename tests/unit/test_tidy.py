"""What keeps the code short enough to read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "gateway",
    "shardd",
    "supervisor",
    "proto",
    "pyspark_topics",
    "topics_server",
    "packages/topics-client",
    "packages/topics-history",
)
LONGEST = 60
"""Lines of a function, its docstring among them."""
LARGEST = 450
"""Lines of a module."""
LARGE = {
    "gateway/streams/stream.py",
    "proto/api/answers.py",
    "proto/ipc/operations.py",
    "shardd/replication/protocol.py",
    "gateway/server/http2_server.py",
}
"""Modules that are larger, each with its reason in CONTRIBUTING.md. The list only shrinks."""
BASES = {"gateway": "GatewayError", "proto": "ProtoError", "shardd": "ShardError", "supervisor": "SupervisorError"}


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


def test_no_other_module_is_too_large_and_each_that_is_has_its_reason() -> None:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    large = {str(path.relative_to(ROOT)) for path in paths if len(path.read_text().splitlines()) > LARGEST}
    assert large <= LARGE
    reasons = (ROOT / "CONTRIBUTING.md").read_text()
    assert [each for each in sorted(LARGE) if f"`{each}`" not in reasons] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_class_is_named_state_or_event_alone(package: str) -> None:
    """`Subscription.state` is one, and so is a `SubscriptionState`."""
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name in ("State", "Event")
    ]
    assert not found


@pytest.mark.parametrize(("package", "base"), BASES.items())
def test_every_error_of_a_package_has_its_base(package: str, base: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and node.name != base
        and any(isinstance(each, ast.Name) and each.id == "Exception" for each in node.bases)
    ]
    assert not found

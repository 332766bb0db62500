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
LONGEST = 50
"""Lines of a function, its docstring among them."""
LARGEST = 450
"""Lines of a module."""
LARGE = {"proto/api/answers.py", "proto/ipc/operations.py"}
"""Modules that are larger, each with its reason in CONTRIBUTING.md. The list only shrinks."""
WIDEST = 25
"""Attributes of a class: its fields, and what its methods set on `self`."""
WIDE = {
    "proto/ipc/control.py: Start",
    "proto/ipc/figures.py: ShardFigures",
    "proto/model/limits.py: Limits",
}
"""Classes with more, each with its reason in CONTRIBUTING.md. The list only shrinks."""
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


def attributes(node: ast.ClassDef) -> set[str]:
    fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    fields += [target for each in node.body if isinstance(each, ast.Assign) for target in each.targets]
    stored = [each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)]
    return {each.id for each in fields if isinstance(each, ast.Name)} | {
        each.attr for each in stored if isinstance(each.value, ast.Name) and each.value.id == "self"
    }


def test_attributes_of_a_class_are_its_fields_and_what_it_sets_on_itself() -> None:
    (node,) = ast.parse(
        "class C:\n  a: int\n  b = 1\n  def f(self, other):\n    self.c = self.d = other.e = self.g.h = 1\n"
    ).body
    assert isinstance(node, ast.ClassDef)
    assert attributes(node) == {"a", "b", "c", "d"}


def test_no_other_class_is_too_wide_and_each_that_is_has_its_reason() -> None:
    wide = {
        f"{path.relative_to(ROOT)}: {node.name}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and len(attributes(node)) > WIDEST
    }
    assert wide == WIDE
    reasons = (ROOT / "CONTRIBUTING.md").read_text()
    assert [each for each in WIDE if f"`{each.partition(': ')[2]}`" not in reasons] == []


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

"""The assembly: what is bound after a part was made is in its table, with the reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from shardd import assembly

SHARDD = Path(assembly.__file__).parent
MOST = 8
OUTSIDE = {"offline", "process", "replication", "standby"}
"""Folders with no part of a shard."""
_ROW = re.compile(r"^    (\w+)\.(\w+) {2,}\S", re.MULTILINE)


def bound_later(source: str) -> set[tuple[str, str]]:
    """Class and name of each public attribute that is a callable until another one takes its place. A dictionary of
    callables is not."""
    return {
        (of.name, node.target.attr)
        for of in ast.walk(ast.parse(source))
        if isinstance(of, ast.ClassDef)
        for node in ast.walk(of)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)
        if not node.target.attr.startswith("_") and ast.unparse(node.annotation).startswith("Callable[")
    }


def test_every_callable_that_is_bound_later_is_in_the_table_with_its_reason() -> None:
    paths = [path for path in SHARDD.rglob("*.py") if path.relative_to(SHARDD).parts[0] not in OUTSIDE]
    found = {each for path in paths for each in bound_later(path.read_text())}
    assert found == set(_ROW.findall(assembly.__doc__ or ""))
    assert len(found) <= MOST


def test_such_a_callable_is_found() -> None:
    source = "class A:\n    def __init__(self) -> None:\n        self.told: Callable[[], None] = nothing\n"
    assert bound_later(source) == {("A", "told")}
    assert not bound_later(source.replace("self.told", "self._told"))
    assert not bound_later(source.replace("Callable[[], None]", "dict[str, Callable[[], None]]"))

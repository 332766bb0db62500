from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from proto.model.durability import BY_NAME, DurabilityName
from proto.model.topic_config import TopicConfig, as_map, from_map

ROOT = Path(__file__).parents[4]
PACKAGES = ("gateway", "proto", "shardd", "supervisor", "topics_server")  # pyspark_topics imports none of these
TABLE = ROOT / "proto" / "model" / "durability.py"

PROMISES = {
    "ephemeral": {"final_when_visible", "reserves_seqs"},
    "memory": {"logged", "lasts"},
    "disk": {"logged", "lasts", "acks_before_sync", "reaches_device", "reserves_seqs", "reserves_per_boot"},
    "fsync": {"logged", "lasts", "acks_synced", "reaches_device", "final_when_visible"},
}


def test_every_name_has_a_row() -> None:
    assert tuple(BY_NAME) == get_args(DurabilityName)


@pytest.mark.parametrize("name", PROMISES)
def test_what_each_class_promises(name: str) -> None:
    promises = {key: value for key, value in vars(BY_NAME[name]).items() if not key.startswith("_")}
    assert all(isinstance(value, bool) for value in promises.values())
    assert {key for key, value in promises.items() if value} == PROMISES[name]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_class_is_its_name_in_the_log_and_in_the_api(name: str) -> None:
    config = TopicConfig(durability=BY_NAME[name])
    assert as_map(config)["durability"] == name
    assert type(as_map(config)["durability"]) is str
    assert from_map(as_map(config)) == config
    assert msgspec.json.decode(msgspec.json.encode(config))["durability"] == name


def is_class(node: ast.expr) -> bool:
    """A class by its name or as a member, or some of them."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(is_class, node.elts))
    if isinstance(node, ast.Constant):
        return node.value in BY_NAME
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Durability"


def compared(tree: ast.AST) -> set[int]:
    """Lines that compare something with a durability class. `"disk" in fields` asks for a key, and is none."""
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.MatchValue) and is_class(node.value):
            lines.add(node.lineno)
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for left, op, right in zip(operands, node.ops, node.comparators, strict=False):
                if is_class(right) or (is_class(left) and not isinstance(op, ast.In | ast.NotIn)):
                    lines.add(node.lineno)
    return lines


@pytest.mark.parametrize(
    "line",
    [
        'x == "disk"',
        '"fsync" != x',
        'x in ("memory", "disk")',
        "x is Durability.DISK",
        "x not in {Durability.MEMORY}",
        'match x:\n    case "disk": pass',
    ],
)
def test_a_comparison_is_seen(line: str) -> None:
    assert compared(ast.parse(line))


@pytest.mark.parametrize("package", PACKAGES)
def test_code_asks_what_a_class_promises_and_compares_none(package: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if path != TABLE
        for line in compared(ast.parse(path.read_text()))
    }
    assert not found

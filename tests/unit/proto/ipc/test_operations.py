"""Claims about operations: each is a Struct of `proto.ipc.operations`, is in its table, and a shard executes it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_type_hints

import pytest

from proto.ipc.figures import ShardFigures
from proto.ipc.operations import BY_NAME, NAMES, NEED_RECORDS, TABLE, Answer, Operation, Ping, Row
from tests.support.harness import Harness

ROOT = Path(__file__).parents[4]
STORED = {"RouterPut.config", "Graph.routers", "SessionMake.options", "SessionFound.options"}
"""Fields that are maps, because the shard stores them and reads nothing of them."""
SENT = {"options", "extra"}
ASKING = {"ask", "ask_all", "call", "request", "Request"}


def test_names_are_told_apart() -> None:
    assert len(BY_NAME) == len(NAMES) == len(TABLE)


def test_everything_that_is_sent_is_in_the_table() -> None:
    def named(base: type) -> set[type]:
        every = {each for sub in base.__subclasses__() for each in {sub, *named(sub)}}
        return {each for each in every if each.__struct_config__.tag is not None}

    assert named(Operation) == {row.request for row in TABLE}
    assert named(Answer) == {row.answer for row in TABLE if row.answer is not None}


def test_the_shard_has_a_handler_for_every_operation_of_the_table() -> None:
    shard = Harness().shard
    assert shard._waiting_operations.keys() == {row.request for row in TABLE if row.waits}
    assert shard._operations.keys() | {BY_NAME["ping"].request} == {row.request for row in TABLE if not row.waits}


def test_a_row_says_whether_a_topic_without_its_records_refuses_the_operation() -> None:
    with pytest.raises(TypeError, match="records"):
        Row(Ping)  # type: ignore[call-arg]
    assert {each.__struct_config__.tag for each in NEED_RECORDS} >= {"append", "diff", "claim", "cursor_put"}
    assert not {each.__struct_config__.tag for each in NEED_RECORDS} & {"state", "delete_topic", "stats", "ping"}


@pytest.mark.parametrize("package", ["gateway", "shardd", "proto", "supervisor"])
def test_nothing_is_sent_as_a_map_or_by_its_bare_name(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if _is_map(node) or _is_bare(node) or _is_map_by_name(node)
    ]
    assert not found


def test_the_types_of_what_is_sent_are_exact() -> None:
    every = {each for row in TABLE for each in (row.request, row.answer) if each is not None}
    shapes = {f"{each.__name__}.{name}": str(kind) for each in every for name, kind in get_type_hints(each).items()}
    shapes |= {f"ShardFigures.{name}": str(kind) for name, kind in get_type_hints(ShardFigures).items()}
    assert {name for name, kind in shapes.items() if "typing.Any" in kind} == STORED


@pytest.mark.parametrize("sent", ["Reply(1, extra=found)", "Request(1, options=found)"])
@pytest.mark.parametrize("made", ["found = {}", "found: dict[str, Any] = {}", "found = {n: 1 for n in names}"])
def test_a_map_that_is_sent_by_its_name_is_found(sent: str, made: str) -> None:
    (function,) = ast.parse(f"def send():\n    {made}\n    respond({sent})").body
    assert _is_map_by_name(function)
    assert not _is_map_by_name(
        *ast.parse("def send():\n    found = ShardFigures()\n    respond(Reply(1, extra=found))").body
    )


def _is_map(node: ast.AST) -> bool:
    """`Reply(…, extra={…})`, `reply.extra = {…}`, and the same with `options`."""
    if isinstance(node, ast.Call):
        return any(each.arg in SENT and isinstance(each.value, ast.Dict) for each in node.keywords)
    if isinstance(node, ast.Assign):
        names = {target.attr for target in node.targets if isinstance(target, ast.Attribute)}
        return bool(names & SENT) and isinstance(node.value, ast.Dict)
    return False


def _is_map_by_name(node: ast.AST) -> bool:
    """A function that makes a map, `found = {…}`, and sends it: `Reply(…, extra=found)`."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    maps: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Assign | ast.AnnAssign) and isinstance(each.value, ast.Dict | ast.DictComp):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            maps |= {target.id for target in targets if isinstance(target, ast.Name)}
    for call in ast.walk(node):
        if not isinstance(call, ast.Call):
            continue
        values = [keyword.value for keyword in call.keywords if keyword.arg in SENT]
        if any(isinstance(value, ast.Name) and value.id in maps for value in values):
            return True
    return False


def _is_bare(node: ast.AST) -> bool:
    """`shards.call("append", …)`"""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in ASKING and any(
        (isinstance(each, ast.Constant) and each.value in BY_NAME) or isinstance(each, ast.Dict)
        for each in node.args[:3]
    )

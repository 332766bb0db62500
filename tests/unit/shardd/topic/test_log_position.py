"""Claims about the position of a topic's writes, and that records and position alone write their fields."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from shardd.topic.log_position import LogPosition
from shardd.topic.records import Records

ROOT = Path(__file__).parents[4] / "shardd"
OWNERS = ("topic/records.py", "topic/log_position.py")
FIELDS = {*vars(Records(1)), *vars(LogPosition())}


def foreign_writes(source: str) -> list[str]:
    """Assignments to a field of `records` or `position` of something."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and node.attr in FIELDS
        if ast.unparse(node.value).rpartition(".")[2] in ("records", "position")
    ]


def test_a_write_of_another_module_is_found() -> None:
    assert foreign_writes("topic.records.floor, x = 1, 2") == ["topic.records.floor"]
    assert foreign_writes("self.topic.position.next_seq += 1") == ["self.topic.position.next_seq"]
    assert not foreign_writes("topic.config = topic.records.floor")


def test_only_records_and_position_write_their_fields() -> None:
    paths = [path for path in ROOT.rglob("*.py") if str(path.relative_to(ROOT)) not in OWNERS]
    assert not [f"{path}: {each}" for path in paths for each in foreign_writes(path.read_text())]


def test_seqs_are_taken_in_order_and_given_back_newest_first() -> None:
    position = LogPosition()
    assert [position.take(3), position.take(2)] == [1, 4]
    position.give_back(4)
    position.give_back(1)
    assert position.take(1) == 1
    with pytest.raises(AssertionError, match="later writes"):
        position.give_back(9)


def test_used_seqs_and_synced_records_never_become_fewer() -> None:
    position = LogPosition()
    position.used(2**64)
    position.used(5)
    assert position.next_seq == 2**64 + 1
    position.on_device(7)
    position.on_device(3)
    assert position.durable_head == 7


def test_commit_times_never_decrease_and_keep_ahead_of_a_clock_that_was_set_back() -> None:
    position = LogPosition()
    assert position.commit_time(1000) == 1000
    position.clock_set(400)
    assert [position.commit_time(400), position.commit_time(500)] == [1000, 1100]
    assert position.clock_jumped(650) == 50
    assert [position.commit_time(1049), position.commit_time(1200)] == [1100, 1200]


def test_a_reservation_keeps_the_size_of_its_block_when_it_is_undone() -> None:
    position = LogPosition()
    position.reserve(64, "", 64)
    position.reserve(0, "")
    assert (position.ceiling, position.block) == (0, 64), "the next one is larger all the same"

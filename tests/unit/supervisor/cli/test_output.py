"""What is printed: exact numbers, tables, records, and the generated reference."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from supervisor.cli import exact, reference, terminal
from supervisor.cli.commands.reading import Printer, chosen
from topics_client import Gap, Record, TopicDeleted

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    "text",
    ["9.90", "123456789012345678901234567890", '{"b":1,"a":[1.0,-0.50]}', '"ä\\u0000"', "1E+400", '"\\ud800"', "null"],
)
def test_json_is_printed_with_its_digits_and_order(text: str) -> None:
    assert exact.dumps(exact.loads(text)) == text


def test_a_table_is_aligned_and_plain() -> None:
    rows: list[dict[str, Any]] = [{"name": "a", "n": 5, "x": None}, {"name": "long", "n": 1000, "x": True}]
    assert terminal.table(rows, {"name": "name", "n": "n", "x": "x"}).split("\n") == [
        "name     n  x",
        "a        5  -",
        "long  1000  true",
    ]
    assert terminal.table([], {"a": "a"}) == "a"


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


@pytest.mark.parametrize(
    ("tag", "grep", "where", "taken"),
    [
        (None, None, [], True),
        ("customer:*", None, [], True),
        ("customer:7", None, [], False),
        (None, '"total":9\\.90', [], True),
        (None, "nothing", [], False),
        (None, None, ["customer.id=42"], True),
        (None, None, ["total=9.90"], True),
        (None, None, ["total=9.9"], False),
        (None, None, ["items.1=b"], True),
        (None, None, ["items.9=b"], False),
        (None, None, ["customer.id=42", "ok=false"], False),
    ],
)
def test_a_record_is_chosen_by_all_conditions(tag: str | None, grep: str | None, where: list[str], taken: bool) -> None:
    data = exact.loads('{"customer":{"id":42},"total":9.90,"items":["a","b"],"ok":true}')
    assert chosen(tag, grep, where)(Record("t", 1, 1, data, "customer:42")) is taken


@pytest.mark.parametrize(("grep", "where"), [("(", None), (None, ["id"]), (None, ["=1"])])
def test_a_wrong_condition_is_a_usage_error(grep: str | None, where: list[str] | None) -> None:
    with pytest.raises(typer.BadParameter):
        chosen(None, grep, where)


def test_items_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    items = [Record("t", 7, 1000, {"a": 1}, "x"), Gap("t", 8, 9, "cap", 10), TopicDeleted("t", 9)]
    printer = Printer(chosen(None, None, None), as_json=True, data_only=False, several=False)
    for item in items:
        assert printer.item(item)
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        '{"topic":"t","seq":7,"ts":1000,"tag":"x","data":{"a":1}}',
        '{"topic":"t","gap":{"first_seq":8,"last_seq":9,"reason":"cap"}}',
    ]
    assert told.err.splitlines() == ["topics: t: records 8 to 9 are lost (cap)", "topics: t was deleted"]
    assert printer.gaps == 1
    Printer(chosen(None, None, None), as_json=False, data_only=True, several=False).item(items[0])
    assert capsys.readouterr().out == '{"a":1}\n'


def test_the_page_of_the_command_line_is_up_to_date() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    assert reference.page(text) == text, "run `make reference`"

"""What is printed: exact numbers, tables, records, and the generated reference."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from supervisor.cli import exact, reference, terminal, top_view
from supervisor.cli.commands import status, work
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


BAD = "x\x1b]0;pwned\x07\r\ntopics: forged\u2028\x9b2J\x7f\u202e\x85"


def harmless(printed: str) -> bool:
    return not any(ord(each) < 32 or each in "\x7f\x85\x9b\u2028\u202e" for each in printed.replace("\n", ""))


@pytest.mark.parametrize(("as_json", "several"), [(True, False), (False, False), (False, True)])
def test_no_record_forges_a_line_or_moves_the_cursor(
    as_json: bool, several: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    printer = Printer(chosen(None, None, None), as_json=as_json, data_only=False, several=several)
    printer.item(Record(BAD, 7, 1000, {BAD: BAD}, BAD, BAD))
    printer.item(Gap(BAD, 8, 9, BAD, 10))
    told = capsys.readouterr()
    lines = told.out.split("\n")
    assert (len(lines), harmless(told.out)) == (3 if as_json else 2, True)
    assert harmless(told.err)
    assert told.err.count("\n") == 1
    if as_json:
        assert exact.loads(lines[0])["data"] == {BAD: BAD}


def test_no_cell_error_or_figure_does(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.tell(terminal.table([{"a": BAD, "b": 1}], {"a": "a", "b": "b"}))
    terminal.say({BAD: BAD})
    terminal.complain(BAD)
    with pytest.raises(typer.Exit):
        terminal.fail(BAD, terminal.Status.FAILED)
    told = capsys.readouterr()
    assert (told.out.count("\n"), told.err.count("\n")) == (3, 2)
    assert harmless(told.out + told.err)


def test_no_status_of_a_service_does(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"topic": BAD + "[red]", "records_per_s": 1.0, "records": 1, "bytes": 1, "head_seq": 1}]
    rows[0] |= {"earliest_seq": 1, "lag": None, "queue_ready": None}
    status._drawing().print(top_view.rendered(terminal.clean(rows)))
    told = capsys.readouterr().out
    assert harmless(told)
    assert "forged" in told


def test_only_one_module_prints() -> None:
    """In the others, `tell` does."""
    prints = re.compile(r"typer\.echo\(|\bprint\(|sys\.stdout\.write|sys\.stderr\.write|stdout\.buffer\.write")
    known = {"terminal.py", "main.py", "completion.py", "config.py", "reference.py"}
    for path in (ROOT / "supervisor" / "cli").rglob("*.py"):
        text = path.read_text().replace("on.print(", "").replace("def print(", "").replace("_drawing().print(", "")
        assert path.name in known or not prints.search(text), path


def test_a_job_whose_tag_no_environment_can_hold_is_run() -> None:
    job: Any = SimpleNamespace(queue="q", seq=1, ts=1, deliveries=1, tag="a\0b\ud800\udc80c\n")
    told = work.environment(job)
    assert told["JOB_TAG"] == "a\\u0000b\\ud800\\udc80c\n"
    assert subprocess.run(["/bin/sh", "-c", 'printf %s "$JOB_TAG"'], env=told, capture_output=True, check=True)

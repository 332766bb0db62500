"""What is printed: exact numbers, tables, records, and the generated reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from supervisor.cli import exact, terminal
from supervisor.cli.commands.reading import Printer, chosen
from topics_client import Gap, Record

ROOT = Path(__file__).parents[3]


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
    terminal.tell(terminal.table([{"a": BAD, "b": 1}], ("a", "b")))
    terminal.say({BAD: BAD})
    terminal.complain(BAD)
    with pytest.raises(typer.Exit):
        terminal.fail(BAD, terminal.Status.FAILED)
    told = capsys.readouterr()
    assert (told.out.count("\n"), told.err.count("\n")) == (3, 2)
    assert harmless(told.out + told.err)


def test_only_one_module_prints() -> None:
    """In the others, `tell` does."""
    prints = re.compile(r"typer\.echo\(|\bprint\(|sys\.stdout\.write|sys\.stderr\.write|stdout\.buffer\.write")
    known = {"terminal.py", "main.py", "completion.py", "config.py", "reference.py"}
    for path in (ROOT / "supervisor" / "cli").rglob("*.py"):
        text = path.read_text().replace("on.print(", "").replace("def print(", "").replace("_drawing().print(", "")
        assert path.name in known or not prints.search(text), path

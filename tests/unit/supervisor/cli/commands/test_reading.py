"""Which records a command prints, and as which lines."""

from __future__ import annotations

import pytest
import typer

from supervisor.cli import exact
from supervisor.cli.commands.reading import Printer, chosen
from topics_client import Gap, Record, TopicDeleted


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
        (None, None, ["customer.id = 42"], True),
        (None, None, ["customer.id == 42"], True),
        (None, None, ["items.1= b"], False),
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

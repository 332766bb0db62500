"""Arguments and lines of `topics publish`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import typer

from supervisor.cli.commands.publish import _publish_lines, _record, parsed
from supervisor.cli.commands.work import environment
from topics_client import Job, Json


@pytest.mark.parametrize(
    ("given", "text", "data"),
    [
        ('{"total": 9.90}', False, Json(b'{"total": 9.90}')),
        ("42", False, Json(b"42")),
        ("hello world", False, "hello world"),
        ("42", True, "42"),
        ("{", True, "{"),
    ],
)
def test_an_argument_is_json_or_else_text(given: str, text: bool, data: object) -> None:
    found = parsed(given, text=text)
    assert (found, type(found)) == (data, type(data))


@pytest.mark.parametrize("given", ['{"a":', "[1", '"x', "  {"])
def test_an_argument_that_begins_as_json_must_be_json(given: str) -> None:
    with pytest.raises(typer.Exit):
        parsed(given, text=False)


def test_a_line_is_data_or_text_or_a_record() -> None:
    assert _record(b'{"a":1.0}\r', records=False, text=False) == {"data": b'{"a":1.0}'}
    assert _record("ä{".encode(), records=False, text=True) == {"data": "ä{"}
    line = b'{"topic":"t","seq":1,"ts":2,"tag":"x","data":{"n":1.50},"meta":{"m":1}}'
    told = {"data": b'{"n":1.50}', "tag": "x", "meta": b'{"m":1}'}
    assert _record(line, records=True, text=False) == told
    gap = b'{"topic":"t","gap":{"first_seq":1,"last_seq":5,"reason":"cap"}}'
    assert _record(gap, records=True, text=False) == {}
    for wrong in (b"[]", b'{"tag":"x"}', b'{"data":1,"tag":5}'):
        with pytest.raises(msgspec.DecodeError):
            _record(wrong, records=True, text=False)


async def test_a_gap_among_the_lines_is_passed_over_and_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "lines"
    lines.write_text('{"topic":"t","gap":{"first_seq":1,"last_seq":5}}\n{"seq":6,"data":1,"gap":2}\n{"data":null}\n')
    sent: list[Any] = []

    class Kept:
        topic, done, published = "copy", None, 0

        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None: ...

        async def send(self, **fields: Any) -> None:
            sent.append(fields)

    told: list[Any] = []
    on = SimpleNamespace(as_json=True, print=lambda *args: told.append(args))
    with lines.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        await _publish_lines(on, Kept(), lambda line: _record(line, records=True, text=False), {"tag": "x"})  # type: ignore[arg-type]
    assert sent == [{"data": b"1", "tag": "x"}, {"data": b"null", "tag": "x"}]
    assert capsys.readouterr().err == "topics: line 1 is a gap, and is passed over\n"


def test_the_environment_of_a_job_says_which_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "kept")
    told = environment(Job("mail", 7, 1000, {"a": 1}, "lease", 2000, 3, tag="x"))
    assert told["MINE"] == "kept"
    assert {name: value for name, value in told.items() if name.startswith("JOB_")} == {
        "JOB_QUEUE": "mail",
        "JOB_SEQ": "7",
        "JOB_TS": "1000",
        "JOB_TAG": "x",
        "JOB_DELIVERIES": "3",
    }

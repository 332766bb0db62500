"""Arguments and lines of `topics publish`."""

from __future__ import annotations

import msgspec
import pytest
import typer

from supervisor.cli.commands.publish import _record, parsed
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
    for wrong in (b"[]", b'{"tag":"x"}', b'{"data":1,"tag":5}'):
        with pytest.raises(msgspec.DecodeError):
            _record(wrong, records=True, text=False)


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

"""Output of the command and of the log on a terminal."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
from collections.abc import Iterator

import pytest
import structlog
from typer.testing import CliRunner

import proto
from proto.process import log
from supervisor.cli.main import app


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()


def test_the_version_is_that_of_the_release() -> None:
    assert CliRunner().invoke(app, ["version"]).stdout == f"topics {proto.__version__}\n"


def test_help_names_every_option_with_its_variable() -> None:
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).stdout
    for option, variable in (("--host", "TOPICS_HOST"), ("--port", "TOPICS_PORT"), ("--shards", "TOPICS_SHARDS")):
        assert option in shown
        assert variable in shown


def test_an_unreadable_option_is_a_usage_error() -> None:
    assert CliRunner().invoke(app, ["serve", "--port", "http"]).exit_code == 2


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("logfmt", 'level=info event=child_died process=supervisor status="exit status 9"'),
        ("journal", '"<6>level=info" event=child_died process=supervisor status="exit status 9"'),
        ("json", {"level": "info", "event": "child_died", "process": "supervisor", "status": "exit status 9"}),
    ],
)
def test_a_log_line_is_an_event_name_and_fields(
    monkeypatch: pytest.MonkeyPatch, form: str, line: str | dict[str, str]
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    log.configure("supervisor", "info", form).info("child_died", status="exit status 9")
    written = stream.getvalue()
    if isinstance(line, str):
        assert set(shlex.split(line)) <= set(shlex.split(written))
    else:
        assert line.items() <= json.loads(written).items()


def test_a_terminal_that_went_away_does_not_end_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logger = log.configure("supervisor", "info", "logfmt")
    stream.close()
    logger.info("nobody_hears_this")


def test_the_level_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    log.configure("supervisor", "error", "logfmt").warning("quiet")
    assert stream.getvalue() == ""


def test_the_journal_is_known_by_what_systemd_says_of_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
    assert log.chosen_format("auto") == "journal"
    monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino + 1}")
    assert log.chosen_format("auto") in ("console", "logfmt")
    assert log.chosen_format("json") == "json"

"""Lines of the log, for people and for the journal."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
from collections.abc import Iterator

import pytest
import structlog

from proto.process import log


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()


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

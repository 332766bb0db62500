"""Output of the command and of the log on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from typer.testing import CliRunner

import proto
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

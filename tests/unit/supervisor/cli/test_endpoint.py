"""Which service and key a command uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from supervisor.cli.endpoint import Endpoint, resolve
from supervisor.cli.main import app


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.upper().startswith("TOPICS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("TOPICS_RUNTIME_DIR", str(tmp_path / "nothing-runs"))
    return tmp_path


def topics(*arguments: str, status: int = 0, given: str | None = None) -> str:
    done = CliRunner().invoke(app, list(arguments), input=given)
    assert done.exit_code == status, done.output
    return done.output


def at(url: str | None = None, token: str | None = None, context: str | None = None) -> tuple[str, str | None]:
    found: Endpoint = resolve(url, token, context)
    return found.url, found.token


def test_a_context_is_chosen_by_option_then_variable_then_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        topics("context", "add", name, f"http://{name}.example")
    monkeypatch.setenv("TOPICS_CONTEXT", "b")
    assert at()[0] == "http://b.example"
    assert at(context="c")[0] == "http://c.example"
    monkeypatch.setenv("TOPICS_URL", "http://variable.example")
    assert at()[0] == "http://variable.example"
    assert at(context="c")[0] == "http://c.example"
    assert at(url="http://option.example")[0] == "http://option.example"
    with pytest.raises(typer.Exit):
        at(url="http://option.example", context="c")


def test_the_key_of_a_context_goes_to_its_url_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    topics("context", "add", "prod", "https://prod.example", "--token", given="s3cret\n")
    assert at(url="http://other.example")[1] is None
    monkeypatch.setenv("TOPICS_TOKEN", "variable")
    assert at()[1] == "s3cret"
    assert at(token="option")[1] == "option"
    monkeypatch.setenv("TOPICS_URL", "http://other.example")
    assert at()[1] == "variable"


def test_a_token_of_the_environment_goes_to_the_service_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOPICS_TOKEN", "variable")
    assert at(url="http://a.example")[1] == "variable"  # no variable says whose it is
    monkeypatch.setenv("TOPICS_URL", "http://a.example/")
    same = ("http://a.example", "HTTP://A.example:80/behind/a/proxy")
    others = (
        "https://a.example",
        "http://a.example:81",
        "http://b.example",
        "http://a.example@b.example",
        "http://[::1]",
    )
    assert [at(url=url)[1] for url in same] == ["variable"] * len(same)
    assert [at(url=url)[1] for url in others] == [None] * len(others)
    assert at(url="http://b.example", token="option")[1] == "option"
    topics("context", "add", "b", "http://b.example")
    topics("context", "add", "c", "http://c.example", "--token", given="s3cret\n")
    assert (at(context="b")[1], at(context="c")[1]) == (None, "s3cret")
    assert (at(token="")[1], at(context="c", token="")[1]) == (None, None)
    assert at(token="")[0] == "http://a.example/"
    for nonsense in ("b.example", "http://b.example:x", "ftp://b.example"):
        with pytest.raises(typer.Exit):
            at(url=nonsense)


def test_a_service_of_this_machine_gets_no_token_of_another_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_TOKEN", "variable")
    monkeypatch.setenv("TOPICS_URL", "http://a.example")
    here = {"url": "http://127.0.0.1:4000"}
    monkeypatch.setattr("supervisor.cli.endpoint.rundir.status", lambda *_: here)
    assert resolve("http://127.0.0.1:4000", None) == Endpoint("http://127.0.0.1:4000", None, here)
    monkeypatch.delenv("TOPICS_URL")
    without = resolve("http://127.0.0.1:4000", "")
    assert (without.token, without.again().token) == (None, None)

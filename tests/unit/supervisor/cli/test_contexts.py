"""Contexts, and which service and key a command uses."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from supervisor.cli import contexts
from supervisor.cli.contexts import Context, ContextError, Contexts
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


def test_the_file_is_for_its_user_only_and_the_first_context_is_in_use(home: Path) -> None:
    topics("context", "add", "prod", "https://prod.example/", "--token", given="s3cret\n")
    topics("context", "add", "test", "http://test.example")
    file = home / "topics" / "contexts.json"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [path.name for path in file.parent.iterdir()] == ["contexts.json"]
    assert at() == ("https://prod.example", "s3cret")
    topics("context", "use", "test")
    assert at() == ("http://test.example", None)
    told = topics("context", "ls")
    assert "s3cret" not in told
    assert [line.split() for line in told.splitlines()[1:]] == [
        ["prod", "https://prod.example", "here"],
        ["*", "test", "http://test.example", "none"],
    ]
    assert json.loads(topics("context", "ls", "--json").splitlines()[0])["token"] == "here"


def test_a_file_with_a_key_that_others_may_read_is_refused(home: Path) -> None:
    key = home / "key"
    key.write_text("s3cret\n")
    key.chmod(0o640)
    told = topics("context", "add", "prod", "https://prod.example", "--token-file", str(key), status=1)
    assert f"chmod 600 {key}" in told
    key.chmod(0o600)
    topics("context", "add", "prod", "https://prod.example", "--token-file", str(key))
    assert at()[1] == "s3cret"
    key.write_text("\n")
    with pytest.raises(ContextError, match="no token"):
        contexts.read_token(key)
    (home / "topics" / "contexts.json").chmod(0o644)
    assert "chmod 600" in topics("context", "ls", status=1)


def test_a_damaged_file_and_an_unknown_context_are_told(home: Path) -> None:
    assert "there is no context 'x'; known: none" in topics("context", "use", "x", status=1)
    contexts.store(home / "f", Contexts("a", {"a": Context("http://a")}))
    assert contexts.load(home / "f").find("a").place == "none"
    (home / "f").write_text("[]")
    with pytest.raises(ContextError, match="not a file of contexts"):
        contexts.load(home / "f")
    assert "no URL" in topics("context", "add", "a", "nonsense", status=2)
    assert "no token on standard input" in topics("context", "add", "a", "http://a", "--token", status=2, given="\n")


def test_the_keyring_keeps_the_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[tuple[str, str], str] = {}
    ring = ModuleType("keyring")
    ring.set_password = lambda *place: kept.update({place[:2]: place[2]})  # type: ignore[attr-defined]
    ring.get_password = lambda *place: kept.get(place)  # type: ignore[attr-defined]
    ring.delete_password = lambda *place: kept.pop(place)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", None)
    told = topics("context", "add", "prod", "https://prod.example", "--keyring", status=1, given="s3cret\n")
    assert "pip install keyring" in told
    monkeypatch.setitem(sys.modules, "keyring", ring)
    topics("context", "add", "prod", "https://prod.example", "--keyring", given="s3cret\n")
    assert kept == {("topics", "prod"): "s3cret"}
    assert "s3cret" not in (home / "topics" / "contexts.json").read_text()
    assert at()[1] == "s3cret"
    topics("context", "rm", "prod")
    assert kept == {}


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file to another user")
def test_contexts_of_another_user_are_refused(home: Path) -> None:
    topics("context", "add", "prod", "https://prod.example")
    os.chown(home / "topics" / "contexts.json", 65534, 65534)
    assert "belongs to user 65534" in topics("ls", status=2)

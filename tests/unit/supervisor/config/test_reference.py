"""topics.toml, `topics config`, and the reference generated from the settings."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from supervisor.cli.main import app
from supervisor.config import reference, settings
from supervisor.config.settings import SETTINGS, SettingsError

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.upper().startswith("TOPICS_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_options_win_over_variables_and_those_over_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "topics.toml").write_text('host = "::1"\nport = 4001\nshards = 2\nmax_topics = "oh"\n')
    monkeypatch.setenv("TOPICS_PORT", "4002")
    monkeypatch.setenv("TOPICS_SHARDS", "3")
    monkeypatch.setenv("TOPICS_MAX_TOPICS", "7")
    found = settings.inspect({"shards": 4})
    assert (found.settings.host, found.settings.port, found.settings.shards) == ("::1", 4002, 4)
    assert {name: found.origin[name] for name in ("host", "port", "shards", "max_limit")} == {
        "host": "topics.toml",
        "port": "TOPICS_PORT",
        "shards": "--shards",
        "max_limit": "default",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port = 70000", r"topics\.toml: port=70000: .*at most 65535"),
        ("prot = 1", r"topics\.toml: prot: there is no such setting; did you mean port\?"),
        (
            'api_keys = "s3cret"',
            r"topics\.toml: api_keys: keys are given by TOPICS_API_KEYS_FILE or TOPICS_API_KEYS only",
        ),
        ("port = ", r"topics\.toml: "),
    ],
)
def test_a_wrong_file_is_refused_by_name(folder: Path, text: str, said: str) -> None:
    (folder / "topics.toml").write_text(text)
    with pytest.raises(SettingsError, match=said) as caught:
        settings.load()
    assert "s3cret" not in str(caught.value)
    assert CliRunner().invoke(app, ["config"]).exit_code == 2


def test_a_file_that_was_named_must_be_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_CONFIG", str(folder / "gone.toml"))
    with pytest.raises(SettingsError, match=r"TOPICS_CONFIG=.*gone\.toml"):
        settings.load()
    (folder / "gone.toml").write_text("port = 4003")
    assert settings.load().port == 4003


def test_what_is_printed_is_what_is_in_effect_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_API_KEYS", "s3cret")
    monkeypatch.setenv("TOPICS_PORT", "4002")
    text = CliRunner().invoke(app, ["config"]).stdout
    assert "TOPICS_PORT=4002  # TOPICS_PORT\n" in text
    assert "TOPICS_HOST=127.0.0.1\n" in text
    shown = CliRunner().invoke(app, ["config", "--json"]).stdout
    found = json.loads(shown)
    assert set(found["settings"]) == set(SETTINGS)
    assert found["settings"]["port"] == {"value": 4002, "from": "TOPICS_PORT"}
    assert found["keys"] == "from TOPICS_API_KEYS"
    assert "s3cret" not in text + shown


def test_the_reference_in_the_docs_is_in_step() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert reference.page(text) == text, "run `make reference`"


def test_every_setting_says_what_it_means() -> None:
    assert [name for name, each in SETTINGS.items() if not each.meta.description] == []


def test_what_is_wrong_does_not_stop_topics_config_from_showing_the_rest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "topics.toml").write_text('port = 70000\nprot = 1\nhost = "::1"\n')
    monkeypatch.setenv("TOPICS_SHARDS", "many")
    monkeypatch.setenv("TOPICS_MAX_TOPICS", "7")
    done = CliRunner().invoke(app, ["config"])
    assert done.exit_code == 2
    for said in (
        "topics.toml: prot: there is no such setting; did you mean port?",
        "topics.toml: port=70000: ",
        "TOPICS_SHARDS=many: ",
    ):
        assert f"topics: {said}" in done.stderr
    for line in ("TOPICS_HOST=::1  # topics.toml", "TOPICS_MAX_TOPICS=7  # TOPICS_MAX_TOPICS", "TOPICS_PORT=4000"):
        assert line in done.stdout.splitlines()
    found = json.loads(CliRunner().invoke(app, ["config", "--json"]).stdout)
    assert len(found["errors"]) == 3
    assert found["settings"]["port"] == {"value": 4000, "from": "default"}
    with pytest.raises(SettingsError, match=r"port=70000"):
        settings.load()
    (folder / "topics.toml").write_text("port = ")
    done = CliRunner().invoke(app, ["config"])
    assert "topics: topics.toml: Invalid value" in done.stderr
    assert "TOPICS_MAX_TOPICS=7  # TOPICS_MAX_TOPICS" in done.stdout.splitlines()


def test_the_version_is_an_option_too() -> None:
    version = CliRunner().invoke(app, ["version"]).stdout
    assert version.startswith("topics ")
    for option in ("--version", "-V"):
        done = CliRunner().invoke(app, [option])
        assert (done.exit_code, done.stdout) == (0, version)

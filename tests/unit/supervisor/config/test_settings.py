"""Settings: their sources, and the errors for invalid ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from proto.model.limits import Limits
from supervisor.config import settings
from supervisor.config.settings import SettingsError


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("TOPICS_"):
            monkeypatch.delenv(name)


def test_defaults_are_those_of_the_contract() -> None:
    found = settings.load()
    assert (found.host, found.port, found.data_dir, found.shards) == ("127.0.0.1", 4000, Path("topics-data"), None)


def test_environment_is_read_and_options_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_PORT", "5000")
    monkeypatch.setenv("TOPICS_SHARDS", "3")
    found = settings.load({"port": 6000, "host": None})
    assert (found.port, found.shards, found.host) == (6000, 3, "127.0.0.1")


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_PORT", "")
    assert settings.load().port == 4000


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("TOPICS_PORT", "70000", "at most 65535"),
        ("TOPICS_PORT", "http", "a whole number"),
        ("TOPICS_SHARDS", "0", "at least 1"),
        ("TOPICS_SHARDS", "65", "at most 64"),
        ("TOPICS_LOG_LEVEL", "loud", "`info`"),
        ("TOPICS_MAX_LIMIT", "0", "at least 1"),
    ],
)
def test_a_wrong_value_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        settings.load()
    assert f"{name}={value}" in str(caught.value)
    assert allowed in str(caught.value)


def test_a_wrong_option_is_named_as_option() -> None:
    with pytest.raises(SettingsError, match="--shards=0"):
        settings.load({"shards": 0})


def test_children_get_exactly_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_MAX_LIMIT", "77")
    given = settings.load().limits()
    assert given.max_limit == 77
    assert msgspec.convert(msgspec.to_builtins(given), Limits) == given, "defaults are within the bounds"


def test_unknown_variables_are_found_with_what_was_meant() -> None:
    known = {"TOPICS_PORT": "1", "TOPICS_URL": "x", "TOPICS_TOKEN": "x", "PATH": "/"}
    found = settings.unknown_variables({"TOPICS_PROT": "1", "TOPICS_XYZZY": "", **known})
    assert found == [("TOPICS_PROT", "TOPICS_PORT"), ("TOPICS_XYZZY", "")]


@pytest.mark.slow
def test_wrong_settings_exit_with_2_and_start_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_SHARDS", "many")
    monkeypatch.setenv("TOPICS_DATA_DIR", str(tmp_path / "data"))
    command = [sys.executable, "-m", "supervisor.cli", "serve"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "TOPICS_SHARDS=many" in done.stderr
    assert not (tmp_path / "data").exists()


def test_origins_are_written_as_browsers_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_CORS_ORIGINS", "https://App.example:443, http://localhost:3000/,http://[::1]:80,")
    monkeypatch.setenv("TOPICS_ALLOWED_HOSTS", "topics.example, [::2] ,")
    found = settings.load()
    assert found.origin_list == ["https://app.example", "http://localhost:3000", "http://[::1]"]
    assert found.host_list == ["topics.example", "[::2]"]


@pytest.mark.parametrize(
    "text", ["*", "app.example", "https://app.example/page", "ftp://a", "https://*.example", "null"]
)
def test_what_is_no_origin_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TOPICS_CORS_ORIGINS", f"https://fine.example,{text}")
    with pytest.raises(settings.SettingsError, match=r"TOPICS_CORS_ORIGINS=.*is no origin, scheme://host"):
        settings.load()
    monkeypatch.delenv("TOPICS_CORS_ORIGINS")
    monkeypatch.setenv("TOPICS_ALLOWED_HOSTS", "topics.example:443")
    with pytest.raises(settings.SettingsError, match="without a port"):
        settings.load()


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("port", " 5000 ", 5000),
        ("port", "5_000", 5000),
        ("port", "5000.0", 5000),
        ("wal_sync_window_ms", ".25", 0.25),
        ("wal_sync_window_ms", "1", 1.0),
        ("data_dir", "a b", Path("a b")),
        ("audit_log", "audit", Path("audit")),
        ("host", "1", "1"),
        *((("request_log", text, True)) for text in ("true", "True", "1", "yes", "ON", "y", "t")),
        *((("request_log", text, False)) for text in ("false", "FALSE", "0", "no", "off", "n", "f")),
    ],
)
def test_texts_are_read_as_people_write_them(
    monkeypatch: pytest.MonkeyPatch, name: str, given: str, value: object
) -> None:
    monkeypatch.setenv(f"TOPICS_{name.upper()}", given)
    assert getattr(settings.load(), name) == value


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("wal_sync_window_ms", "nan"),
        ("wal_sync_window_ms", "inf"),
        ("max_topics", str(2**63)),
        ("max_topics", "1e300"),
        ("max_topics", "0.5"),
        ("request_log", "maybe"),
        ("request_log", "2"),
        ("port", "٣x"),
        ("log_level", "INFO "),
    ],
)
def test_what_is_no_value_of_a_setting_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, given: str) -> None:
    monkeypatch.setenv(f"TOPICS_{name.upper()}", given)
    with pytest.raises(SettingsError, match=f"TOPICS_{name.upper()}=.*must be "):
        settings.load()


@pytest.mark.parametrize(
    "line", ["port = true", "host = 5", "data_dir = 5", 'port = ["4000"]', "request_log = 1.5", "audit_log = false"]
)
def test_a_value_of_another_type_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("topics.toml").write_text(line)
    with pytest.raises(SettingsError, match=r"topics\.toml: [a-z_]+=.*: must be "):
        settings.load()

"""Places of a service without the settings: they are those of the settings, or left to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config.places import Places, plain
from supervisor.config.settings import SettingsError, load

CASES: list[dict[str, str]] = [
    {},
    {"TOPICS_DATA_DIR": "/srv/topics"},
    {"TOPICS_DATA_DIR": ""},
    {"topics_data_dir": "lower"},
    {"TOPICS_RUNTIME_DIR": "/run/topics", "TOPICS_DATA_DIR": "a b"},
    {"TOPICS_RUNTIME_DIR": ""},
    {"TOPICS_URL": "http://other", "TOPICS_TOKEN": "key", "TOPICS_CONTEXT": "prod"},
    {"TOPICS_PORT": ""},
    {"TOPICS_API_KEYS": "a:b:c:d", "TOPICS_API_KEYS_FILE": "/nowhere"},
]


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("given", CASES, ids=str)
def test_places_are_those_of_the_settings(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = load()
    assert plain(given) == Places(settings.host, settings.port, settings.data_dir, settings.runtime_dir)


@pytest.mark.parametrize("name", ["TOPICS_PORT", "TOPICS_HOST", "TOPICS_SHARDS", "TOPICS_CONFIG", "topics_port"])
def test_any_other_setting_is_left_to_the_settings(name: str) -> None:
    assert plain({name: "1"}) is None


@pytest.mark.parametrize("content", ["port = 5000", "not = toml ="])
def test_a_file_of_settings_is_left_to_the_settings(content: str) -> None:
    Path("topics.toml").write_text(content)
    assert plain({}) is None


def test_a_file_that_cannot_be_read_is_still_an_error() -> None:
    Path("topics.toml").mkdir()
    assert plain({}) is None
    with pytest.raises(SettingsError):
        load()

"""Sizes and durations with units, in settings and flags."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer

from supervisor.cli.terminal import read_seconds, read_size
from supervisor.config import settings, units
from supervisor.config.settings import SettingsError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.upper().startswith("TOPICS_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("64MiB", 64 << 20),
        ("64 mib", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("64MB", 64_000_000),
        (" 8KB ", 8000),
        ("7B", 7),
        ("256KiB/s", 256 << 10),
        ("0.1B", 0.1),
        ("67108864", None),
        ("", None),
        ("MiB", None),
        ("-1MiB", None),
    ],
)
def test_sizes(text: str, found: float | None) -> None:
    assert units.size(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10s", 10_000),
        ("1.5 s", 1500),
        ("500ms", 500),
        ("2min", 120_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
        ("500us", 0.5),
        ("10", None),
        ("ten s", None),
    ],
)
def test_durations(text: str, found: float | None) -> None:
    assert units.duration_ms(text) == found


@pytest.mark.parametrize("text", ["64M", "10s"])
def test_what_is_no_unit_of_sizes_is_told_with_those_that_are(text: str) -> None:
    with pytest.raises(ValueError, match="known are B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"):
        units.size(text)


def test_settings_take_units_from_variables_and_from_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "topics.toml").write_text('max_body_bytes = "2MiB"\nmin_upload_rate = "1KiB/s"\nidle_timeout_ms = 5\n')
    monkeypatch.setenv("TOPICS_STOP_TIMEOUT_MS", "1.5min")
    monkeypatch.setenv("TOPICS_WAL_SYNC_WINDOW_MS", "250us")
    monkeypatch.setenv("TOPICS_CACHE_BYTES", "1000")
    monkeypatch.setenv("TOPICS_HEADER_TIMEOUT_MS", "7000")
    found = settings.load()
    assert (found.max_body_bytes, found.min_upload_rate, found.idle_timeout_ms) == (2 << 20, 1024, 5)
    assert (found.stop_timeout_ms, found.wal_sync_window_ms) == (90_000, 0.25)
    assert (found.cache_bytes, found.header_timeout_ms) == (1000, 7000)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TOPICS_CACHE_BYTES", "64M", "M is no unit of it; known are B, KB, "),
        ("TOPICS_STOP_TIMEOUT_MS", "10MiB", "MiB is no unit of it; known are us, ms, s, min, h, d"),
        ("TOPICS_STOP_TIMEOUT_MS", "0s", "at least 1"),
        ("TOPICS_STOP_TIMEOUT_MS", "1us", "a whole number"),
        ("TOPICS_MAX_TOPICS", "5KiB", "a whole number"),
    ],
)
def test_a_wrong_unit_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        settings.load()
    assert f"{name}={value}: " in str(caught.value)
    assert said in str(caught.value)


def test_flags_take_units_too() -> None:
    assert (read_size("4MiB"), read_size("77"), read_size(4 << 20)) == (4 << 20, 77, 4 << 20)
    assert (read_seconds("500ms"), read_seconds("2"), read_seconds(0.5), read_seconds("1min")) == (0.5, 2, 0.5, 60)
    for text in ("0", "-5", "4M", "much", "0.5B"):
        with pytest.raises(typer.BadParameter, match=text):
            read_size(text)
    for text in ("-1", "1 week", "soon", "nan", "inf"):
        with pytest.raises(typer.BadParameter, match=text):
            read_seconds(text)

"""A service that cannot start says why, has an exit status, and leaves nothing locked or listening behind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.keys import Keys
from supervisor.config.settings import Settings
from supervisor.process import boot
from supervisor.process.datadir import DataDir
from supervisor.process.listener import listen, resolve
from supervisor.process.service import EXIT_FAILED, EXIT_USAGE

HOST = "127.0.0.1"


class Forks:
    """In place of the fork server: whether it runs."""

    running = False

    def __init__(self, environment: Any) -> None:
        pass

    def start(self) -> None:
        Forks.running = True

    def stop(self) -> None:
        Forks.running = False


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(boot, "ForkServer", Forks)
    yield
    assert not Forks.running


def served(path: Path, **given: Any) -> tuple[int, str]:
    complaints: list[str] = []
    with tempfile.TemporaryDirectory(prefix="topics-t") as run:  # a short path: sockets lie in it
        settings = Settings(data_dir=path / "data", runtime_dir=Path(run), **given)
        return boot.serve(settings, Keys(), lambda _: None, complaints.append), "".join(complaints)


def test_an_address_for_strangers_without_keys_is_wrong_usage(tmp_path: Path) -> None:
    status, complaint = served(tmp_path, host="0.0.0.0", port=0)
    assert status == EXIT_USAGE
    assert "TOPICS_API_KEYS" in complaint
    assert not (tmp_path / "data").exists()


def test_what_was_opened_before_a_failure_is_closed(tmp_path: Path) -> None:
    taken = listen(*resolve(HOST, 0))
    port = taken.getsockname()[1]
    try:
        status, complaint = served(tmp_path, host=HOST, port=port)
        assert status == EXIT_FAILED
        assert str(port) in complaint
        DataDir.open(tmp_path / "data", 2, 0).close()
        status, complaint = served(tmp_path, host=HOST, port=0, walrus_listen=f"{HOST}:{port}")
        assert status == EXIT_FAILED
        assert "TOPICS_WALRUS_LISTEN" in complaint
        DataDir.open(tmp_path / "data", 2, 0).close()
    finally:
        taken.close()


def test_a_data_directory_that_another_service_has_is_named(tmp_path: Path) -> None:
    data = DataDir.open(tmp_path / "data", 2, 0)
    try:
        status, complaint = served(tmp_path, host=HOST, port=0)
    finally:
        data.close()
    assert status == EXIT_FAILED
    assert str(tmp_path / "data") in complaint

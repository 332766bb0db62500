"""The runtime directory: private, short, clean."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.process.rundir import MAX_SOCKET_PATH, RuntimeDir, RuntimeDirError, choose


@pytest.fixture
def short() -> Iterator[Path]:
    """A short directory, because the paths of pytest's directories are too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="tr", dir="/tmp") as path:
        yield Path(path)


def test_the_configured_one_wins_then_systemds_then_a_derived_one(tmp_path: Path) -> None:
    systemd = {"RUNTIME_DIRECTORY": "/run/topics:/run/more"}
    assert choose(Path("/x"), systemd, tmp_path) == Path("/x")
    assert choose(None, systemd, tmp_path) == Path("/run/topics")
    derived = choose(None, {}, tmp_path)
    assert derived == choose(None, {}, tmp_path / "." / "")
    assert derived != choose(None, {}, tmp_path / "other")


def test_the_derived_one_is_short_whatever_the_temporary_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + 90 * "x")
    path = choose(None, {}, Path("/" + 200 * "y"))
    assert len(str(path / "shard-00.999999.sock")) < MAX_SOCKET_PATH


def test_it_is_made_private_and_leaves_nothing(short: Path) -> None:
    path = short / "run"
    opened = RuntimeDir.open(path)
    assert path.stat().st_mode & 0o777 == 0o700
    opened.write_status({"pid": 1})
    assert json.loads((path / "children.json").read_text()) == {"pid": 1}
    opened.close()
    assert not path.exists()


def test_what_a_dead_service_left_is_cleared(short: Path) -> None:
    (short / "shard-00.1.sock").touch()
    (short / "children.json").touch()
    (short / "other").touch()
    opened = RuntimeDir.open(short)
    assert [p.name for p in short.iterdir()] == ["other"]
    opened.close()
    assert short.exists(), "a directory provided by the operator stays"


def test_every_incarnation_has_an_endpoint_of_its_own_and_old_ones_go(short: Path) -> None:
    opened = RuntimeDir.open(short)
    (short / "shard-01.1.sock").touch()
    (short / "shard-00.1.sock").touch()
    assert opened.endpoint("shard-00", 2) == f"ipc://{short}/shard-00.2.sock"
    assert [p.name for p in short.iterdir()] == ["shard-01.1.sock"]
    opened.close()


def test_a_second_service_is_refused(short: Path) -> None:
    opened = RuntimeDir.open(short)
    with pytest.raises(RuntimeDirError, match="in use"):
        RuntimeDir.open(short)
    opened.close()
    RuntimeDir.open(short).close()


def test_a_symlink_is_refused(short: Path) -> None:
    (short / "real").mkdir(mode=0o700)
    (short / "link").symlink_to(short / "real")
    with pytest.raises(RuntimeDirError, match="link"):
        RuntimeDir.open(short / "link")


def test_a_directory_open_to_others_is_refused_and_left_as_it_is(short: Path) -> None:
    short.chmod(0o755)
    with pytest.raises(RuntimeDirError, match="chmod 700"):
        RuntimeDir.open(short)
    assert short.stat().st_mode & 0o777 == 0o755


def test_a_path_too_long_for_sockets_is_refused(short: Path) -> None:
    with pytest.raises(RuntimeDirError, match="too long"):
        RuntimeDir.open(short / (100 * "x"))

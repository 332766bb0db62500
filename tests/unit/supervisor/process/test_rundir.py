"""The runtime directory: private, short, clean."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.process.rundir import MAX_SOCKET_PATH, RuntimeDir, RuntimeDirError, choose, identity, status


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


MALLORY = 65534


def running(path: Path, **more: object) -> dict[str, object]:
    """The status file of a service that runs: this process."""
    told = {"pid": os.getpid(), "started": identity(os.getpid())[0], "url": "http://127.0.0.1:1"} | more  # type: ignore[index]
    (path / "children.json").write_text(json.dumps(told))
    return told


as_root = pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user")


def test_the_status_file_of_a_service_that_runs_is_read(short: Path) -> None:
    told = running(short)
    assert status(short, {}, Path("/x")) == told | {"user": os.getuid()}


@pytest.mark.parametrize(
    "more",
    [
        {"started": 1},
        {"started": None},
        {"pid": 2**64},
        {"pid": -1},
        {"pid": True},
        {"pid": "1"},
        {"url": 1},
        {"pid": 1},
    ],
)
def test_a_process_that_is_not_the_one_that_wrote_the_status_is_no_service(
    short: Path, more: dict[str, object]
) -> None:
    running(short, **more)
    assert status(short, {}, Path("/x")) is None


def test_a_deep_or_endless_status_file_is_none(short: Path) -> None:
    for content in ("[" * 200_000, "[]", "", '{"url": "' + "x" * (1 << 21) + '"}'):
        (short / "children.json").write_text(content)
        assert status(short, {}, Path("/x")) is None


def test_no_link_leads_to_a_status(short: Path) -> None:
    (short / "real").mkdir(mode=0o700)
    running(short / "real")
    (short / "link").symlink_to(short / "real")
    assert status(short / "link", {}, Path("/x")) is None
    (short / "children.json").symlink_to(short / "real" / "children.json")
    assert status(short, {}, Path("/x")) is None


@as_root
def test_a_status_that_another_user_may_have_written_is_not_believed(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    short.chmod(0o1777)
    derived = choose(None, {}, Path("/x"))
    derived.mkdir(mode=0o700)
    running(derived)
    assert status(None, {}, Path("/x")) is not None
    os.chown(derived, MALLORY, MALLORY)
    assert status(None, {}, Path("/x")) is None, "planted under the derived name"
    assert status(derived, {}, Path("/x")) is None, "named, but anybody could have made it"
    os.chown(derived, 0, 0)
    derived.chmod(0o770)
    assert status(None, {}, Path("/x")) is None, "a group may write"


@as_root
def test_root_believes_the_directory_of_a_service_that_only_root_can_have_made() -> None:
    """As systemd makes /run/topics for a service of another user."""
    with (
        tempfile.TemporaryDirectory(prefix="tr", dir="/run") as path,
        subprocess.Popen(["sleep", "60"], user=MALLORY) as child,
    ):
        made = Path(path) / "topics"
        made.mkdir(mode=0o700)
        os.chown(made, MALLORY, MALLORY)
        Path(path).chmod(0o755)
        started = identity(child.pid)
        assert started is not None
        running(made, pid=child.pid, started=started[0])
        assert status(made, {}, Path("/x")) is not None
        running(made)
        assert status(made, {}, Path("/x")) is None, "a process of root"
        Path(path).chmod(0o777)
        running(made, pid=child.pid, started=started[0])
        assert status(made, {}, Path("/x")) is None
        child.kill()


@as_root
@pytest.mark.parametrize("how", ["directory", "file", "link"])
def test_a_name_that_another_user_took_keeps_no_service_from_its_start(
    short: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    short.chmod(0o1777)
    taken = choose(None, {}, Path("/x"))
    if how == "link":
        (short / "theirs").mkdir()
        taken.symlink_to(short / "theirs")
    elif how == "file":
        taken.touch()
    else:
        taken.mkdir(mode=0o700)
    os.chown(taken, MALLORY, MALLORY, follow_symlinks=False)
    # A second name that looks like one of ours.
    (short / f"{taken.name}-00000000").mkdir()
    os.chown(short / f"{taken.name}-00000000", MALLORY, MALLORY)
    opened = RuntimeDir.of(None, {}, Path("/x"))
    assert opened.path.parent == short
    assert opened.path.name.startswith(f"{taken.name}-")
    told = running(opened.path)
    assert status(None, {}, Path("/x")) == told | {"user": 0}, "commands find it"
    opened.close()
    assert not opened.path.exists()
    left = RuntimeDir.of(None, {}, Path("/x"))
    left._clear()
    again = choose(None, {}, Path("/x"))
    assert again == left.path, "one that a killed service left is used again"
    left.close()
    with pytest.raises(RuntimeDirError, match="belongs to user 65534"):
        RuntimeDir.of(taken, {}, Path("/x"))

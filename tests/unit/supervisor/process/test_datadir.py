"""Data directory: created once, always locked, never initialised over data."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from supervisor.process.datadir import MACHINE, DataDir, DataDirError, Manifest, decide, parse_manifest


def open_dir(path: Path, shards: int | None = None, takeover_s: float = 0) -> DataDir:
    return DataDir.open(path, shards, 1234, takeover_s)


def test_a_fresh_directory_gets_manifest_shards_and_lock(tmp_path: Path) -> None:
    opened = open_dir(tmp_path / "a" / "b", 3)
    assert opened.shards == 3
    assert json.loads((opened.path / "manifest.json").read_text()) == {"format": 1, "shards": 3, "created_ms": 1234}
    assert sorted(p.name for p in opened.path.iterdir()) == [
        "LOCK",
        "manifest.json",
        "shard-00",
        "shard-01",
        "shard-02",
    ]
    assert int((opened.path / "LOCK").read_text()) == os.getpid()
    opened.close()


def test_the_default_number_of_shards_follows_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, expected in ((3, 3), (64, 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        opened = open_dir(tmp_path / str(cores))
        assert opened.shards == expected
        opened.close()


def test_the_manifest_decides_when_nothing_else_is_wanted(tmp_path: Path) -> None:
    open_dir(tmp_path, 5).close()
    for wanted in (None, 5):
        opened = open_dir(tmp_path, wanted)
        assert opened.shards == 5
        opened.close()


def test_another_number_of_shards_is_refused_and_names_the_way(tmp_path: Path) -> None:
    open_dir(tmp_path, 2).close()
    with pytest.raises(DataDirError, match=r"TOPICS_SHARDS=3.*made for 2.*topics reshard"):
        open_dir(tmp_path, 3)
    open_dir(tmp_path, 2).close()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "damaged"),
        (b"{", "damaged"),
        (b"[]", "damaged"),
        (b"\xff\xfe", "damaged"),
        (b'{"format": 2, "shards": 2, "created_ms": 1}', "format 2"),
        (b'{"format": 1, "shards": 0, "created_ms": 1}', "shards is 0"),
        (b'{"format": 1, "shards": true, "created_ms": 1}', "shards is True"),
        (b'{"format": 1, "shards": 2}', "created_ms is None"),
    ],
)
def test_a_manifest_that_is_none_is_refused_with_its_path(tmp_path: Path, content: bytes, says: str) -> None:
    open_dir(tmp_path, 2).close()
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(DataDirError, match=says) as caught:
        open_dir(tmp_path)
    assert str(tmp_path / "manifest.json") in str(caught.value)
    assert (tmp_path / "manifest.json").read_bytes() == content


def test_shards_with_data_but_without_manifest_are_never_initialised(tmp_path: Path) -> None:
    open_dir(tmp_path, 2).close()
    (tmp_path / "shard-01" / "wal").mkdir()
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(DataDirError, match=r"manifest.json is missing although shard-01 holds data"):
        open_dir(tmp_path)
    assert not (tmp_path / "manifest.json").exists()


def test_a_start_that_was_cut_off_before_the_manifest_is_begun_again(tmp_path: Path) -> None:
    for index in range(4):
        (tmp_path / f"shard-{index:02d}").mkdir()
    (tmp_path / "manifest.json.tmp").write_text('{"form')
    opened = open_dir(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.glob("shard-*")) == ["shard-00", "shard-01"]
    opened.close()


def test_a_lost_shard_directory_is_refused(tmp_path: Path) -> None:
    open_dir(tmp_path, 2).close()
    (tmp_path / "shard-01").rmdir()
    for opening in (open_dir, DataDir.locked):
        with pytest.raises(DataDirError, match="shard-01 is missing"):
            opening(tmp_path)


@pytest.mark.parametrize("filled", [None, False, True])
@pytest.mark.parametrize("manifest", [None, Manifest(1, 0)])
@pytest.mark.parametrize("wanted", [None, 1, 2])
def test_every_finding_has_exactly_one_decision(
    filled: bool | None, manifest: Manifest | None, wanted: int | None
) -> None:
    used = {} if filled is None else {"shard-00": filled}
    try:
        found: Manifest | str | None = decide(Path("/d"), manifest, used, wanted)
    except DataDirError:
        found = "refuse"
    if manifest is None:
        assert found == ("refuse" if filled else None)
    else:
        assert found == ("refuse" if filled is None or wanted == 2 else manifest)


def test_a_manifest_with_unknown_fields_is_understood() -> None:
    assert parse_manifest(Path("m"), b'{"format":1,"shards":2,"created_ms":3,"more":4}') == Manifest(2, 3)


def test_a_second_user_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from supervisor.process.datadir import DataDir;"
        "DataDir.open(Path(sys.argv[1]), 1, 0); print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(DataDirError, match=f"in use by process {holder.pid}"):
            open_dir(tmp_path, takeover_s=10)
        holder.kill()
        holder.wait()
        open_dir(tmp_path).close()


def test_the_lock_lasts_as_long_as_any_process_that_inherited_it(tmp_path: Path) -> None:
    opened = open_dir(tmp_path, 1)
    (tmp_path / "LOCK").write_text("999999999")  # the pid of a supervisor that is dead
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=opened.lock_fds) as shard:
        opened.close()
        with pytest.raises(DataDirError, match="in use by process 999999999"):
            open_dir(tmp_path)
        assert shard.stdin is not None
        shard.stdin.close()
        open_dir(tmp_path, takeover_s=10).close()


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataDirError, match="TOPICS_DATA_DIR"):
        open_dir(tmp_path / "file")


def test_removing_LOCK_does_not_let_a_second_user_in(tmp_path: Path) -> None:
    first = open_dir(tmp_path, 1)
    (tmp_path / "LOCK").unlink()
    with pytest.raises(DataDirError, match=r"in use by process \(unknown: LOCK was removed\)"):
        open_dir(tmp_path)
    with pytest.raises(DataDirError, match="in use"):
        DataDir.locked(tmp_path)
    first.close()
    open_dir(tmp_path).close()


def test_a_LOCK_that_is_exchanged_while_it_is_locked_is_locked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, calls = fcntl.flock, 0

    def exchanging(descriptor: int, operation: int) -> None:
        nonlocal calls
        calls += 1
        if calls <= 2:  # the directory, then LOCK
            (tmp_path / "LOCK").unlink(missing_ok=True)
            (tmp_path / "LOCK").touch()
        flock(descriptor, operation)

    open_dir(tmp_path, 1).close()
    monkeypatch.setattr(fcntl, "flock", exchanging)
    opened = open_dir(tmp_path)
    assert any(os.path.samestat(os.fstat(each), os.stat(tmp_path / "LOCK")) for each in opened.lock_fds)
    assert (tmp_path / "LOCK").read_text() == f"{os.getpid()}\n"
    opened.close()


def test_an_earlier_release_that_locks_only_LOCK_keeps_this_one_out(tmp_path: Path) -> None:
    open_dir(tmp_path, 1).close()
    with open(tmp_path / "LOCK", "r+") as earlier:
        fcntl.flock(earlier, fcntl.LOCK_EX)
        with pytest.raises(DataDirError, match="in use"):
            open_dir(tmp_path)
    open_dir(tmp_path).close()


def test_where_directories_cannot_be_locked_LOCK_alone_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def files_only(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", files_only)
    opened = open_dir(tmp_path, 1)
    with pytest.raises(DataDirError, match=f"in use by process {os.getpid()}"):
        open_dir(tmp_path)
    opened.close()


@pytest.mark.parametrize("plant", ["link", "fifo"])
@pytest.mark.parametrize("name", ["LOCK", "manifest.json"])
def test_what_is_planted_in_a_place_of_ours_is_named_and_not_followed(tmp_path: Path, name: str, plant: str) -> None:
    open_dir(tmp_path / "data", 1).close()
    treasure = tmp_path / "treasure"
    treasure.write_bytes((tmp_path / "data" / "manifest.json").read_bytes())
    path = tmp_path / "data" / name
    path.unlink()
    if plant == "link":
        path.symlink_to(treasure)
    else:
        os.mkfifo(path)
    for opening in (open_dir, DataDir.locked):
        with pytest.raises(DataDirError, match=rf"{name} is a (symbolic link|FIFO)"):
            opening(tmp_path / "data")
    assert parse_manifest(treasure, treasure.read_bytes()).shards == 1


def test_a_manifest_with_fewer_shards_than_have_data_is_refused(tmp_path: Path) -> None:
    open_dir(tmp_path, 3).close()
    (tmp_path / "shard-02" / "wal").mkdir()
    (tmp_path / "manifest.json").write_text('{"format": 1, "shards": 2, "created_ms": 1234}')
    for opening in (open_dir, DataDir.locked):
        with pytest.raises(DataDirError, match="shard-02 holds data, but the manifest says 2 shards"):
            opening(tmp_path)


def held(path: Path) -> int:
    """A descriptor of a directory that is locked, as another user's process has it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


@pytest.mark.parametrize("mode", [0o755, 0o740, 0o704])
def test_a_stranger_who_locks_a_directory_that_is_open_to_others_keeps_no_service_out(
    tmp_path: Path, mode: int
) -> None:
    DataDir.open(tmp_path, 1, 0).close()
    tmp_path.chmod(mode)
    stranger = held(tmp_path)
    try:
        opened = DataDir.open(tmp_path, 1, 0, takeover_s=0)
        with pytest.raises(DataDirError, match=f"in use by process {os.getpid()}"):
            DataDir.open(tmp_path, 1, 0, takeover_s=0)
        opened.close()
        DataDir.open(tmp_path, 1, 0, takeover_s=0).close()
    finally:
        os.close(stranger)


def test_the_lock_of_a_private_directory_is_decisive_whatever_becomes_of_LOCK(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    opened = DataDir.open(tmp_path, 1, 0)
    (tmp_path / "LOCK").unlink()
    (tmp_path / "LOCK").touch()
    with pytest.raises(DataDirError, match="in use"):
        DataDir.open(tmp_path, 1, 0, takeover_s=0)
    opened.close()


def test_removing_LOCK_of_an_open_directory_does_not_let_a_second_user_in(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    opened = DataDir.open(tmp_path, 1, 0)
    (tmp_path / "LOCK").unlink()
    with pytest.raises(DataDirError, match="LOCK was removed"):
        DataDir.open(tmp_path, 1, 0, takeover_s=0)
    assert not (tmp_path / "LOCK").exists()
    opened.close()


def test_a_LOCK_that_others_could_open_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "LOCK").touch()
    (tmp_path / "LOCK").chmod(0o666)
    DataDir.open(tmp_path, 1, 0).close()
    assert (tmp_path / "LOCK").stat().st_mode & 0o777 == 0o600


def test_a_machine_keeps_its_name_and_a_copy_has_another_place(tmp_path: Path) -> None:
    with closing(open_dir(tmp_path / "a", 1)) as first:
        name, place = first.machine(), first.place()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with closing(open_dir(tmp_path / "a")) as again, closing(open_dir(tmp_path / "b")) as copy:
        assert (again.machine(), again.place()) == (name, place)
        assert copy.machine() == name
        assert copy.place() != place


def named(path: Path) -> str:
    return DataDir(path, Manifest(1, 0), ()).machine()


def test_a_machine_keeps_its_name(tmp_path: Path) -> None:
    name = named(tmp_path)
    assert named(tmp_path) == name
    (tmp_path / "other").mkdir()
    assert named(tmp_path / "other") != name


@pytest.mark.parametrize("torn", ["", "{torn", "[]", '{"machine": "../up"}', '{"machine": ""}', '{"name": "x"}'])
def test_a_name_that_cannot_be_read_is_made_again(tmp_path: Path, torn: str) -> None:
    (tmp_path / MACHINE).write_text(torn)
    name = named(tmp_path)
    assert name.isalnum()
    assert named(tmp_path) == name


def test_a_directory_that_takes_no_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataDirError, match=r"machine\.json"):
        named(tmp_path / "gone")


@pytest.mark.parametrize(
    ("marks", "bucket", "may"),
    [
        ([{"url": "a", "held": True}, {"url": "a"}], "a", True),
        ([{"url": "a"}, None], "a", True),
        ([None, None], "b", True),  # it has nothing that could be missed
        ([{"url": "a", "held": True}, {"url": "a", "held": True}], "b", True),
        ([{"url": "a", "held": True}, {"url": "a", "held": True}], "", True),
        ([{"url": "a", "held": True}, {"url": "a", "held": False}], "b", False),
        ([{"url": "a", "held": True}, None], "b", False),
        ([{"url": "a", "held": True}, {"url": "a", "held": False}], "", False),
        ([None, None], "", False),
        ([["no mark"], {"url": "a"}], "b", False),
    ],
)
def test_a_directory_of_one_of_several_machines_leaves_its_bucket_only_if_it_held_all_shards(
    tmp_path: Path, marks: list[Any], bucket: str, may: bool
) -> None:
    with closing(DataDir.open(tmp_path, 2, 1)) as data:
        for index, mark in enumerate(marks):
            if mark is not None:
                (tmp_path / f"shard-{index:02d}" / "bucket.json").write_text(json.dumps(mark))
        data.check_whole(bucket)
        data.machine()
        if may:
            data.check_whole(bucket)
        else:
            with pytest.raises(DataDirError, match="one of several machines"):
                data.check_whole(bucket)

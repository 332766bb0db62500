"""Backups of directories that contain more than the service's files: what is copied, left out or refused."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.backup.backup import BackupError, _Taking, backup, backups, copy_file
from supervisor.backup.restore import Cuts, restore
from supervisor.process.datadir import Manifest, write_manifest
from supervisor.process.safe_folder import Folder, NotPlain

SEGMENT = "shard-00/topics/0000000000000001/seg-00000000000000000001.data"
FILES = {
    "manifest.json": b'{"format": 1, "shards": 1, "created_ms": 1}',
    "shard-00/catalog-00000000000000000001.cbor": b"catalog",
    "shard-00/wal/wal-00000000000000000001.log": b"log",
    SEGMENT: b"segment",
}


@pytest.fixture(autouse=True)
def _no_hanging() -> Iterator[None]:
    """Fail the test by an alarm if a FIFO is opened, because that blocks the whole process."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("opened a FIFO, and waited for its other end"))
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "shadow").write_bytes(b"of root")
    return tmp_path / "data"


def made(data: Path, cold: Path | None = None) -> list[dict[str, Any]]:
    return list(backup(data, cold, data.parent / "backups"))


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "backup.json"
    }


def plant(path: Path, kind: str, secret: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        path.symlink_to(secret / "shadow")
    elif kind == "folder link":
        path.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as listening:
            before = Path.cwd()
            os.chdir(path.parent)  # paths of sockets are short
            try:
                listening.bind(path.name)
            finally:
                os.chdir(before)


@pytest.mark.parametrize("kind", ["link", "folder link", "fifo", "socket"])
@pytest.mark.parametrize("place", [".", "shard-00", "shard-00/wal", "shard-00/topics", str(Path(SEGMENT).parent)])
def test_what_is_planted_under_a_foreign_name_is_left_out_and_named(data: Path, place: str, kind: str) -> None:
    path = data / place / "planted.log"
    plant(path, kind, data.parent / "secret")
    found = made(data)
    (warning,) = [each for each in found if each["kind"] == "warning"]
    assert warning["path"] == str(path)
    assert "left out" in warning["message"]
    assert contents(Path(found[-1]["path"])) == FILES


@pytest.mark.parametrize("kind", ["link", "folder link", "fifo"])
@pytest.mark.parametrize(
    "name", [*FILES, "shard-00", "shard-00/wal", "shard-00/topics", str(Path(SEGMENT).parent), "cold"]
)
def test_what_is_planted_in_the_place_of_a_file_of_ours_refuses_the_backup(data: Path, name: str, kind: str) -> None:
    cold = data.parent / "cold"
    (cold / "shard-00" / "topics" / "0000000000000001").mkdir(parents=True)
    path = cold / "shard-00" / "topics" / "0000000000000001" / "seg-00000000000000000000.data"
    if name != "cold":
        path = data / name
        os.rename(path, data.parent / "aside")
    plant(path, kind, data.parent / "secret")
    with pytest.raises(BackupError, match=r"is a (symbolic link|FIFO), and a backup follows no links") as caught:
        made(data, cold)
    assert str(path) in str(caught.value)
    backups = data.parent / "backups"
    assert not list(backups.glob("*/backup.json"))
    assert b"of root" not in contents(backups).values()


def test_a_file_that_becomes_a_link_while_it_is_opened_is_not_followed(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = data / SEGMENT
    lstat = Folder.mode

    def exchanged(self: Folder, name: str) -> int:
        mode = lstat(self, name)
        if name == path.name:
            path.unlink()
            path.symlink_to(data.parent / "secret" / "shadow")
        return mode

    with Folder.of(path.parent) as folder:
        monkeypatch.setattr(Folder, "mode", exchanged)
        with pytest.raises(NotPlain, match="is a symbolic link"):
            folder.file(path.name)


def test_the_data_directory_itself_may_be_a_link(data: Path) -> None:
    (data.parent / "named").symlink_to(data)
    assert contents(Path(made(data.parent / "named")[-1]["path"])) == FILES


@pytest.mark.parametrize("kind", ["link", "folder link", "fifo"])
@pytest.mark.parametrize("name", [SEGMENT, "shard-00/planted"])
def test_a_restore_takes_nothing_but_files_from_a_backup(data: Path, name: str, kind: str) -> None:
    taken = Path(made(data)[-1]["path"])
    (taken / name).unlink(missing_ok=True)
    plant(taken / name, kind, data.parent / "secret")
    with pytest.raises(BackupError, match=r"is a (symbolic link|FIFO): a backup has only regular files"):
        list(restore(taken, data.parent / "restored", None, Cuts(), {}))
    assert not (data.parent / "restored").exists()


def test_only_as_much_is_copied_as_there_was(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    with open(tmp_path / "a", "rb") as source:
        copy_file(source.fileno(), tmp_path / "b", 4)
    assert (tmp_path / "b").read_bytes() == b"0123"


def standing_by(data: Path, **fields: object) -> None:
    mark = {"url": "file:///bucket", "lineage": "one", "part": 7, "frame_no": 70, "incomplete": False} | fields
    (data / "shard-00" / "bucket.json").write_text(json.dumps(mark))


def test_a_folder_of_a_topic_may_be_removed_after_it_was_opened(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = data / "shard-00/topics" / f"{2:016x}"
    empty.mkdir()
    opened = Folder.folder

    def removing(self: Folder, name: str) -> Folder:
        found = opened(self, name)
        if name == empty.name:
            empty.rmdir()
        return found

    monkeypatch.setattr(Folder, "folder", removing)
    path = Path(made(data)[-1]["path"])
    assert not empty.exists()
    assert contents(path) == FILES


class Passes(list[str]):
    """The names of files as the passes through the shard meet them. Each function is called as its file is met."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *functions: Callable[[], object]) -> None:
        super().__init__()
        self.functions = list(functions)
        bring = _Taking.bring

        def noting(taking: _Taking, folder: Folder, name: str, relative: Path) -> None:
            self.append(name)
            if name.startswith("wal-") and self.functions:
                self.functions.pop(0)()
            bring(taking, folder, name, relative)

        monkeypatch.setattr(_Taking, "bring", noting)


@pytest.mark.parametrize("before", [True, False])
def test_a_standby_whose_shard_is_being_made_from_the_bucket_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    standing_by(data, incomplete=before)
    Passes(monkeypatch, lambda: standing_by(data, incomplete=True))
    with pytest.raises(BackupError, match="shard-00 is being made again from its bucket"):
        made(data)
    assert not backups(data.parent / "backups")


def test_a_shard_that_was_made_from_the_bucket_meanwhile_is_copied_again(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing_by(data)
    another = {"lineage": "another"}
    passes = Passes(
        monkeypatch, lambda: standing_by(data, **another), lambda: standing_by(data, **another, part=8, frame_no=80)
    )
    found = made(data)
    assert [each["again"] for each in found if each["kind"] == "progress"] == [True, False]
    assert passes.functions == []
    assert contents(Path(found[-1]["path"])) == FILES


def test_a_shard_whose_catalogs_begin_again_is_copied_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = data / "shard-00" / "catalog-00000000000000000002.cbor"
    later.write_bytes(b"later")
    Passes(monkeypatch, later.unlink)
    found = made(data)
    assert [each["again"] for each in found if each["kind"] == "progress"] == [True, False]
    assert contents(Path(found[-1]["path"])) == FILES


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b'{"lineage": "one"}', b"\xff", b"[" * 100_000])
def test_a_damaged_mark_of_a_bucket_keeps_no_backup_back(data: Path, content: bytes) -> None:
    (data / "shard-00" / "bucket.json").write_bytes(content)
    assert contents(Path(made(data)[-1]["path"])) == FILES


def test_a_directory_that_may_lack_shards_is_refused(data: Path) -> None:
    (data / "machine.json").write_text('{"machine": "one"}')
    with pytest.raises(BackupError, match="one of several machines"):
        made(data)
    assert not (data.parent / "backups").exists()


@pytest.mark.parametrize("shards", [12, 1])
@pytest.mark.parametrize("step", ["exchange", "done"])
def test_a_reshard_that_came_between_ends_the_backup(data: Path, step: str, shards: int) -> None:
    making = backup(data, None, data.parent / "backups")
    assert next(making)["shard"] == "shard-00"
    if step == "exchange":
        (data / "reshard.json").write_text(json.dumps({"shards": shards}))
    else:
        write_manifest(data, Manifest(shards, 1))
    with pytest.raises(BackupError, match="was resharded meanwhile: make the backup again"):
        list(making)
    assert not list((data.parent / "backups").glob("*/backup.json"))
    assert not backups(data.parent / "backups")

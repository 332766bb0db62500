"""Restore: the data directory is complete or absent, whichever process dies; and the choice of the backup."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from proto.model.limits import Limits
from supervisor.backup import restore as module
from supervisor.backup.backup import BackupError, backup
from supervisor.backup.restore import Cuts, parse_cuts, parse_time, restore, restore_bucket


class Died(BaseException):
    """Simulates the end of the process at this point."""


def data_directory(path: Path) -> Path:
    for name, content in {
        "manifest.json": b'{"format": 1, "shards": 1, "created_ms": 1}',
        "shard-00/wal/wal-00000000000000000001.log": b"log",
        "shard-00/topics/0000000000000001/seg-00000000000000000001.data": b"segment",
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != module.WHOLE}


def backed_up(tmp_path: Path) -> tuple[Path, Path]:
    """A data directory with a cold folder, and a backup of both."""
    data = data_directory(tmp_path / "data")
    cold = tmp_path / "cold" / "shard-00/topics/0000000000000001"
    cold.mkdir(parents=True)
    (cold / "seg-00000000000000000000.data").write_bytes(b"cold")
    for _ in backup(data, tmp_path / "cold", tmp_path / "backups"):
        pass
    return data, tmp_path / "cold"


def run(tmp_path: Path, cuts: Cuts = Cuts()) -> None:  # noqa: B008 - frozen
    for _ in restore(tmp_path / "backups", tmp_path / "new" / "data", tmp_path / "new" / "cold", cuts, {}):
        pass


def test_a_restore_that_died_anywhere_is_whole_or_not_there_and_the_next_one_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, cold = backed_up(tmp_path)
    (tmp_path / "new").mkdir()
    calls = 0
    dies_at: int | None = None

    def counted(function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == dies_at:
                raise Died
            return function(*arguments, **named)

        return call

    for name in ("copy_file", "sync_tree", "sync"):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    for name in ("rename", "fsync"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    tried = 0
    while True:
        tried += 1
        calls, dies_at = 0, tried
        new = tmp_path / "new"
        try:
            run(tmp_path)
        except Died:
            if (new / "data").exists():
                assert contents(new / "data") == contents(data)
                assert contents(new / "cold") == contents(cold)
            else:
                dies_at = None
                run(tmp_path)
        else:
            break
        assert contents(new / "data") == contents(data)
        assert contents(new / "cold") == contents(cold)
        assert sorted(p.name for p in new.iterdir()) == ["cold", "data"]
        os.renames(new, tmp_path / "done" / str(tried))
        new.mkdir()
    assert tried > 10


def test_another_restore_than_the_one_that_died_starts_over(tmp_path: Path) -> None:
    data, _ = backed_up(tmp_path)
    making = data_directory(tmp_path / "new" / "data.tmp")
    (making / "shard-00" / "stale").write_bytes(b"of another backup")
    (making / module.WHOLE).write_text(json.dumps({"backup": "another"}))
    run(tmp_path)
    assert contents(tmp_path / "new" / "data") == contents(data)


@pytest.mark.parametrize("source", ["backup", "bucket"])
def test_what_is_left_of_a_finished_copy_that_another_restore_removed_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    data, cold = backed_up(tmp_path)
    rename = os.rename

    def dying(*_: object, **__: object) -> None:
        raise Died

    monkeypatch.setattr(os, "rename", dying)
    with pytest.raises(Died):
        run(tmp_path)
    monkeypatch.setattr(os, "rename", rename)
    making = tmp_path / "new" / "data.tmp"
    assert contents(making) == contents(data)

    def another() -> None:
        if source == "backup":
            run(tmp_path, Cuts(until_ms=0))
        else:
            list(restore_bucket("s3://b", tmp_path / "new" / "data", None, Cuts(), Limits()))

    def half(path: Path, **_: object) -> None:
        (path / "manifest.json").unlink()
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", half)
        with pytest.raises(Died):
            another()
    run(tmp_path)
    assert contents(tmp_path / "new" / "data") == contents(data)
    assert contents(tmp_path / "new" / "cold") == contents(cold)


def test_a_cold_folder_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    backed_up(tmp_path)
    (tmp_path / "new" / "cold").mkdir(parents=True)
    (tmp_path / "new" / "cold" / "mine").write_bytes(b"")
    with pytest.raises(BackupError, match="not empty"):
        run(tmp_path)
    assert not (tmp_path / "new" / "data").exists()


def test_for_a_time_the_first_backup_after_it_is_taken(tmp_path: Path) -> None:
    for name, begun_ms in (("20260101T000000.000Z", 1000), ("20260102T000000.000Z", 2000), ("20260103T.tmp", 9000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "backup.json").write_text(json.dumps({"begun_ns": begun_ms * 10**6}))
    choose = module._choose
    assert choose(tmp_path, None).name.startswith("20260102")
    assert choose(tmp_path, 999).name.startswith("20260101")
    assert choose(tmp_path, 1000).name.startswith("20260102")
    assert choose(tmp_path / "20260102T000000.000Z", 5).name.startswith("20260102")
    with pytest.raises(BackupError, match="later backup"):
        choose(tmp_path, 2000)
    with pytest.raises(BackupError, match="no whole backup"):
        choose(tmp_path / "20260103T.tmp", None)


def test_times_are_read_with_their_zone_or_in_ms() -> None:
    assert parse_time("1970-01-01T00:00:01.234567Z") == 1234
    assert parse_time("2026-11-21T12:00:00+02:00") == parse_time("2026-11-21T10:00:00Z") == 1_795_255_200_000
    assert parse_time("1795255200000") == 1_795_255_200_000
    for text, said in (("2026-11-21T10:00:00", "no time zone"), ("yesterday", "no time;"), ("", "no time;")):
        with pytest.raises(ValueError, match=said):
            parse_time(text)


def test_cuts_are_of_one_topic_or_of_all() -> None:
    found = parse_cuts(["5", "a:b=7"], ["c=9"], 3)
    assert found == Cuts({"c": 9}, {"a:b": 7}, 5, 3)
    assert found.latest_ms == 7
    assert parse_cuts(["5"], [], None).reserve == 65_536
    assert not Cuts()
    assert not parse_cuts([], [], None)
    reserved = parse_cuts([], [], 7)
    assert (bool(reserved), reserved.reserve, reserved.latest_ms) == (True, 7, None)
    assert parse_cuts([], ["c=9"], 7) == Cuts({"c": 9}, {}, module.FOREVER_MS, 7)
    assert parse_cuts(["a=5"], ["c=9"], None).until_ms is None
    for until, latest_ms in (([], None), (["a=5"], 5)):
        found = parse_cuts(until, ["c=9"], None, of_bucket=True)
        assert (found.until_ms, found.reserve, found.latest_ms) == (module.FOREVER_MS, 65_536, latest_ms)
    assert parse_cuts(["5"], [], None, of_bucket=True).until_ms == 5
    assert Cuts(until_ms=0)
    for until, until_seq, said in (
        (["5", "6"], [], "for all topics already"),
        (["a=5"], ["a=6"], "both"),
        ([], ["a"], "TOPIC=SEQ"),
        ([], ["a=-1"], "TOPIC=SEQ"),
        ([], ["=1"], "TOPIC=SEQ"),
    ):
        with pytest.raises(ValueError, match=said):
            parse_cuts(until, until_seq, 0)


def test_a_backup_of_a_later_format_is_refused_and_one_with_a_damaged_mark_is_not(tmp_path: Path) -> None:
    data, _ = backed_up(tmp_path)
    (mark,) = (tmp_path / "backups").glob("*/backup.json")
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"format": 2}))
    with pytest.raises(
        BackupError, match=r"backup\.json has format 2, this release knows 1: use the release that wrote"
    ):
        run(tmp_path)
    assert not (tmp_path / "new").exists()
    (tmp_path / "new").mkdir()
    mark.write_text("{")
    run(tmp_path)
    assert contents(tmp_path / "new" / "data") == contents(data)

"""Files as readers see them, and what is kept of them."""

from __future__ import annotations

import os
from errno import EIO
from pathlib import Path

import pytest

from pyspark_topics.errors import CorruptFile
from pyspark_topics.storage import Kept, LocalFile


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize(("end", "found"), [(None, b"abcdef"), (3, b"abc"), (100, b"abcdef"), (0, b"")])
def test_a_file_is_read_up_to_its_end_or_to_that_of_the_plan(
    tmp_path: Path, end: int | None, found: bytes, settled: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")
    content = LocalFile(str(path)).open(end, settled=settled)
    content.need([(0, 100)])
    assert (content.size, bytes(content.view), content.buffer.to_pybytes()) == (6, found, found)


@pytest.mark.parametrize("settled", [True, False])
def test_an_empty_file_has_no_bytes(tmp_path: Path, settled: bool) -> None:
    (tmp_path / "file").touch()
    assert bytes(LocalFile(str(tmp_path / "file")).open(None, settled=settled).view) == b""


def test_bytes_that_may_be_cut_off_are_copied(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")
    content = LocalFile(str(path)).open(None, settled=False)
    path.write_bytes(b"")
    assert bytes(content.view) == b"abcdef"


def test_only_what_is_needed_is_read_and_neighbours_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked = tmp_path / "file", []
    path.write_bytes(bytes(range(100)))

    def read(descriptor: int, parts: list[memoryview], at: int) -> int:
        asked.append((at, len(parts[0])))
        return preadv(descriptor, parts, at)

    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", read)
    content = LocalFile(str(path)).open(None, settled=True)
    content.need([(0, 10), (10, 5), (40, 10), (50, 50)])
    assert asked == [(0, 15), (40, 60)]
    assert bytes(content.view[:15]) + bytes(content.view[40:]) == bytes([*range(15), *range(40, 100)])


def test_a_file_that_is_removed_can_still_be_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")
    content = LocalFile(str(path)).open(None, settled=True)
    path.unlink()
    path.write_bytes(b"ABCDEF")
    content.need([(2, 3)])
    assert bytes(content.view[2:5]) == b"cde"


def test_a_file_that_is_cut_short_all_the_same_is_damaged_and_ends_no_process(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10_000))
    content = LocalFile(str(path)).open(None, settled=True)
    os.truncate(path, 5000)
    content.need([(0, 5000)])
    with pytest.raises(CorruptFile, match="file: it ends at byte 5000, and had 10000"):
        content.need([(4000, 6000)])


@pytest.mark.parametrize("settled", [True, False])
def test_bytes_that_the_device_cannot_read_are_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")

    def bad_sector(*_: object) -> int:
        raise OSError(EIO, os.strerror(EIO))

    monkeypatch.setattr(os, "preadv", bad_sector)
    with pytest.raises(CorruptFile, match=r"file, byte 0: the device cannot read it \(Input/output error\)"):
        LocalFile(str(path)).open(None, settled=settled).need([(0, 6)])


def test_a_file_is_closed_when_nobody_has_its_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")
    before = len(os.listdir("/proc/self/fd"))
    contents = [LocalFile(str(path)).open(None, settled=True) for _ in range(5)]
    buffers = [content.buffer for content in contents]
    del contents
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(buffers[0]) == 6


def test_an_index_that_is_missing_is_none(tmp_path: Path) -> None:
    file = LocalFile(str(tmp_path / "seg-1.data"))
    assert file.index() is None
    (tmp_path / "seg-1.idx").write_bytes(b"index")
    assert file.index() == b"index"
    assert file.at(7) == f"{tmp_path}/seg-1.data, byte 7"


def test_what_was_used_last_is_kept() -> None:
    kept = Kept(100)
    for key in "abc":
        kept.put(key, key.upper(), 40)
    assert [kept.get(key) for key in "abc"] == [None, "B", "C"]
    assert kept.get("b") == "B"
    kept.put("d", "D", 40)
    assert [kept.get(key) for key in "bcd"] == ["B", None, "D"]


def test_a_value_that_is_larger_than_the_room_is_not_kept() -> None:
    kept = Kept(100)
    kept.put("small", 1, 10)
    kept.put("large", 2, 101)
    assert kept.get("large") is None
    kept.put("small", 1, 10)
    assert kept.get("small") == 1


def test_a_value_that_is_there_is_counted_once() -> None:
    kept = Kept(100)
    for _ in range(20):
        kept.put("a", 1, 60)
    kept.put("b", 2, 40)
    assert (kept.get("a"), kept.get("b")) == (1, 2)

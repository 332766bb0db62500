"""Files as readers see them, and what is kept of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_topics.storage import Kept, LocalFile


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize(("end", "found"), [(None, b"abcdef"), (3, b"abc"), (100, b"abcdef"), (0, b"")])
def test_a_file_is_read_up_to_its_end_or_to_that_of_the_plan(
    tmp_path: Path, end: int | None, found: bytes, settled: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")
    content = LocalFile(str(path)).open(end, settled=settled)
    assert (content.size, bytes(content.view), content.buffer.to_pybytes()) == (6, found, found)
    content.need([(0, 100)])


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

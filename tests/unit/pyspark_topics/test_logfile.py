"""Log files: their end, and damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_topics.errors import CorruptFile
from tests.behaviour.pyspark_topics.test_reader import Shard, flip, read, values


@pytest.mark.slow
def test_cutting_the_newest_file_anywhere_leaves_its_whole_frames(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.create(1, "t")
    before = shard.file.stat().st_size
    sizes = [len(shard.write(1, seq, [b"%d" % seq])) for seq in (1, 2)]
    whole = shard.file.read_bytes()
    ends = [before + sum(sizes[:n]) for n in range(3)]
    for cut in range(before, len(whole) + 1):
        for zeros in (0, len(whole) - cut):
            torn = whole[:cut] + bytes(zeros)
            shard.file.write_bytes(torn)
            complete = max(n for n, end in enumerate(ends) if torn[:end] == whole[:end])
            assert values(shard.root) == [b"1", b"2"][:complete], (cut, zeros)


@pytest.mark.parametrize("tail", [bytes(4096), b"garbage " * 99, b"TPCF"])
def test_an_unfinished_end_of_the_newest_file_is_silent(tmp_path: Path, tail: bytes) -> None:
    shard = Shard(tmp_path / "data")
    shard.create(1, "t")
    shard.write(1, 1, [b"kept"])
    with shard.file.open("ab") as file:
        file.write(tail)
    assert values(shard.root) == [b"kept"]


def test_a_last_frame_that_fails_its_checksum_is_silent(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.create(1, "t")
    shard.write(1, 1, [b"kept"])
    at = shard.file.stat().st_size
    shard.write(1, 2, [b"torn"])
    flip(shard.file, at + 70)
    assert values(shard.root) == [b"kept"]


@pytest.mark.parametrize("place", [0, 8, 16, 70])
def test_damage_that_was_once_on_the_disk_is_an_error(tmp_path: Path, place: int) -> None:
    shard = Shard(tmp_path / "data")
    shard.create(1, "t")
    at = shard.file.stat().st_size
    shard.write(1, 1, [b"one"])
    shard.write(1, 2, [b"two"], synced=2)
    flip(shard.file, at + place)
    with pytest.raises(CorruptFile, match=rf"{shard.file.name}, byte {at} .*: .*frame 3 .* says that frame 2"):
        read(shard.root)


def test_frames_after_a_hole_that_never_were_synced_are_given_up(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.create(1, "t")
    at = shard.file.stat().st_size
    shard.write(1, 1, [b"one"])
    shard.write(1, 2, [b"TPCF"], synced=1)
    flip(shard.file, at + 70)
    assert values(shard.root) == []


def test_damage_in_an_older_file_is_an_error_with_path_and_offset(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.create(1, "t")
    old, at = shard.file, shard.file.stat().st_size
    shard.write(1, 1, [b"one"])
    shard.rotate()
    shard.write(1, 2, [b"two"])
    flip(old, at + 70)
    with pytest.raises(CorruptFile, match=rf"{old.name}, byte {at} .topic \"t\".: checksum"):
        read(shard.root)
    old.write_bytes(old.read_bytes()[:-8])
    with pytest.raises(CorruptFile, match=rf"{old.name}, byte {at} .topic \"t\".: 88 bytes"):
        read(shard.root)


def test_what_follows_the_successors_first_number_was_given_up(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.create(1, "t")
    shard.write(1, 1, [b"kept"])
    shard.write(1, 2, [b"given up"])
    shard.rotate(first_no=3)
    shard.write(1, 2, [b"instead"])
    assert values(shard.root) == [b"kept", b"instead"]

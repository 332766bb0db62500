"""The scan of a log: where it is cut, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from proto.format.frame import Kind, encode_map
from shardd.recovery.wal_scan import Outcome, RecoveryError, precedes, replaced, scan
from tests.support.fault_disk import FaultDisk

WAL = Path("/data/shard-00/wal")


def frame(number: int, synced: int = 0) -> bytes:
    made = encode_map(Kind.CURSOR, 1, {"n": number}, 0, frame_no=number, synced_no=synced)
    return bytes(made.head) + bytes(made.tail)


def log(*files: tuple[int, bytes]) -> FaultDisk:
    disk = FaultDisk()
    disk.make_dir(WAL)
    for first, content in files:
        file = disk.create(WAL / f"wal-{first:020d}.log")
        file.write([content])
        file.close()
    return disk


def frames(numbers: Sequence[int], synced: int = 0) -> bytes:
    return b"".join(frame(number, synced) for number in numbers)


def scanned(disk: FaultDisk, after_no: int = 0) -> tuple[list[int], Outcome]:
    outcome = Outcome()
    return [found.header.frame_no for found in scan(disk, WAL, outcome, after_no)], outcome


def test_an_empty_log_begins_with_frame_1() -> None:
    numbers, outcome = scanned(log())
    assert (numbers, outcome.next_no, outcome.resume) == ([], 1, None)


def test_a_log_is_read_over_its_files_and_continued_in_the_last() -> None:
    numbers, outcome = scanned(log((1, frames([1, 2])), (3, frames([3]))))
    assert (numbers, outcome.next_no, outcome.resume) == ([1, 2, 3], 4, f"wal-{3:020d}.log")
    assert (outcome.cut_path, outcome.tail is not None) == (None, True)


def test_a_frame_that_is_kept_keeps_no_file_in_memory() -> None:
    disk = log((1, frames([1, 2])))
    assert [memoryview(found.buffer).obj for found in scan(disk, WAL, Outcome())] == [frame(1), frame(2)]


def test_frames_that_the_catalog_covers_are_passed_over() -> None:
    disk = log((1, frames([1, 2])), (3, frames([3, 4])))
    numbers, outcome = scanned(disk, after_no=3)
    assert (numbers, outcome.begin_no) == ([4], 3)


def test_bytes_behind_the_first_number_of_the_next_file_were_given_up() -> None:
    numbers, _ = scanned(log((1, frames([1, 2, 3])), (3, frames([3, 4]))))
    assert numbers == [1, 2, 3, 4]


@pytest.mark.parametrize("size", range(1, len(frame(2)), 7))
def test_a_torn_tail_is_cut_and_the_next_scan_finds_the_same(size: int) -> None:
    disk = log((1, frame(1) + frame(2)[:size]))
    numbers, outcome = scanned(disk)
    assert (numbers, outcome.next_no, outcome.cut_bytes) == ([1], 2, size)
    assert outcome.cut_offset == len(frame(1))
    numbers, outcome = scanned(disk.after_crash("process"))
    assert (numbers, outcome.next_no, outcome.cut_path) == ([1], 2, None)


def test_later_files_go_with_a_cut() -> None:
    disk = log((1, frame(1) + b"\0" * 64), (3, frame(3)))
    numbers, outcome = scanned(disk)
    assert (numbers, outcome.next_no) == ([1], 2)
    assert disk.list(WAL) == [f"wal-{1:020d}.log"]


def test_damage_before_a_frame_that_was_written_after_a_sync_is_refused_and_nothing_changes() -> None:
    raw = bytearray(frames([1, 2, 3], synced=2))
    raw[len(frame(1)) + 70] ^= 1
    disk = log((1, bytes(raw)))
    with pytest.raises(RecoveryError, match=rf"wal-{1:020d}\.log, offset {len(frame(1))}: frame 2 is damaged"):
        scanned(disk)
    assert bytes(disk.read(WAL / f"wal-{1:020d}.log")) == bytes(raw)


@pytest.mark.parametrize(
    ("files", "after_no", "why"),
    [
        ([(1, frames([1, 2]) + frame(9))], 0, "frame 9 where frame 3 should be"),
        ([(5, frames([5]))], 0, "the log begins with frame 5, but the snapshot ends at frame 0"),
        ([(1, frames([1, 2]))], 7, "the log ends with frame 2"),
        ([(1, frames([1])), (5, b"")], 0, "was begun after frame 4 had been synced"),
        ([(9, b"")], 3, "a file is missing"),
    ],
)
def test_a_log_with_frames_of_another_or_without_some_of_its_own_is_refused(
    files: list[tuple[int, bytes]], after_no: int, why: str
) -> None:
    disk = log(*files)
    before = {path: bytes(node.data) for path, node in disk.names.items()}
    with pytest.raises(RecoveryError, match=why):
        scanned(disk, after_no)
    assert {path: bytes(node.data) for path, node in disk.names.items()} == before


@pytest.mark.parametrize(
    ("content", "other"),
    [
        (frames([1, 2]), False),
        (frames([1, 2, 3]), False),  # the last one was given up
        (frames([1]), True),
        (frames([1, 4]), True),
        (frames([5, 6]), True),
        (frames([1, 2])[:-8], False),
        (frame(1) + frame(2)[:40], False),
        (b"", False),
    ],
    ids=["its own", "longer", "whole and short", "a hole", "other numbers", "cut", "cut in a header", "empty"],
)
def test_a_covered_file_is_another_one_if_it_is_whole_and_leads_to_no_other_file(content: bytes, other: bool) -> None:
    disk = log((1, content), (3, frames([3])))
    assert precedes(disk, WAL / f"wal-{1:020d}.log", WAL / f"wal-{3:020d}.log", seed=None) is not other


def test_a_file_is_another_one_if_it_begins_with_another_whole_frame() -> None:
    _, outcome = scanned(log((1, frames([1, 2])), (3, frames([3]))))
    assert outcome.firsts.keys() == {1, 3}
    first = outcome.firsts[1]
    found = {
        name: replaced(log((1, content)), WAL / f"wal-{1:020d}.log", first)
        for name, content in {
            "its own": frames([1, 2]),
            "another": frames([1, 2], synced=1),
            "another, damaged": frame(1, synced=1)[:70] + b"x" + frame(1, synced=1)[71:],
            "cut": frame(1)[:40],
            "empty": b"",
        }.items()
    }
    assert found == {name: name == "another" for name in found}


def test_empty_files_have_no_meaning_but_their_names() -> None:
    disk = log((1, frames([1, 2])), (3, b""))
    numbers, outcome = scanned(disk)
    assert (numbers, outcome.next_no) == ([1, 2], 3)
    assert disk.list(WAL) == [f"wal-{1:020d}.log"]

"""Claims about verify: what is told of a stopped shard's files."""

from __future__ import annotations

import pytest
from msgspec.structs import fields, replace

from shardd.offline.verify import Report, verify
from shardd.storage.segment import ENTRY, ENTRY_SIZE, Entry
from tests.support.fault_disk import FaultDisk
from tests.support.harness import SHARD, FakeClock, Harness


def checkpoint(shard: Harness) -> None:
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()
    shard.clock.advance(10)


def sound() -> tuple[Harness, FaultDisk]:
    """A shard with a segment of several frames, of which one has a deleted record."""
    shard = Harness(cache_bytes=0)
    for number in range(3):
        records = [{"data": number, "tag": f"t{number}"}, {"data": number}]
        shard.call("append", "t", {"records": records, "config": {"durability": "fsync"}})
        checkpoint(shard)
    shard.call("delete_records", "t", {"match": "t1"})
    checkpoint(shard)
    checkpoint(shard)
    assert isinstance(shard.disk, FaultDisk)
    return shard, shard.disk


def told(shard: Harness) -> Report:
    return verify(shard.disk, SHARD, FakeClock(), shard.limits)


def test_a_sound_shard_has_no_problems_and_no_notes() -> None:
    shard, _ = sound()
    report = told(shard)
    assert (report.problems, report.notes) == ([], [])
    assert report.segment_frames == 3


@pytest.mark.parametrize("name", [each.name for each in fields(Entry)])
def test_an_index_that_another_program_changed_is_told_though_its_checksums_fit(name: str) -> None:
    shard, disk = sound()
    path = next(path for path in disk.names if path.suffix == ".idx")
    raw = disk.names[path].data
    entry = Entry(*ENTRY.unpack(raw[ENTRY_SIZE : ENTRY_SIZE + ENTRY.size]))
    raw[ENTRY_SIZE : 2 * ENTRY_SIZE] = replace(entry, **{name: getattr(entry, name) + 1}).encode()
    assert path.stem in told(shard).problems[0]


def test_an_index_of_a_release_without_marks_is_sound() -> None:
    shard, disk = sound()
    path = next(path for path in disk.names if path.suffix == ".idx")
    raw = disk.names[path].data
    for at in range(0, len(raw), ENTRY_SIZE):
        raw[at : at + ENTRY_SIZE] = replace(Entry(*ENTRY.unpack(raw[at : at + ENTRY.size])), mark=0).encode()
    assert told(shard).problems == []


def test_a_torn_log_is_told_with_its_file_and_offset_and_is_no_damage() -> None:
    shard, disk = sound()
    shard.append("t", "torn")
    shard.shard.commits.sync_now()
    path = max(path for path in disk.names if "wal" in str(path) and disk.names[path].data)
    size = len(disk.names[path].data)
    del disk.names[path].data[-10:]
    report = told(shard)
    assert report.problems == []
    (note,) = report.notes
    begin = size - len(disk.names[path].data)
    assert note.startswith(f"{path}, offset ")
    offset = int(note.removeprefix(f"{path}, offset ").partition(":")[0])
    assert f"a torn tail of {size - begin - offset} bytes" in note
    assert note.endswith("; the next start cuts it off")

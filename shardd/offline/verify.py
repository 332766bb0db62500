"""Verify: checks every frame, checksum and index entry of a shard's files, without changing them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from proto.format.frame import FrameError, check, content_hash
from proto.model.limits import Limits
from shardd.clock import Clock
from shardd.recovery.wal_scan import RecoveryError
from shardd.shard import Shard, open_shard, opened_shard
from shardd.storage.catalog import SUMS
from shardd.storage.disk import Disk, ReadOnlyDisk
from shardd.storage.errors import SegmentError
from shardd.storage.lost import REMEDY
from shardd.storage.segment import ENTRY_SIZE, Segment, StoredFrame, from_data, from_index, read_index
from shardd.topic.topic import Topic


@dataclass(slots=True)
class Report:
    """The findings in one shard. `problems` name path, offset and error; `notes` are not damage."""

    shard: str
    topics: int = 0
    records: int = 0
    bytes: int = 0
    log_frames: int = 0
    segments: int = 0
    segment_frames: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def opened(disk: Disk, path: Path, clock: Clock, limits: Limits) -> Shard:
    """A shard recovered from its files, which stay unchanged. Blocks. Raises `RecoveryError`, OSError."""
    return opened_shard(ReadOnlyDisk(disk), clock, path, limits, from_files=True)


def _counted(opening: Generator[tuple[int, int], None, Shard], report: Report) -> Shard:
    """Opens a shard, and counts the frames of its log."""
    while True:
        try:
            next(opening)
        except StopIteration as end:
            shard: Shard = end.value
            return shard
        report.log_frames += 1


def verify(disk: Disk, path: Path, clock: Clock, limits: Limits) -> Report:
    """Check the files of a stopped shard. Blocks. Problems are in the report, also a failed recovery."""
    report = Report(path.name)
    try:
        shard = _counted(open_shard(ReadOnlyDisk(disk), clock, path, limits, from_files=True), report)
    except (RecoveryError, OSError) as error:
        report.problems.append(str(error))
        return report
    outcome = shard.outcome
    if outcome.cut_path is not None:
        report.notes.append(
            f"{outcome.cut_path}, offset {outcome.cut_offset}: a torn tail of {outcome.cut_bytes} bytes "
            f"({outcome.cut_reason}); the next start cuts it off"
        )
    report.topics, report.records, report.bytes = shard.directory.counters()
    for topic in shard.directory.visible.values():
        before = len(report.problems)
        for segment in topic.segments:
            report.segments += 1
            try:
                report.segment_frames += _check_segment(disk, segment)
                _check_index(report, disk, segment)
            except (SegmentError, OSError) as error:
                report.problems.append(f'topic "{topic.name}": {error}')
        if topic.damage is not None and len(report.problems) == before:
            report.problems.append(f'topic "{topic.name}": {topic.damage.reason}')
        _check_order(report, topic)
    report.problems += shard.checkpoints.inventory.problems()
    _check_strays(report, disk, shard)
    return report


def _check_index(report: Report, disk: Disk, segment: Segment) -> None:
    """Tell an index that is missing or not that of its segment. Raises OSError."""
    path = segment.index_path
    for each, size in ((segment.data_path, segment.size), (path, segment.frames * ENTRY_SIZE)):
        if each.name in disk.list(each.parent) and (more := disk.size(each) - size) > 0:
            report.notes.append(f"{each}, offset {size}: {more} bytes behind those that count, which nothing reads")
    entries = from_index(disk, segment, segment.size)
    if entries is None and path.name not in disk.list(path.parent):
        report.notes.append(f"{path} is missing; reads make it from its segment")
        return
    # A program that changes an entry can give it a checksum that fits. Older releases wrote no marks.
    made = from_data(disk, segment, segment.size)
    marked = [replace(new, mark=old.mark and new.mark) for new, old in zip(made, entries or (), strict=False)]
    if entries is None or entries != marked:
        report.problems.append(f"{path} is not the index of its segment. Remove it: reads make it from the segment")


def _check_strays(report: Report, disk: Disk, shard: Shard) -> None:
    """Tell files that do not belong where they are, or did not."""
    for path in shard.checkpoints.inventory.apart:
        report.problems.append(f"{path} is damaged; the one before it is used, and the next start sets it apart")
    for path in shard.checkpoints.strays(shard.directory.by_id):
        report.problems.append(f"{path} is of no topic that catalog and log know; the next checkpoint sets it apart")
    report.notes += [f"{path} was set apart: {REMEDY}" for path in shard.checkpoints.inventory.lost()]


def _check_segment(disk: Disk, segment: Segment) -> int:
    """Check every frame of a segment against its checksum and its index entry. Returns the number of frames. Raises
    `SegmentError`, OSError."""
    entries = read_index(disk, segment, segment.size)
    view = disk.read(segment.data_path)
    seq, total = segment.first_seq, 0
    for entry in entries:
        try:
            header = check(view, entry.offset)
        except FrameError as error:
            raise SegmentError(f"{segment.data_path}, offset {entry.offset}: {error}") from error
        if (header.first_seq, header.count, header.length) != (entry.first_seq, entry.count, entry.length):
            raise SegmentError(f"{segment.index_path}: the entry for seq {entry.first_seq} is not what the frame says")
        if header.first_seq < seq:
            raise SegmentError(f"{segment.data_path}, offset {entry.offset}: seq {header.first_seq} is repeated")
        seq = entry.first_seq + entry.count
        total += content_hash(view, entry.offset)
        StoredFrame(segment, entry).load()
    if segment.sum not in (None, total % SUMS):
        raise SegmentError(f"{segment.data_path}: the sum of its frames is not the one in the catalog")
    return len(entries)


def _check_order(report: Report, topic: Topic) -> None:
    end = 0
    for batch in topic.records.batches:
        if batch.first_seq <= end:
            report.problems.append(f'topic "{topic.name}": seq {batch.first_seq} is repeated')
        end = batch.last_seq
